"""Tables of several parties that are larger than memory: Parquet files with equal rows, read in blocks."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.pytorch.trainer.states import TrainerFn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.hooks import toolkit_hook

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner, Views
from ..records.block_files import BlockTable, check_blocks
from ..records.block_tables import BlockedTables
from ..records.feature_stores import FeatureStore
from ..records.joined_tables import paths_of
from ..records.layout import Layout
from ..records.number_files import WorkFolder
from ..records.party_tables import by_party
from ..records.records import Split, SplitName
from ..records.repeated_ids import check_ids
from ..records.row_split import RowSplit
from ..split import check_shares

_CACHED = ("_opened", "_tables")


class ParquetTables(VerticalDataModule):
    """One Parquet file for each party, all with the same records in the same order, of any length.

    A row group of a file is a block. Before training the blocks are read once, checked, scaled and written into a file
    that is mapped into memory. Training takes some blocks, a window, and the records of the window in random order, see
    ``lightning_vfl.schedules.blocks.BlockShuffled``. No list of all records is in memory. The columns of each file are
    numbers, or true and false; a file that has only labels (and ids) is no party.

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
        work_dir: folder on a disk in which the records are written; what is written there is removed at the end. None:
            the folder of the system for temporary files.
        loader: further settings of ``VerticalDataModule``, without ``partitioner``: each table is a party.

    Units: memory, ``window_mb`` for training and a block for each other split, the index of each file (700 bytes for
        a column of a row group), and nothing for each record. Disk, 4 bytes a feature and 16 a record of the splits
        that are used, in every process of a training.
    Guarantee: the records of a split are a function of the number of rows, the shares and the seed (``RowSplit``), and
        the order of an epoch one of the seed, the epoch, the row groups and ``window_mb``. A resumed run continues with
        the next batch. Labels, ids, the kinds of columns and missing values (which a file's index counts) are checked
        before training, and so is every value. Features are the same bits for any window. A trained model finds its
        columns by their names, in any order.
    Not guaranteed: a uniformly random order, see ``BlockShuffled``; shares by class. A checkpoint has digests of the
        ids, or of the files' indexes, by which a fit that is resumed with other files is refused, but no list of the
        training records: testing a model on files that have training records gives no warning. Not between processes of
        a federation: one process reads all files.

    Raises:
        ConfigurationError: for files that cannot be read, have other row groups, ids in another order, repeated ids
            or columns that are not numbers; for labels out of range; if a block is larger than ``window_mb``; for a
            protocol whose order or set-up goes over all records; for values that are not finite; for a full disk.
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
        work_dir: str | Path | None = None,
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
        self.work_dir = work_dir
        self._ids: str | None = None

    @property
    def num_classes(self) -> int | None:
        return self.classes

    @property
    def layout(self) -> Layout:
        tables = self._tables
        parties = tuple(table.party for table in tables.tables)
        return Layout((len(tables.names),), tables.names, tuple(map(len, tables.columns)), parties)

    @classmethod
    def refuse_seats(cls) -> None:
        raise ConfigurationError(
            "ParquetTables are simulated in one process, not between processes yet; use CSVTables for a federation"
        )

    def default_partitioner(self) -> Partitioner:
        return Views()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        """Labels and ids of these splits, mapped into memory; features are (N, 0), because they stay on the disk."""
        if {*names} - {"predict"}:
            label = self._opened[self.label_party]
            if self.label_column not in label.kinds:
                raise ConfigurationError(
                    f"the file of label_party '{label.party}' has no label column '{self.label_column}'; correct "
                    "label_column, or predict these records"
                )
            label.check_numbers([self.label_column])
        if self.id_columns and self._ids is None:
            self._ids = check_ids(list(self._opened.values()), self.id_columns)
        return self._tables.load(names)

    def own_fitted(self) -> Mapping[str, Any]:
        """Party -> the names of its columns, in the order of the model's parties and features."""
        tables = self._tables
        return {"columns": {t.party: list(own) for t, own in zip(tables.tables, tables.columns, strict=True)}}

    def forget(self) -> None:
        super().forget()
        self._ids = None
        for cached in _CACHED:
            self.__dict__.pop(cached, None)

    def __getstate__(self) -> dict[str, Any]:
        """Without the files, which another process opens and prepares anew if it needs them."""
        return {name: value for name, value in self.__dict__.items() if name not in _CACHED}

    def _open(
        self, names: tuple[SplitName, ...], missing: Sequence[SplitName]
    ) -> tuple[Mapping[SplitName, Split], FeatureStore]:
        """The missing splits alone: the scaling is fitted to blocks of the training records."""
        return self.load(tuple(missing)), self._tables

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
        split = RowSplit(sum(label.sizes), self.seed, self.val_share, self.test_share)
        return BlockedTables(
            [files[party] for party in of_party],
            list(of_party.values()),
            labelled,
            self.label_column,
            self.classes,
            id_column,
            split,
            self.fit_records,
            self.window_mb,
            WorkFolder(self.work_dir),
        )

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
