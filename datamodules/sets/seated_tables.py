"""The table of one seat in a process of its own: its ids, the common order, and the records that follow from them."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.fitted import FittedParty

from ..records.column_encoder import ColumnEncoder
from ..records.column_tables import ColumnTable, some_columns
from ..records.joined_tables import TableReader
from ..records.layout import Layout
from ..records.normalise import Normaliser
from ..records.party_tables import plain_ids
from ..records.records import DIVIDED, Split, SplitName, VerticalRecords
from ..records.seated_store import SeatedStore, refuse_features, refuse_unlike
from .prepared_tables import ALL, PreparedTables, ToldRecords, columns_beside, features_beside, text_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..records.seated_records import Ids


class SeatedTables(SeatedStore):
    """The one table that a seat reads, prepared as those of a simulation are, with the ids that the others have told.

    See ``SeatedStore`` for the arguments, and ``PreparedTables`` for what is done with the table.
    """

    def __init__(self, data: Any, names: Sequence[str]) -> None:
        super().__init__(data, names)
        paths = {} if self._table is None else {self._table: data.tables[self._table]}
        self._reader = TableReader(paths, data.id_columns, data.forms, data.work_dir)
        self._aligned: PreparedTables | None = None

    # ---- finding the common records

    def own_ids(self) -> "NDArray[np.generic]":
        data = self._data
        name = self._own_table
        table = self._reader.tables(text_columns(data, [name]))[name]
        if name not in self._names:
            refuse_features(data.label_party, features_beside(data, table.columns))
        return np.sort(plain_ids(table.index))

    def split_records(self, ids_by_party: "Mapping[int, Ids]") -> "dict[str, NDArray[np.generic]]":
        data = self._data
        self._refuse_without_labels()
        told = self._told_ids(ids_by_party)
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
        return {name: ids[whole.rows[name]] for name in DIVIDED}

    def align(self, order: "Mapping[str, Ids]", ids_by_party: "Mapping[int, Ids]") -> None:
        told = self._told_order(order)
        if self._table is not None:
            own = self.own_ids()
            told = {name: self._of_kind(ids, own) for name, ids in told.items()}
            for name, ids in told.items() if self._data.everybody_holds else ():
                if (unknown_ids := ids[~np.isin(ids, own)]).size:
                    raise ConfigurationError(
                        f"{len(unknown_ids)} of the {len(ids)} {name} records told to {self._who} are not in its "
                        f"table, first {unknown_ids[0]}; align again with the table as it is now"
                    )
        divided = [told[name] for name in DIVIDED if name in told]
        common = told["predict"] if "predict" in told else np.concatenate(divided or [np.arange(0)])
        for ids in [common, *([np.concatenate(divided)] if divided else [])]:
            if not len(ids) or len(np.unique(ids)) < len(ids):
                what = "repeats ids" if len(ids) else "has no ids"
                raise ConfigurationError(f"the order of records told to {self._who} {what}; align again")
        if divided and not np.isin(np.concatenate(divided), common).all():
            raise ConfigurationError(f"the splits told to {self._who} have records that are not used; align again")
        everything = ToldRecords({**self._told_ids(ids_by_party), ALL: np.sort(common)}, told, self._has_labels)
        self._aligned = PreparedTables(self._data, self._reader, everything, self._party)
        self._data.forget()

    # ---- labels and columns

    @property
    def _own_layout(self) -> Layout:
        return self.prepared.layout

    @property
    def labels(self) -> tuple[Tensor, tuple[int | str, ...]]:
        """(N,) the labels of all common records, and the classes; no labels if they are in another process."""
        return self.prepared.labels if self._has_labels else (torch.empty(0), self._all_shapes.classes)

    @property
    def labels_digest(self) -> str:
        """SHA-256 of the labels of the divided records, in their order, and of the classes."""
        digest = sha256()
        for name in DIVIDED:
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

    def _own_scaling(self, normaliser: Normaliser) -> tuple[Tensor, Tensor]:
        features = self.prepared.features
        return features.shift, features.scale

    def _own_records(self, name: SplitName, fitted: FittedParty, ids: "NDArray[np.generic]") -> VerticalRecords:
        places = torch.from_numpy(self.prepared.rows_of(name))
        return VerticalRecords(self.prepared.features.table, [fitted.shape], None, ids, places=places)

    def forget(self) -> None:
        if self._aligned is not None:
            self._aligned.forget()

    # ---- inside

    def _labels_alone(self) -> dict[str, ColumnTable]:
        """The columns that divide the records; the table itself is joined later, when the records are divided."""
        data = self._data
        name = self._table
        if name is None:
            return {}
        table = self._reader.tables(text_columns(data, [name]))[name]
        columns = [column for column in (*data.label_columns, *columns_beside(data).values()) if column in table]
        return {name: some_columns(table, columns)}
