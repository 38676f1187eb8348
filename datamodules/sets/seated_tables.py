"""The table of one seat in a process of its own: its ids, the common order, and the records that follow from them."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, NoOwnTable
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import Seat
from lightning_vfl.wire.record_ids import as_ids

from ..records.column_encoder import ColumnEncoder
from ..records.column_tables import ColumnTable, some_columns
from ..records.feature_stores import FeatureStore
from ..records.joined_tables import TableReader
from ..records.layout import Layout, Part
from ..records.normalise import Normaliser
from ..records.party_tables import plain_ids
from ..records.records import Split, SplitName, VerticalRecords
from ..records.seated_records import SeatedFiles, SeatedRecords, no_labels
from ..records.told_records import ALL, ToldRecords
from .prepared_tables import PreparedTables, columns_beside, text_columns
from .seated_parties import check_parties, refuse_features, refuse_unlike

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..records.seated_records import Ids

_SPLITS: tuple[SplitName, ...] = ("train", "val", "test", "predict")


class _Shapes(NamedTuple):
    """The per-record shape of every party's features, and the classes of the labels."""

    parties: tuple[tuple[int, ...], ...]
    classes: tuple[int | str, ...]


class SeatedTables(SeatedFiles, FeatureStore):
    """The one table that a seat of a federation reads: the party's, or at the server that of the labels.

    It is prepared as the tables of a simulation are (``PreparedTables``), with the ids that the others have told.

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
        paths = {} if self._table is None else {self._table: data.tables[self._table]}
        self._reader = TableReader(paths, data.id_columns, data.forms, data.work_dir)
        self._aligned: PreparedTables | None = None
        self._shapes: _Shapes | None = None

    # ---- finding the common records

    def own_ids(self) -> "NDArray[np.generic]":
        data, name = self._data, self._table
        if name is None:
            raise NoOwnTable("the server reads no table, so it has no ids; it is told the order of the records")
        table = self._reader.tables(text_columns(data, [name]))[name]
        if name not in self._names:
            refuse_features(data, table.columns)
        return np.sort(plain_ids(table.index))

    def split_records(self, ids_by_party: "Mapping[int, Ids]") -> "dict[str, NDArray[np.generic]]":
        data = self._data
        if self._seat.party != self._labels_at:
            holder = "the server" if self._labels_at is None else f"party '{self._names[self._labels_at]}'"
            raise ConfigurationError(f"{self._who} has no labels to divide the records by; ask {holder}")
        told = {self._name_of(party): as_ids(ids) for party, ids in ids_by_party.items()}
        own = {} if self._table is None else {self._table: self.own_ids()}
        refuse_unlike(told | own)
        told.pop(self._table or "", None)  # it is read here; the party of the server's host reads the same file
        data.forget()
        everything = ToldRecords(told, None, True)
        self._aligned = PreparedTables(data, self._reader, everything, self._party)
        whole = PreparedTables(data, self._reader, everything, read=self._labels_alone)
        ids = whole.joined.ids
        if whole.joined.labels is None and not data.new_records:
            return {"predict": ids}
        return {name: ids[whole.rows[name]] for name in ("train", "val", "test")}

    def align(self, order: "Mapping[str, Ids]", ids_by_party: "Mapping[int, Ids]") -> None:
        if unknown := [name for name in order if name not in _SPLITS]:
            raise ConfigurationError(f"there is no split '{unknown[0]}'; use {', '.join(_SPLITS)}")
        told: dict[SplitName, NDArray[np.generic]] = {name: as_ids(order[name]) for name in _SPLITS if name in order}
        if self._table is not None:
            own = self.own_ids()
            told = {name: _of_kind(ids, own, self._who) for name, ids in told.items()}
            for name, ids in told.items() if self._data.everybody_holds else ():
                if (unknown_ids := ids[~np.isin(ids, own)]).size:
                    raise ConfigurationError(
                        f"{len(unknown_ids)} of the {len(ids)} {name} records told to {self._who} are not in its "
                        f"table, first {unknown_ids[0]}; align again with the table as it is now"
                    )
        divided = [told[name] for name in ("train", "val", "test") if name in told]
        common = told["predict"] if "predict" in told else np.concatenate(divided or [np.arange(0)])
        for ids in [common, *([np.concatenate(divided)] if divided else [])]:
            if not len(ids) or len(np.unique(ids)) < len(ids):
                what = "repeats ids" if len(ids) else "has no ids"
                raise ConfigurationError(f"the order of records told to {self._who} {what}; align again")
        if divided and not np.isin(np.concatenate(divided), common).all():
            raise ConfigurationError(f"the splits told to {self._who} have records that are not used; align again")
        told_ids = {self._name_of(party): as_ids(ids) for party, ids in ids_by_party.items()}
        everything = ToldRecords({**told_ids, ALL: np.sort(common)}, told, self._has_labels)
        self._aligned = PreparedTables(self._data, self._reader, everything, self._party)
        self._data.forget()

    # ---- shapes

    def own_shape(self) -> tuple[int, ...]:
        if self._seat.party is None:
            raise ConfigurationError("the server has no features, so it has no shape; ask the parties")
        (shape,) = self.prepared.layout.view_shapes or (self.prepared.layout.shape,)
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
            names[self._seat.party] = self.prepared.layout.columns
        return Layout((sum(widths),), tuple(chain.from_iterable(names)), widths, self._names, shapes)

    @property
    def labels(self) -> tuple[Tensor, tuple[int | str, ...]]:
        """(N,) the labels of all common records, and the classes; no labels if they are in another process."""
        return self.prepared.labels if self._has_labels else (torch.empty(0), self._all_shapes.classes)

    @property
    def labels_digest(self) -> str:
        """SHA-256 of the labels of the divided records, in their order, and of the classes."""
        digest = sha256()
        for name in ("train", "val", "test"):
            rows = self.prepared.rows[name]
            if len(rows):
                labels, classes = self.labels
                digest.update(f"{name} {classes}".encode() + labels[rows].numpy().tobytes())
        return digest.hexdigest()

    @property
    def encoders(self) -> dict[str, tuple[ColumnEncoder, ...]]:
        """The party's name -> the encoders of its columns; empty at the server."""
        return {} if self._name is None else {self._name: self.prepared.encoders[self._name]}

    # ---- records

    @property
    def prepared(self) -> PreparedTables:
        """The table, aligned.

        Raises:
            ConfigurationError: before the common records are known.
        """
        if self._aligned is None:
            raise ConfigurationError(f"{self._who} does not know the common records yet; call align before setup")
        return self._aligned

    @property
    def left_out(self) -> "Mapping[str, NDArray[np.generic]]":
        """The party's name -> the ids of its records that other parties lack; empty at the server."""
        return {} if self._name is None else self.prepared.left_out

    def splits(self, names: Sequence[SplitName]) -> dict[SplitName, Split]:
        """Labels, if they are here, ids and presence of the records of these splits.

        Raises:
            ConfigurationError: if there are no training records to fit something to.
        """
        if self._data.fitted is None and not len(self.prepared.rows["train"]):
            raise ConfigurationError(f"{self._who} was told no training records; align with the splits of a fit")
        return self.prepared.splits(names, self._names)

    def trained_ids(self, splits: Mapping[SplitName, Split]) -> "NDArray[np.generic]":
        train = splits["train"]
        if train.present is None or self._seat.party is None:
            return train.ids
        held: NDArray[np.generic] = train.ids[train.present[:, self._seat.party].numpy()]
        return held

    def fit(self, normaliser: Normaliser, parts: Sequence[Part], held: Tensor | None) -> tuple[Tensor, Tensor]:
        shift, scale = torch.full((2, self.layout.size), torch.nan, dtype=torch.float64)
        if self._seat.party is not None:
            own = parts[self._seat.party].positions
            shift[own], scale[own] = self.prepared.features.shift, self.prepared.features.scale
        return shift, scale

    def records(self, name: SplitName, fitted: Fitted, *about: Any) -> SeatedRecords:
        labels, ids, present, _, weights = about
        if labels is None and name != "predict":
            labels = no_labels(len(ids), len(self._data.targets), self._data.task == "classification")
        shapes, own = [party.shape for party in fitted.parties], None
        if self._seat.party is not None:
            places = torch.from_numpy(self.prepared.rows_of(name))
            own = VerticalRecords(self.prepared.features.table, [shapes[self._seat.party]], None, ids, places=places)
        return SeatedRecords(own, 0, self._seat, shapes, labels, ids, present, weights)

    def forget(self) -> None:
        if self._aligned is not None:
            self._aligned.forget()

    # ---- inside

    def _labels_alone(self) -> dict[str, ColumnTable]:
        """The columns that divide the records; the table itself is joined later, when the records are divided."""
        data, name = self._data, self._table
        if name is None:
            return {}
        table = self._reader.tables(text_columns(data, [name]))[name]
        columns = [column for column in (*data.label_columns, *columns_beside(data).values()) if column in table]
        return {name: some_columns(table, columns)}

    # ---- names

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


def _of_kind(ids: "NDArray[np.generic]", own: "NDArray[np.generic]", who: str) -> "NDArray[np.generic]":
    """The ids as whole numbers or texts, as the process's own are."""
    if ids.dtype.kind == own.dtype.kind or not len(ids):
        return ids.astype(own.dtype) if not len(ids) else ids
    try:
        return ids.astype(np.int64 if own.dtype.kind == "i" else np.str_)
    except ValueError:
        raise ConfigurationError(f"the ids of {who} are whole numbers, those told are texts; align again") from None
