"""What one seat of a federation has of tables: features of one party, or labels, and the shapes of all parties."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, NoOwnTable
from lightning_vfl.trained.fitted import Fitted, FittedParty
from lightning_vfl.types import RecordBlocks, Seat
from lightning_vfl.wire.record_ids import as_ids

from .feature_stores import FeatureStore
from .layout import Layout, Part
from .normalise import Normaliser
from .party_tables import kind_of, listed
from .records import SPLITS, SplitName, VerticalRecords
from .seated_records import SeatedRecords, no_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .seated_records import Ids


class _Shapes(NamedTuple):
    """The per-record shape of every party's features, and the classes of the labels."""

    parties: tuple[tuple[int, ...], ...]
    classes: tuple[int | str, ...]


class SeatedStore(FeatureStore):
    """The one table that a seat of a federation reads; see ``lightning_vfl.types.SeatedData``.

    It is that of the party, or at the server that of the labels.

    Args:
        data: the settings, the seat, and what a trained model has fitted.
        names: the names of the parties, in the order of their numbers.

    Guarantee: no other table is looked at. Features, labels, ids and their order are bit for bit those of one process
        that reads all tables.

    Raises:
        ConfigurationError: for parties and tables that do not agree, and settings that need several tables at once.
    """

    def __init__(self, data: Any, names: Sequence[str]) -> None:
        self._names = tuple(names)
        check_parties(data, self._names)
        self._data = data
        self._seat: Seat = data.seat
        self._labels_at: int | None = data.labels_at
        self._has_labels: bool = data.has_labels
        party = self._seat.party
        self._party = None if party is None else (party, self._names[party])
        self._name = None if self._party is None else self._party[1]
        labels_here = self._has_labels and data.label_party in data.tables
        self._table: str | None = self._name or (data.label_party if labels_here else None)
        self._who = f"party '{self._name}'" if self._name else "the server"
        self._shapes: _Shapes | None = None

    @property
    def _own_table(self) -> str:
        """The table that this process reads.

        Raises:
            NoOwnTable: if it reads none.
        """
        if self._table is None:
            raise NoOwnTable("the server reads no table, so it has no ids; it is told the order of the records")
        return self._table

    # ---- what a kind of tables has

    @abstractmethod
    def own_ids(self) -> "NDArray[np.generic]":
        """(n,) sorted ids of the seat's table, read from the file."""

    @abstractmethod
    def split_records(self, ids_by_party: "Mapping[int, Ids]") -> "dict[str, NDArray[np.generic]]":
        """The common ids of each split, in order."""

    @abstractmethod
    def align(self, order: "Mapping[str, Ids]", ids_by_party: "Mapping[int, Ids]") -> None:
        """Take the ids of each split, and at the server those of the parties."""

    @property
    @abstractmethod
    def labels_digest(self) -> str:
        """What the labels of all divided records are compared by."""

    @abstractmethod
    def forget(self) -> None:
        """Drop what depends on the fitted values; the common order stays."""

    @property
    @abstractmethod
    def _own_layout(self) -> Layout:
        """The form of a record of this party alone."""

    @abstractmethod
    def _own_scaling(self, normaliser: Normaliser) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (F_m,), of the columns of this party."""

    @abstractmethod
    def _own_records(self, name: SplitName, fitted: FittedParty, ids: "NDArray[np.generic]") -> VerticalRecords:
        """The scaled features of this party's records of a split."""

    def _blocks(self, name: SplitName) -> RecordBlocks | None:
        """The blocks in which the records of a split are read; default: all are equally fast to read."""
        return None

    # ---- shapes

    def own_shape(self) -> tuple[int, ...]:
        """The per-record shape of the party's features."""
        if self._seat.party is None:
            raise ConfigurationError("the server has no features, so it has no shape; ask the parties")
        (shape,) = self._own_layout.view_shapes or (self._own_layout.shape,)
        return shape

    def told_shapes(
        self, shapes: Sequence[Sequence[int]], num_classes: int | None, class_names: Sequence[int | str] | None
    ) -> None:
        """Take the shapes of all parties, and the classes."""
        plain = [tuple(shape) for shape in shapes]
        if len(plain) != len(self._names) or any(prod(shape) < 1 or not shape for shape in plain):
            raise ConfigurationError(
                f"shapes {plain} are not those of tables of {len(self._names)} parties; give one for each party"
            )
        if self._seat.party is not None and plain[self._seat.party] != self.own_shape():
            raise ConfigurationError(
                f"{self._who} has features of shape {self.own_shape()}, and was told {plain[self._seat.party]}; read "
                "the tables again in all processes"
            )
        classes = tuple(range(num_classes or 0)) if class_names is None else tuple(class_names)
        self._shapes = _Shapes(tuple(plain), classes)
        self._data.forget()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parties."""
        return self._names

    @property
    def layout(self) -> Layout:
        """The widths of all parties; columns of other parties have empty names."""
        shapes = self._all_shapes.parties
        widths = tuple(map(prod, shapes))
        names = [("",) * width for width in widths]
        if self._seat.party is not None:
            names[self._seat.party] = self._own_layout.columns
        return Layout((sum(widths),), tuple(chain.from_iterable(names)), widths, self._names, shapes)

    # ---- records

    def fit(self, normaliser: Normaliser, parts: Sequence[Part], held: Tensor | None) -> tuple[Tensor, Tensor]:
        shift, scale = torch.full((2, self.layout.size), torch.nan, dtype=torch.float64)
        if self._seat.party is not None:
            own = parts[self._seat.party].positions
            shift[own], scale[own] = self._own_scaling(normaliser)
        return shift, scale

    def records(self, name: SplitName, fitted: Fitted, *about: Any) -> SeatedRecords:
        labels, ids, present, _, weights = about
        if labels is None and name != "predict":
            labels = no_labels(len(ids), len(self._data.targets), self._data.has_classes)
        own = None
        if self._seat.party is not None:
            own = self._own_records(name, fitted.parties[self._seat.party], ids)
        shapes = [party.shape for party in fitted.parties]
        records = SeatedRecords(own, 0, self._seat, shapes, labels, ids, present, weights)
        records.blocks = self._blocks(name)
        return records

    # ---- what the others tell

    def _told_order(self, order: "Mapping[str, Ids]") -> "dict[SplitName, NDArray[np.generic]]":
        """The ids of each split that is told.

        Raises:
            ConfigurationError: for other splits.
        """
        if unknown := [name for name in order if name not in SPLITS]:
            raise ConfigurationError(f"there is no split '{unknown[0]}'; use {', '.join(SPLITS)}")
        return {name: as_ids(order[name]) for name in SPLITS if name in order}

    def _told_ids(self, ids_by_party: "Mapping[int, Ids]") -> "dict[str, NDArray[np.generic]]":
        """The ids of each party by its name."""
        return {self._name_of(party): as_ids(ids) for party, ids in ids_by_party.items()}

    def _refuse_without_labels(self) -> None:
        """Accept the process that has the labels, by which records are divided.

        Raises:
            ConfigurationError: naming the one that has them.
        """
        if self._seat.party != self._labels_at:
            holder = "the server" if self._labels_at is None else f"party '{self._names[self._labels_at]}'"
            raise ConfigurationError(f"{self._who} has no labels to divide the records by; ask {holder}")

    def _of_kind(self, ids: "NDArray[np.generic]", own: "NDArray[np.generic]") -> "NDArray[np.generic]":
        """The ids as whole numbers or texts, as the process's own are.

        Raises:
            ConfigurationError: for texts that are no numbers, in a process whose ids are numbers.
        """
        if ids.dtype.kind == own.dtype.kind or not len(ids):
            return ids.astype(own.dtype) if not len(ids) else ids
        try:
            return ids.astype(np.int64 if own.dtype.kind == "i" else np.str_)
        except ValueError:
            raise ConfigurationError(
                f"the ids of {self._who} are whole numbers, those told are texts; align again"
            ) from None

    def _name_of(self, party: int) -> str:
        if not 0 <= party < len(self._names):
            raise ConfigurationError(f"there is no party {party} in the federation of {', '.join(self._names)}")
        return self._names[party]

    @property
    def _all_shapes(self) -> _Shapes:
        if self._shapes is None:
            raise ConfigurationError(
                f"{self._who} does not know the parties' shapes yet; call told_shapes before setup"
            )
        return self._shapes


def check_parties(data: Any, names: Sequence[str]) -> None:
    """Accept a federation whose parties are those of the recipe, and settings that need one table at a time.

    Raises:
        ConfigurationError: for the first setting, party or table that is refused.
    """
    labels_at: int | None = data.labels_at
    if data.groups:
        raise ConfigurationError("groups of tables are simulated only, not between processes yet; leave groups out")
    if repr(data.partitioner) != "Views()":
        raise ConfigurationError(
            f"{data.partitioner!r} divides the columns of all tables, which no process has; leave partitioner out"
        )
    for party in (data.seat.party, labels_at):
        if party is not None and not 0 <= party < len(names):
            raise ConfigurationError(f"there is no party {party} in the federation of {', '.join(names)}")
    if data.copies and (lacking := [name for name in names if name not in (data.label_party, *data.label_copies)]):
        raise ConfigurationError(
            f"party '{lacking[0]}' needs the labels in its table for this protocol, and its name in label_copies"
        )
    holder = None if labels_at is None else names[labels_at]
    for party, column in data.counted:
        if party != holder:
            raise ConfigurationError(
                f"woe of column '{column}' of party '{party}' needs the labels, which another process has; use "
                "another step in a federation"
            )
    if unknown := [name for name in names if name not in data.tables]:
        raise ConfigurationError(
            f"party '{unknown[0]}' of the federation has no table; tables names {', '.join(data.tables)}"
        )
    if others := [name for name in data.tables if name not in names and name != data.label_party]:
        raise ConfigurationError(f"tables names '{others[0]}', which is not a party of the federation; leave it out")
    if (wanted := tuple(name for name in data.tables if name in names)) != tuple(names):
        raise ConfigurationError(
            f"the parties of the federation are {', '.join(names)}, tables names {', '.join(wanted)}; write both in "
            "the same order, each party once"
        )
    if labels_at is not None and names[labels_at] != data.label_party:
        raise ConfigurationError(
            f"the labels are at party '{names[labels_at]}', but label_party is '{data.label_party}'; use one of them "
            "for both"
        )


def refuse_features(label_party: str, features: Collection[str]) -> None:
    """Accept a table of labels that is no party of the federation.

    Raises:
        ConfigurationError: if it has features.
    """
    if features:
        raise ConfigurationError(
            f"the table of label_party '{label_party}' has the further columns {listed(features)}, but it is no party "
            "of the federation; leave them out, or add the party"
        )


def refuse_unlike(ids: "Mapping[str, NDArray[np.generic]]") -> None:
    """Accept lists of ids of one kind, in which every id is told once.

    Raises:
        ConfigurationError: for the first party with another list.
    """
    import pandas as pd

    tables = {name: pd.Index(own) for name, own in ids.items()}
    if not tables:
        raise ConfigurationError("no process has told its ids; give those of the parties")
    first = next(iter(tables))
    for name, own in tables.items():
        if not len(own) or own.has_duplicates:
            raise ConfigurationError(f"party '{name}' has told {'an id twice' if len(own) else 'no ids'}; correct it")
        if kind_of(own) != (kind := kind_of(tables[first])):
            raise ConfigurationError(
                f"ids of party '{name}' are {kind_of(own)} but those of party '{first}' are {kind}; write them in the "
                "same form in all files"
            )
