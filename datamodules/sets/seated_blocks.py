"""The table of any length of one seat in a process of its own: as it is read in blocks in a simulation."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.fitted import FittedParty
from lightning_vfl.types import RecordBlocks

from ..records.block_tables import BlockedTables, Columns
from ..records.layout import Layout
from ..records.normalise import Normaliser
from ..records.party_tables import kind_of, plain_ids
from ..records.records import DIVIDED, Split, SplitName, VerticalRecords
from ..records.row_split import RowSplit
from ..records.seated_store import SeatedStore, refuse_features, refuse_unlike

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..records.seated_records import Ids


class SeatedBlocks(SeatedStore):
    """The one table that a seat reads in blocks. All tables have the same records in the same order.

    See ``SeatedStore`` for the arguments, and ``BlockedTables`` for what is done with the table.

    Units: memory, the ids of all records, 8 bytes each if they are numbers.
    """

    _ids: "NDArray[np.generic] | None" = None  # of all records, in the order of the files

    @property
    def reads(self) -> tuple[str, ...]:
        """The table that this process reads; empty: none."""
        return () if self._table is None else (self._table,)

    # ---- finding the common records

    def own_ids(self) -> "NDArray[np.generic]":
        return np.sort(self._ids_of_file())

    def split_records(self, ids_by_party: "Mapping[int, Ids]") -> "dict[str, NDArray[np.generic]]":
        self._refuse_without_labels()
        own = self._ids_of_file()
        told = self._told_ids(ids_by_party)
        refuse_unlike({**told, str(self._table): np.sort(own)})
        for name, ids in told.items():
            if not np.array_equal(np.sort(ids), np.sort(own)):
                raise ConfigurationError(
                    f"party '{name}' has told {len(ids):,} ids, which are not the {len(own):,} of '{self._table}'; "
                    "give files with the same records in the same order, or use CSVTables, which joins them"
                )
        self._ids = own
        if self._labels is None:
            return {"predict": own}
        split = self._split
        return {name: own[split.all_rows(name)] for name in DIVIDED}

    def align(self, order: "Mapping[str, Ids]", ids_by_party: "Mapping[int, Ids]") -> None:
        told = self._told_order(order)
        ids = told.pop("predict", None)
        if ids is None:
            if not told or not sum(map(len, told.values())):
                raise ConfigurationError(f"the order of records told to {self._who} has no ids; align again")
            ids = self._in_file_order(told)
        if self._table is not None:
            own = self._ids_of_file()
            ids = self._of_kind(ids, own)
            if len(ids) != len(own) or (ids != own).any():
                rows = f"{len(own):,} and {len(ids):,} records"
                if len(ids) == len(own):
                    row = int(np.argmax(ids != own))
                    rows = f"row {row:,} has id {own[row]} here and {ids[row]} there"
                raise ConfigurationError(
                    f"the file of {self._who} has not the records of the file with the labels in the same order "
                    f"({rows}); write all files in the same order, or use CSVTables, which joins them"
                )
        self._ids = ids
        self._data.forget()

    def _in_file_order(self, told: "Mapping[SplitName, NDArray[np.generic]]") -> "NDArray[np.generic]":
        """The ids of the splits, row by row of the file."""
        ids = np.concatenate([*told.values()])
        split = self._data.split_of(len(ids))
        rows = [split.all_rows(name) for name in told]
        if [len(own) for own in rows] != [len(own) for own in told.values()]:
            raise ConfigurationError(
                f"the {len(ids):,} records told to {self._who} are divided otherwise than its recipe says; "
                "give val_share and test_share alike in all processes"
            )
        ordered = np.empty_like(ids)
        ordered[np.concatenate(rows)] = ids
        return ordered

    def _ids_of_file(self) -> "NDArray[np.generic]":
        """(N,) the ids in the order of the file, which are checked."""
        import pandas as pd  # 0.5 s, where it is used

        data = self._data
        name = self._own_table
        if name not in self._names:
            refuse_features(data.label_party, data.feature_names(name))
        data.check_ids()
        file = data.opened[name]
        if not data.id_columns:
            return np.arange(len(file))
        ids = pd.Index(file.column(data.id_columns[name]))
        if kind_of(ids) not in ("whole numbers", "text"):
            raise ConfigurationError(f"ids of {self._who} are {ids.dtype}; write them as text or as whole numbers")
        return plain_ids(ids)

    # ---- labels and columns

    @property
    def labels_digest(self) -> str:
        raise ConfigurationError("these tables have no copies of labels; use CSVTables")

    @property
    def parties(self) -> tuple[Columns, ...]:
        """The features that are read here."""
        return () if self._name is None else (self._data.columns_of(self._name),)

    @property
    def _own_layout(self) -> Layout:
        ((file, names),) = self.parties
        return Layout((len(names),), names, (len(names),), (file.party,))

    @property
    def _labels(self) -> Columns | None:
        labels: Columns | None = self._data.labels_of(self._table) if self._has_labels and self._table else None
        return labels

    @property
    def _split(self) -> RowSplit:
        if self._ids is None:
            raise ConfigurationError(f"{self._who} does not know the common records yet; call align before setup")
        split: RowSplit = self._data.split_of(len(self._ids))
        return split

    # ---- records

    @cached_property
    def _tables(self) -> BlockedTables:
        tables: BlockedTables = self._data.blocked(self.parties, self._labels, self._ids, self._split, self.layout.size)
        return tables

    def splits(self, names: Sequence[SplitName]) -> dict[SplitName, Split]:
        """Labels, if they are here, and ids of these splits."""
        return self._tables.load(names)

    def trained_ids(self, splits: Mapping[SplitName, Split]) -> "NDArray[np.generic]":
        return self._tables.trained_ids(splits)

    def forget(self) -> None:
        self.__dict__.pop("_tables", None)

    def _own_scaling(self, normaliser: Normaliser) -> tuple[Tensor, Tensor]:
        return self._tables.fit(normaliser.of_party(str(self._name)), (), None)

    def _own_records(self, name: SplitName, fitted: FittedParty, ids: "NDArray[np.generic]") -> VerticalRecords:
        return self._tables.records_of(name, [fitted], None, ids)

    def _blocks(self, name: SplitName) -> RecordBlocks:
        return self._tables.blocks(name)
