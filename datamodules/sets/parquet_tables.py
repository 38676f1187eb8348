"""Tables of several parties that are larger than memory: Parquet files with equal rows, read in blocks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.streams import permutation

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner, Views
from ..records.block_files import BlockTable, check_blocks, check_classes
from ..records.block_records import BlockedTables, BlockRecords, RecordIds
from ..records.joined_tables import paths_of
from ..records.layout import Layout
from ..records.party_tables import by_party
from ..records.records import Split, SplitName
from ..records.repeated_ids import check_ids
from ..records.row_split import RowSplit
from ..split import check_shares

_FIT_BLOCKS = 16  # blocks among which the records are chosen that scaling is fitted to
_MEGABYTE = 10**6


class ParquetTables(VerticalDataModule):
    """One Parquet file for each party, all with the same records in the same order, of any length.

    A row group of a file is a block. Training reads some blocks into memory, a window, and takes the records of the
    window in random order, see ``lightning_vfl.schedules.blocks.BlockShuffled``. No list of all records is in memory.
    The columns of each file are numbers, or true and false; a file that has only labels (and ids) is no party.

    Args:
        tables: party -> its file. All files need the same row groups; pyarrow, pandas and polars write them with
            ``row_group_size``.
        label_party: the party whose file holds the labels.
        label_column: the column of the labels.
        data_dir: the folder in which relative file names are looked up; None: the working folder.
        num_classes: number of classes of the labels, which are whole numbers from 0; None: labels are real numbers.
        id_column: the column of ids, of all files or party -> column (others: ``id``). Before training the ids of all
            files are compared row by row, and predictions are written with them. None: the number of the row, from 0,
            is the id, and nothing checks that the files have the same order.
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing; 0: none. All records are predicted.
        window_mb: megabytes of features in a window, at least one block.
        fit_records: scaling is fitted to this many training records, from up to 16 blocks that the seed draws.
        loader: further settings of ``VerticalDataModule``, without ``partitioner``: each table is a party.

    Units: memory, ``window_mb`` for training and a block for each other split, the index of each file (700 bytes for
        a column of a row group), and nothing for each record. With ``num_workers`` each worker has a window of its own.
    Guarantee: the records of a split are a function of the number of rows, the shares and the seed (``RowSplit``), and
        the order of an epoch one of the seed, the epoch, the row groups and ``window_mb``. A resumed run continues with
        the next batch. Labels, ids, the kinds of columns and missing values (which a file's index counts) are checked
        before training; every value is checked when its block is read. Features are the same bits for any window.
        A trained model finds its columns by their names, in any order.
    Not guaranteed: a uniformly random order, see ``BlockShuffled``; shares by class. Validation and testing read the
        blocks of all records, because a split has records everywhere. A checkpoint has digests of the ids, or of the
        files' indexes, by which a fit that is resumed with other files is refused, but no list of the training records:
        testing a model on files that have training records gives no warning. Not between processes of a federation: one
        process reads all files.

    Raises:
        ConfigurationError: for files that cannot be read, have other row groups, ids in another order, repeated ids
            or columns that are not numbers; for labels out of range; if a block is larger than ``window_mb``; for a
            protocol whose order or set-up goes over all records; during training for values that are not finite.
    """

    ids_are_places = True
    data_settings = ("val_share", "test_share", "num_classes", "fit_records")

    def __init__(
        self,
        tables: Mapping[str, str | Path],
        label_party: str,
        label_column: str,
        *,
        data_dir: str | Path | None = None,
        num_classes: int | None = 2,
        id_column: str | dict[str, str] | None = None,
        val_share: float = 0.1,
        test_share: float = 0.2,
        window_mb: int = 512,
        fit_records: int = 100_000,
        **loader: Any,
    ) -> None:
        super().__init__(**loader)
        if not isinstance(self.partitioner, Views):
            raise ConfigurationError(
                f"each table of ParquetTables is a party, so {type(self.partitioner).__name__} cannot divide its "
                "columns; leave partitioner out"
            )
        check_shares(val_share, test_share)
        for name, least, given in (("window_mb", 1, window_mb), ("fit_records", 1, fit_records)):
            if given < least:
                raise ConfigurationError(f"{name} must be at least {least}; got {given}")
        if num_classes is not None and num_classes < 2:
            raise ConfigurationError(f"num_classes must be at least 2, or None for real numbers; got {num_classes}")
        if label_party not in tables:
            raise ConfigurationError(f"label_party '{label_party}' has no table; tables names {', '.join(tables)}")
        self.tables = paths_of(tables, data_dir)
        self.label_party = label_party
        self.label_column = label_column
        self.id_columns = {} if id_column is None else by_party("id_column", id_column, tables, "id")
        self.classes = num_classes
        self.val_share = val_share
        self.test_share = test_share
        self.window_mb = window_mb
        self.fit_records = fit_records
        self._ids: str | None = None

    @property
    def num_classes(self) -> int | None:
        return self.classes

    @property
    def layout(self) -> Layout:
        own = self._tables.columns
        often = Counter(name for names in own for name in names)
        parties = [table.party for table in self._tables.tables]
        columns = tuple(
            name if often[name] == 1 else f"{party}.{name}"
            for party, names in zip(parties, own, strict=True)
            for name in names
        )
        return Layout((len(columns),), columns, tuple(map(len, own)), tuple(parties))

    @classmethod
    def refuse_seats(cls) -> None:
        raise ConfigurationError(
            "ParquetTables are simulated in one process, not between processes yet; use CSVTables for a federation"
        )

    def default_partitioner(self) -> Partitioner:
        return Views()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        """Labels and ids of these splits, 16 bytes a record; features are (N, 0), because they stay on the disk."""
        splits: dict[SplitName, Split] = {}
        for name in names:
            if count := self._split.count(name):
                ids = np.asarray(RecordIds(self._tables, self._split, name))
                labels = None if name == "predict" else self._records_of(name, 1).labels
                splits[name] = Split(torch.empty(count, 0), labels, ids)
        return splits

    def own_fitted(self) -> Mapping[str, Any]:
        """Party -> the names of its columns, in the order of the model's parties and features."""
        tables = self._tables
        return {"columns": {t.party: list(own) for t, own in zip(tables.tables, tables.columns, strict=True)}}

    def forget(self) -> None:
        super().forget()
        for cached in ("_opened", "_tables", "_split"):
            self.__dict__.pop(cached, None)

    def _prepare(self, missing: Sequence[SplitName]) -> None:
        """Check labels and ids, and fit the scaling to some training records; no features are kept."""
        self._check_size()
        self._check_rows(missing)
        if self.fitted is None:
            self.fitted = self._note_fitted(self._cut(), *self._fit(), np.empty(0, dtype=np.int64))
        for name in missing:
            if self._split.count(name):
                self._keep(name, self._records_of(name, self._together if name == "train" else 1))

    # ---- checkpoints

    @toolkit_hook
    def state_dict(self) -> dict[str, Any]:
        """As of every data set, and the files that a fit has to be resumed with."""
        files = {party: table.fingerprint for party, table in self._opened.items()}
        return super().state_dict() | {"files": files | {"ids": self._ids}}

    @toolkit_hook
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of every data set; a fit is resumed with the same files, other runs may have others."""
        own, trained = self.state_dict()["files"], state_dict.get("files")
        others = [name for name in own if trained is not None and trained.get(name) != own[name]]
        if others and self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING:
            which = "have other ids" if "ids" in others else f"have changed: {', '.join(others)}"
            raise ConfigurationError(
                f"the files {which} since the fit that is resumed, so test records may have been training records; "
                "give the same files, or train anew"
            )
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "files"})

    # ---- inside

    @cached_property
    def _opened(self) -> dict[str, BlockTable]:
        """Party -> its file."""
        files = {party: BlockTable(path, party) for party, path in self.tables.items()}
        check_blocks(list(files.values()))
        return files

    @cached_property
    def _tables(self) -> BlockedTables:
        files = self._opened
        label = files[self.label_party]
        own = {
            party: [
                name
                for name in table.kinds
                if name != self.id_columns.get(party) and not (table is label and name == self.label_column)
            ]
            for party, table in files.items()
        }
        if not own[self.label_party]:
            del own[self.label_party]  # its file has labels alone
        for party, names in own.items():
            if not names:
                raise ConfigurationError(f"the file of party '{party}' has no feature column; leave the party out")
            files[party].check_numbers(names)
        if not own:
            raise ConfigurationError("no table has a feature column; give the tables of the parties")
        of_party = self._as_trained(own)
        labelled = label if self.label_column in label.kinds else None
        id_column = self.id_columns.get(next(iter(of_party)))
        about = (labelled, self.label_column, self.classes is not None, id_column)
        return BlockedTables([files[party] for party in of_party], list(of_party.values()), *about)

    def _as_trained(self, own: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
        """Party -> its columns, in the order of the model's training; the order in the files does not matter.

        Raises:
            ConfigurationError: for parties or columns with other names.
        """
        trained: Mapping[str, Sequence[str]] | None = None if self.fitted is None else self.fitted.own.get("columns")
        if trained is None:
            return own
        if own.keys() != trained.keys():
            raise ConfigurationError(
                f"the model was trained on the parties {', '.join(trained)}, these tables are of {', '.join(own)}; "
                "give the same parties"
            )
        for party, names in trained.items():
            lacking, further = (sorted(set(a).difference(b)) for a, b in ((names, own[party]), (own[party], names)))
            if lacking or further:
                told = [f"lacks {', '.join(lacking)}"] * bool(lacking)
                told += [f"has {', '.join(further)} in addition"] * bool(further)
                raise ConfigurationError(
                    f"the model was trained with other columns: the file of party '{party}' {' and '.join(told)}; "
                    "give the columns of the training"
                )
        return trained

    @cached_property
    def _split(self) -> RowSplit:
        return RowSplit(int(self._tables.sizes.sum()), self.seed, self.val_share, self.test_share)

    def _check_rows(self, missing: Sequence[SplitName]) -> None:
        """Accept labels, if a split needs them, and ids."""
        if set(missing) - {"predict"}:
            check_classes(self._opened[self.label_party], self.label_column, self.classes)
        if self.id_columns:
            self._ids = check_ids(list(self._opened.values()), self.id_columns)

    @property
    def _together(self) -> int:
        """How many blocks of training records are in a window."""
        before = [self._split.before("train", int(row)) for row in (*self._tables.starts, self._split.rows)]
        block = 4 * self.layout.size * int(np.diff(before).max())
        if block > self.window_mb * _MEGABYTE:
            raise ConfigurationError(
                f"a row group takes {block / _MEGABYTE:,.0f} MB in memory, more than window_mb = {self.window_mb}; "
                "write the files with a smaller row_group_size, or raise window_mb"
            )
        return min(self.window_mb * _MEGABYTE // block, len(before) - 1)

    def _records_of(self, name: SplitName, slots: int) -> BlockRecords:
        parties = () if self.fitted is None else self.fitted.parties
        return BlockRecords(self._tables, self._split, name, parties, slots, name != "predict")

    def _fit(self) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (Σ F_m,), fitted by each party to its columns of the same training records."""
        tables, split = self._tables, self._split
        every_record = split.count("train") <= self.fit_records
        drawn = permutation(len(tables.sizes), self.seed, "scaling", "blocks")[: None if every_record else _FIT_BLOCKS]
        rows = {int(block): tables.rows_of(split, "train", int(block)) for block in drawn}
        share = min(1.0, self.fit_records / sum(map(len, rows.values())))
        for block, own in rows.items():
            some = permutation(len(own), self.seed, "scaling", block)[: ceil(share * len(own))]
            rows[block] = own[np.sort(some)]
        every, fitted = self.layout.columns, []
        for party, part in enumerate(self._cut()):
            names = [every[i] for i in part.positions.tolist()]
            numbers = np.zeros((1, len(names)))  # a normaliser that is not fitted ignores the values
            if self.normaliser.fitted:
                numbers = np.concatenate([tables.features(party, block, own).T for block, own in rows.items()])
            fitted.append(self.normaliser.of_columns(names, every).fit(torch.from_numpy(numbers)))
        return torch.cat([shift for shift, _ in fitted]), torch.cat([scale for _, scale in fitted])
