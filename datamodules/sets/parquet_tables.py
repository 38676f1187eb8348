"""Tables of several parties that are larger than memory: files with equal rows, read in blocks."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lightning.pytorch.trainer.states import TrainerFn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.hooks import toolkit_hook

from ..partitioners.partition import Views
from ..records.block_tables import BlockedTables, Columns
from ..records.feature_stores import FeatureStore
from ..records.parquet_file import ParquetFile, check_lengths
from ..records.records import Split, SplitName
from ..records.repeated_ids import check_ids
from ..records.row_split import RowSplit
from ..records.table_files import TableSource
from ..records.work_folders import WorkFolder
from .seated_blocks import SeatedBlocks
from .tables_of_parties import TablesOfParties

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ParquetTables(TablesOfParties):
    """One table for each party, all with the same records in the same order, of any length.

    Before training the tables are read once, in blocks of 4,096 rows, checked, scaled and written into a file that is
    mapped into memory. Training takes some blocks, a window, and the records of the window in random order, see
    ``lightning_vfl.schedules.blocks.BlockShuffled``. No list of all records is in memory. The columns of each table are
    numbers, or true and false; a table that has only labels (and ids) is no party.

    Args:
        tables: party -> its file or frame, as of ``CSVTables``; Parquet is read where it is, CSV files are copied into
            Parquet files first.
        label_party: the party whose file holds the labels.
        label_column: the column of the labels.
        num_classes: number of classes of the labels, which are whole numbers from 0; None: labels are real numbers.
        id_column: the column of ids, of all files or party -> column (others: ``id``). Before training the ids of all
            files are compared row by row, and predictions are written with them. None: the number of the row, from 0,
            is the id, and nothing checks that the files have the same order.
        window_mb: megabytes of features in a window, at least one block.
        fit_records: scaling is fitted to the training records of blocks that the seed draws, so many that they have
            this many records, or all blocks.
        settings: ``data_dir``, ``separator``, ``encoding``, ``val_share``, ``test_share`` and ``work_dir`` as of
            ``CSVTables``, and further settings of ``VerticalDataModule``, without ``partitioner``: each table is a
            party.

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
        training records: testing a model on files that have training records gives no warning.

    Raises:
        ConfigurationError: for files that cannot be read, have other numbers of rows, ids in another order, repeated
            ids or columns that are not numbers; for labels out of range; if a block is larger than ``window_mb``; for a
            protocol whose order or set-up goes over all records; for values that are not finite; for a full disk.
    """

    _files: SeatedBlocks | None = None
    cached = ("_work", "opened", "_tables")
    ids_are_places = True
    data_settings = ("val_share", "test_share", "num_classes", "fit_records")

    def __init__(
        self,
        tables: Mapping[str, Any],
        label_party: str,
        label_column: str,
        *,
        num_classes: int | None = 2,
        id_column: str | dict[str, str] | None = None,
        window_mb: int = 512,
        fit_records: int = 100_000,
        **settings: Any,
    ) -> None:
        super().__init__(tables, label_party, id_column=id_column, **settings)
        if not isinstance(self.partitioner, Views):
            raise ConfigurationError(
                f"each table of ParquetTables is a party, so {type(self.partitioner).__name__} cannot divide its "
                "columns; leave partitioner out"
            )
        for name, given in (("window_mb", window_mb), ("fit_records", fit_records)):
            if given < 1:
                raise ConfigurationError(f"{name} must be at least 1; got {given}")
        if num_classes is not None and num_classes < 2:
            raise ConfigurationError(f"num_classes must be at least 2, or None for real numbers; got {num_classes}")
        if label_party not in tables:
            raise ConfigurationError(f"label_party '{label_party}' has no table; tables names {', '.join(tables)}")
        self.label_column = label_column
        self.classes = num_classes
        self.window_mb = window_mb
        self.fit_records = fit_records
        self._ids: str | None = None

    @property
    def num_classes(self) -> int | None:
        return self.classes

    @property
    def has_classes(self) -> bool:
        return self.classes is not None

    @property
    def label_columns(self) -> tuple[str, ...]:
        return (self.label_column,)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        """Labels and ids of these splits, mapped into memory; features are (N, 0), because they stay on the disk."""
        if {*names} - {"predict"}:
            self._refuse_unlabelled()
        if self._ids is None:
            self.check_ids()
        return self._tables.load(names)

    def own_fitted(self) -> Mapping[str, Any]:
        """Party -> the names of its columns, in the order of the model's parties and features."""
        return {"columns": {party.file.party: list(party.names) for party in self._source.parties}}

    def forget(self) -> None:
        super().forget()
        if self._files is None:  # a seat has agreed with the others upon the records of the file as it was opened
            self._ids = None
            for cached in self.cached:
                self.__dict__.pop(cached, None)

    def _open(
        self, names: tuple[SplitName, ...], missing: Sequence[SplitName]
    ) -> tuple[Mapping[SplitName, Split], FeatureStore]:
        """The missing splits alone: the scaling is fitted to blocks of the training records."""
        if self._files is not None:
            if self.has_labels and {*missing} - {"predict"}:
                self._refuse_unlabelled()
            return self._files.splits(missing), self._files
        return self.load(tuple(missing)), self._tables

    # ---- checkpoints

    @toolkit_hook
    def state_dict(self) -> dict[str, Any]:
        """As of every data set, and the files that a fit has to be resumed with."""
        files = {party: table.fingerprint for party, table in self.opened.items()}
        return super().state_dict() | {"files": files | {"ids": self._ids}}

    @toolkit_hook
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of every data set; a fit is resumed with the same files, other runs may have others."""
        own = self.state_dict()["files"]
        trained = state_dict.get("files")
        others = [name for name in own if trained is not None and trained.get(name) != own[name]]
        if others and self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING:
            which = "have other ids" if "ids" in others else f"have changed: {', '.join(others)}"
            raise ConfigurationError(
                f"the files {which} since the fit that is resumed, so test records may have been training records; "
                "give the same files, or train anew"
            )
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "files"})

    # ---- the files of this process

    @cached_property
    def opened(self) -> dict[str, ParquetFile]:
        """Party -> its file: those of all parties, or the one that a seat reads."""
        files = {}
        for party in self.tables if self._files is None else self._files.reads:
            ids = self.id_columns.get(party)
            no_codes = [self.label_column] if ids is None else [ids, self.label_column]
            # codes such as 007 become text, which is no feature
            source = TableSource(self.tables[party], party, ids, self.forms[party], (), no_codes)
            files[party] = source.parquet(self._work.path)
        check_lengths(list(files.values()))
        return files

    def check_ids(self) -> None:
        """Accept files with the same ids in every row, none of them twice."""
        if self.id_columns:
            files = list(self.opened.values())
            self._ids = check_ids(files, self.id_columns, self.split_of(len(files[0])).ends)

    def split_of(self, rows: int) -> RowSplit:
        """How so many rows are divided."""
        return RowSplit(rows, self.seed, self.val_share, self.test_share)

    def labels_of(self, party: str) -> Columns | None:
        """The labels in a party's file; None: it has none."""
        file = self.opened[party]
        return Columns(file, (self.label_column,)) if self.label_column in file.kinds else None

    def feature_names(self, party: str) -> list[str]:
        """The columns of a party's file that are neither ids nor labels."""
        others = {self.id_columns.get(party), self.label_column if party == self.label_party else None}
        return [name for name in self.opened[party].columns if name not in others]

    def columns_of(self, party: str) -> Columns:
        """The features of a party, in the order of the model's training; the order in the file does not matter.

        Raises:
            ConfigurationError: for a file without features, for columns that are no numbers, and for other names than
                those of the training.
        """
        names = self.feature_names(party)
        if not names:
            raise ConfigurationError(f"the file of party '{party}' has no feature column; leave the party out")
        self.opened[party].check_numbers(names)
        trained = self._trained.get(party, names)
        lacking, further = (sorted(set(a).difference(b)) for a, b in ((trained, names), (names, trained)))
        if lacking or further:
            told = [f"lacks {', '.join(lacking)}"] * bool(lacking)
            told += [f"has {', '.join(further)} in addition"] * bool(further)
            raise ConfigurationError(
                f"the model was trained with other columns: the file of party '{party}' {' and '.join(told)}; "
                "give the columns of the training"
            )
        return Columns(self.opened[party], tuple(trained))

    def blocked(
        self,
        parties: Sequence[Columns],
        labels: Columns | None,
        ids: "Columns | NDArray[np.generic] | None",
        split: RowSplit,
        width: int,
    ) -> BlockedTables:
        """These tables, with the settings; see ``BlockedTables``."""
        about = (self.classes, ids, split, self.fit_records, self.window_mb, width, self._work)
        return BlockedTables(parties, labels, *about)

    # ---- inside

    @cached_property
    def _work(self) -> WorkFolder:
        return WorkFolder(self.work_dir)

    @property
    def _source(self) -> BlockedTables | SeatedBlocks:
        return self._tables if self._files is None else self._files

    def _files_of(self, party_names: Sequence[str] | None) -> SeatedBlocks:
        if self.copies:
            raise ConfigurationError("this protocol needs the labels at every party; use CSVTables with label_copies")
        return SeatedBlocks(self, self.party_names if party_names is None else party_names)

    @cached_property
    def _tables(self) -> BlockedTables:
        """The tables of all parties."""
        files = self.opened
        alone = not self.feature_names(self.label_party)  # its file has labels alone
        names = [party for party in files if not (alone and party == self.label_party)]
        if not names:
            raise ConfigurationError("no table has a feature column; give the tables of the parties")
        if self._trained and {*self._trained} != {*names}:
            raise ConfigurationError(
                f"the model was trained on the parties {', '.join(self._trained)}, these tables are of "
                f"{', '.join(names)}; give the same parties"
            )
        parties = [self.columns_of(party) for party in self._trained or names]
        first = parties[0].file
        ids = Columns(first, (self.id_columns[first.party],)) if self.id_columns else None
        width = sum(len(party.names) for party in parties)
        return self.blocked(parties, self.labels_of(self.label_party), ids, self.split_of(len(first)), width)

    @property
    def _trained(self) -> Mapping[str, Sequence[str]]:
        """Party -> its columns, as the model was trained; empty: there is no model yet."""
        return {} if self.fitted is None else self.fitted.own.get("columns", {})

    def _refuse_unlabelled(self) -> None:
        """Accept labels that are numbers."""
        label = self.labels_of(self.label_party)
        if label is None:
            raise ConfigurationError(
                f"the file of label_party '{self.label_party}' has no label column '{self.label_column}'; correct "
                "label_column, or predict these records"
            )
        label.file.check_numbers(label.names)
