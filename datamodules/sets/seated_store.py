"""What one seat of a federation has of tables: features of one party, or labels, and the shapes of all parties."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.fitted import Fitted, FittedParty
from lightning_vfl.types import RecordBlocks, Seat
from lightning_vfl.wire.record_ids import as_ids

from ..records.feature_stores import FeatureStore
from ..records.layout import Layout, Part
from ..records.normalise import Normaliser
from ..records.records import SplitName, VerticalRecords
from ..records.seated_records import SeatedFiles, SeatedRecords, no_labels
from .seated_parties import check_parties

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..records.seated_records import Ids

_SPLITS: tuple[SplitName, ...] = ("train", "val", "test", "predict")


class _Shapes(NamedTuple):
    """The per-record shape of every party's features, and the classes of the labels."""

    parties: tuple[tuple[int, ...], ...]
    classes: tuple[int | str, ...]


class SeatedStore(SeatedFiles, FeatureStore):
    """The one table that a seat of a federation reads: the party's, or at the server that of the labels.

    Args:
        data: the settings, and what a trained model has fitted.
        seat: whose table.
        names: the names of the parties, in the order of their numbers.
        labels_at: the party that has the labels; None: the server.
        copies: every party has the labels too.

    Guarantee: no other table is looked at. Features, labels, ids and their order are bit for bit those of one process
        that reads all tables.

    Raises:
        ConfigurationError: for parties and tables that do not agree, and settings that need several tables at once.
    """

    def __init__(self, data: Any, seat: Seat, names: Sequence[str], labels_at: int | None, copies: bool) -> None:
        self._names = tuple(names)
        check_parties(data, seat, self._names, labels_at, copies)
        self._data = data
        self._seat = seat
        self._labels_at = labels_at
        self._has_labels = copies or seat.party == labels_at
        self._party = None if seat.party is None else (seat.party, self._names[seat.party])
        self._name = None if self._party is None else self._party[1]
        labels_here = self._has_labels and data.label_party in data.tables
        self._table = self._name or (data.label_party if labels_here else None)
        self._who = f"party '{self._name}'" if self._name else "the server"
        self._shapes: _Shapes | None = None

    # ---- what a kind of tables has

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
        if self._seat.party is None:
            raise ConfigurationError("the server has no features, so it has no shape; ask the parties")
        (shape,) = self._own_layout.view_shapes or (self._own_layout.shape,)
        return shape

    def told_shapes(
        self, shapes: Sequence[Sequence[int]], num_classes: int | None, class_names: Sequence[int | str] | None
    ) -> None:
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
        if unknown := [name for name in order if name not in _SPLITS]:
            raise ConfigurationError(f"there is no split '{unknown[0]}'; use {', '.join(_SPLITS)}")
        return {name: as_ids(order[name]) for name in _SPLITS if name in order}

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
