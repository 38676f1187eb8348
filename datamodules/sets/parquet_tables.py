"""Tables of several parties that are larger than memory: files with equal rows, read in blocks."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.pytorch.trainer.states import TrainerFn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.hooks import toolkit_hook

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner, Views
from ..records.block_tables import BlockedTables, Columns
from ..records.feature_stores import FeatureStore
from ..records.frames import files_of_frames
from ..records.joined_tables import paths_of, refuse_other_tables
from ..records.layout import Layout
from ..records.number_files import WorkFolder
from ..records.parquet_file import ParquetFile, check_lengths
from ..records.party_tables import by_party, csv_forms
from ..records.records import Split, SplitName
from ..records.repeated_ids import check_ids
from ..records.row_split import RowSplit
from ..records.table_files import parquet_file
from ..split import check_shares

_CACHED = ("_work", "_opened", "_tables")


class ParquetTables(VerticalDataModule):
    """One table for each party, all with the same records in the same order, of any length.

    Before training the tables are read once, in blocks of 4,096 rows, checked, scaled and written into a file that is
    mapped into memory. Training takes some blocks, a window, and the records of the window in random order, see
    ``lightning_vfl.schedules.blocks.BlockShuffled``. No list of all records is in memory. The columns of each table are
    numbers, or true and false; a table that has only labels (and ids) is no party.

    Args:
        tables: party -> its file, or its frame of pandas, polars or pyarrow; ``.parquet`` and ``.pq`` are Parquet,
            which is read where it is; all other files are read as CSV with a first row of names, and copied first.
        label_party: the party whose file holds the labels.
        label_column: the column of the labels.
        data_dir: the folder in which relative file names are looked up; None: the working folder.
        num_classes: number of classes of the labels, which are whole numbers from 0; None: labels are real numbers.
        id_column: the column of ids, of all files or party -> column (others: ``id``). Before training the ids of all
            files are compared row by row, and predictions are written with them. None: the number of the row, from 0,
            is the id, and nothing checks that the files have the same order.
        separator: the character between the fields of a CSV file, of all files or party -> separator (others: a comma).
        encoding: of the text of a CSV file, as Python names it, of all files or party -> encoding (others: ``utf-8``).
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing; 0: none. All records are predicted.
        window_mb: megabytes of features in a window, at least one block.
        fit_records: scaling is fitted to the training records of blocks that the seed draws, so many that they have
            this many records, or all blocks.
        work_dir: folder on a disk in which the records are written; what is written there is removed at the end. None:
            the folder of the system for temporary files.
        loader: further settings of ``VerticalDataModule``, without ``partitioner``: each table is a party.

    Units: memory, ``window_mb`` for training and a block for each other split, the index of each file (700 bytes for
        a column of a row group), and nothing for each record. Disk, 4 bytes a feature and 16 a record of the splits
        that are used, in every process of a training, and a copy of CSV files, 8 bytes a number.
    Guarantee: the records of a split are a function of the number of rows, the shares and the seed (``RowSplit``), and
        the order of an epoch one of these, the epoch, the number of features and ``window_mb``; how a file is stored
        changes no bit. A resumed run continues with the next batch. Labels, ids, the kinds of columns and missing
        values (which a file's index counts) are checked before training, and so is every value. Features are the same
        bits for any window. A trained model finds its columns by their names, in any order.
    Not guaranteed: a uniformly random order, see ``BlockShuffled``; shares by class. A checkpoint has digests of the
        ids, or of the files' indexes, by which a fit that is resumed with other files is refused, but no list of the
        training records: testing a model on files that have training records gives no warning. Not between processes of
        a federation: one process reads all files.

    Raises:
        ConfigurationError: for files that cannot be read, have other numbers of rows, ids in another order, repeated
            ids or columns that are not numbers; for labels out of range; if a block is larger than ``window_mb``; for a
            protocol whose order or set-up goes over all records; for values that are not finite; for a full disk.
    """

    ids_are_places = True
    data_settings = ("val_share", "test_share", "num_classes", "fit_records")

    def __init__(
        self,
        tables: Mapping[str, Any],  # as of CSVTables
        label_party: str,
        label_column: str,
        *,
        data_dir: str | Path | None = None,
        num_classes: int | None = 2,
        id_column: str | dict[str, str] | None = None,
        separator: str | dict[str, str] = ",",
        encoding: str | dict[str, str] = "utf-8",
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
        refuse_other_tables(tables)
        if label_party not in tables:
            raise ConfigurationError(f"label_party '{label_party}' has no table; tables names {', '.join(tables)}")
        self.label_party = label_party
        self.label_column = label_column
        self.id_columns = {} if id_column is None else by_party("id_column", id_column, tables, "id")
        files, self._frames = files_of_frames(tables, self.id_columns or dict.fromkeys(tables, ""), work_dir)
        self.tables = paths_of(files, data_dir)
        self.forms = csv_forms(tables, separator, encoding)
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
        return self._tables.layout

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
            self._ids = check_ids(list(self._opened.values()), self.id_columns, self._split.ends)
        return self._tables.load(names)

    def own_fitted(self) -> Mapping[str, Any]:
        """Party -> the names of its columns, in the order of the model's parties and features."""
        return {"columns": {party.file.party: list(party.names) for party in self._tables.parties}}

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
    def _work(self) -> WorkFolder:
        return WorkFolder(self.work_dir)

    @cached_property
    def _opened(self) -> dict[str, ParquetFile]:
        """Party -> its file."""
        files = {
            party: parquet_file(path, party, self.id_columns.get(party), self.forms[party], (), self._work.path)
            for party, path in self.tables.items()
        }
        check_lengths(list(files.values()))
        return files

    @property
    def _split(self) -> RowSplit:
        rows = len(self._opened[self.label_party])
        return RowSplit(rows, self.seed, self.val_share, self.test_share)

    @cached_property
    def _tables(self) -> BlockedTables:
        files = self._opened
        own = {party: self._features_of(party) for party in files}
        if not own[self.label_party]:
            del own[self.label_party]  # its file has labels alone
        for party, names in own.items():
            if not names:
                raise ConfigurationError(f"the file of party '{party}' has no feature column; leave the party out")
            files[party].check_numbers(names)
        if not own:
            raise ConfigurationError("no table has a feature column; give the tables of the parties")
        parties = [Columns(files[party], tuple(names)) for party, names in self._as_trained(own).items()]
        label = files[self.label_party]
        first = parties[0].file
        return BlockedTables(
            parties,
            Columns(label, (self.label_column,)) if self.label_column in label.kinds else None,
            self.classes,
            Columns(first, (self.id_columns[first.party],)) if self.id_columns else None,
            self._split,
            self.fit_records,
            self.window_mb,
            sum(len(party.names) for party in parties),
            self._work,
        )

    def _features_of(self, party: str) -> list[str]:
        """The columns of a party's file that are neither ids nor labels."""
        others = {self.id_columns.get(party), self.label_column if party == self.label_party else None}
        return [name for name in self._opened[party].columns if name not in others]

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
