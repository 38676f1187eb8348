"""The settings and seats that data sets share whose parties have a table each."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner, Views
from ..records.frames import files_of_frames
from ..records.joined_tables import paths_of, refuse_other_tables
from ..records.layout import Layout
from ..records.party_tables import by_party, csv_forms
from ..split import check_shares


class TablesOfParties(VerticalDataModule):
    """A table for each party, a file or a frame, with labels in one.

    Args:
        tables: party -> its file, or its frame of pandas, polars or pyarrow; ``.parquet`` and ``.pq`` are Parquet, all
            other files are read as CSV with a first row of names. Columns of a frame keep their types; a frame is
            written into a Parquet file below ``work_dir``, which is removed at the end. The ids may be the index of a
            pandas frame with the name of ``id_column``.
        label_party: the party whose file holds the labels.
        id_column: the column of the ids, whole numbers or text, of all files or party -> column (other parties:
            ``id``); None: the tables have no ids.
        data_dir: the folder in which relative file names are looked up; None: the working folder.
        separator: the character between the fields of a CSV file, of all files or party -> separator (others: a comma).
        encoding: of the text of a CSV file, as Python names it, of all files or party -> encoding (others: ``utf-8``).
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        work_dir: folder on a disk in which tables are prepared and mapped into memory; what is written there is removed
            at the end. None: the folder of the system for temporary files; ``CSVTables`` prepares files of at most
            512 MB together in memory.
        loader: further settings of ``VerticalDataModule``.
    """

    own_files = True
    groups: tuple[tuple[str, ...], ...] = ()
    """Tables with the same columns for different records."""
    label_copies: tuple[str, ...] = ()
    """Parties whose tables have the labels too."""
    cached: ClassVar[tuple[str, ...]] = ()
    """What another process opens and prepares anew if it needs it."""

    def __init__(
        self,
        tables: Mapping[str, Any],  # with Frame in it, the command line would read files as tables of tables
        label_party: str,
        *,
        id_column: str | dict[str, str] | None = "id",
        data_dir: str | Path | None = None,
        separator: str | dict[str, str] = ",",
        encoding: str | dict[str, str] = "utf-8",
        val_share: float = 0.1,
        test_share: float = 0.2,
        work_dir: str | Path | None = None,
        **loader: Any,
    ) -> None:
        super().__init__(**loader)
        check_shares(val_share, test_share)
        refuse_other_tables(tables)
        parties = {**tables, label_party: ""}
        self.label_party = label_party
        self.id_columns = {} if id_column is None else by_party("id_column", id_column, parties, "id")
        files, self._frames = files_of_frames(tables, self.id_columns or dict.fromkeys(tables, ""), work_dir)
        self.tables = paths_of(files, data_dir)
        self.forms = csv_forms(parties, separator, encoding)
        self.data_dir = data_dir
        self.val_share = val_share
        self.test_share = test_share
        self.work_dir = work_dir

    @property
    @abstractmethod
    def _source(self) -> Any:
        """The tables of this process."""

    @property
    @abstractmethod
    def label_columns(self) -> tuple[str, ...]:
        """The columns of the labels."""

    @property
    @abstractmethod
    def has_classes(self) -> bool:
        """Whether labels are classes; else they are real numbers."""

    @property
    def counted(self) -> Sequence[tuple[str, str]]:
        """Parties and columns whose steps need counts of the labels; default: none."""
        return ()

    @property
    def layout(self) -> Layout:
        layout: Layout = self._source.layout
        return layout

    def default_partitioner(self) -> Partitioner:
        return Views()

    def __getstate__(self) -> dict[str, Any]:
        """Without the tables, which another process reads anew if it needs them."""
        return {name: value for name, value in self.__dict__.items() if name not in self.cached}
