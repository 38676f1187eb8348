"""Read the tables of all parties, and find the records that they have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .column_tables import ColumnTable, MemoryTable
from .grouped_tables import refuse_shared_ids
from .party_tables import CSVForm, PartyTable, common_ids, kind_of, listed, plain_ids
from .table_files import TableSource
from .work_folders import WorkFolder, work_folder

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Joined:
    """The records that are used.

    Args:
        ids: (N,) sorted.
        tables: party -> its columns, its records in the order of the ids.
        held: party -> (N,) bool, which records it has; None: all.
        groups: the groups of tables; every table is in one.
        labels: the columns of the labels as in the file; None: a new table without labels.
        split: the column that divides the records; None: there is none.
        weights: the column of the sample weights; None: there is none.
        left_out: party -> the ids of its records that are not used, because some party lacks them.
    """

    ids: "NDArray[np.generic]"
    tables: dict[str, ColumnTable]
    held: "dict[str, NDArray[np.bool_] | None]"
    groups: tuple[tuple[str, ...], ...]
    labels: "pd.DataFrame | None"
    split: "pd.Series[Any] | None"
    weights: "pd.Series[Any] | None"
    left_out: "dict[str, NDArray[np.generic]]"

    def trained(self, train: "NDArray[np.int64]") -> "dict[str, NDArray[np.bool_]]":
        """Party -> (n,) bool, which of its records are training records, whose positions are given.

        Raises:
            ConfigurationError: for a party without training records.
        """
        among = np.zeros(len(self.ids), dtype=np.bool_)
        among[train] = True
        trained = {party: among if held is None else among[held] for party, held in self.held.items()}
        if idle := [party for party, rows in trained.items() if not rows.any()]:
            raise ConfigurationError(
                f"party '{idle[0]}' holds none of the {len(train)} training records; use another seed or overlap, "
                "or leave its table out"
            )
        return trained


def refuse_other_tables(tables: object) -> None:
    """Accept a table for each party.

    Raises:
        ConfigurationError: for one table alone, such as a pandas frame.
    """
    if not isinstance(tables, Mapping):
        raise ConfigurationError(
            f"tables must give each party a file or a frame, such as {{'bank': 'bank.csv'}}; got a "
            f"{type(tables).__name__}"
        )


def paths_of(tables: Mapping[str, str | Path], folder: str | Path | None) -> dict[str, Path]:
    """Party -> the path of its file.

    Args:
        tables: party -> its file.
        folder: in which relative names are looked up; None: the working folder.
    """
    return {party: Path(folder or ".") / path for party, path in tables.items()}


class TextColumns(NamedTuple):
    """Which columns of a CSV file are read as text.

    Args:
        names: these, which the file need not have; None: all.
        no_codes: columns that are not read as text if they have codes such as 007; None: no column is.
    """

    names: tuple[str, ...] | None
    no_codes: tuple[str, ...] | None = None


class TableReader:
    """The tables of some parties. Each file is opened once and parsed once, whoever asks for its table.

    Args:
        paths: party -> its file.
        id_columns: party -> the column of the ids.
        forms: party -> how its CSV file is written.
        work_dir: where the columns of tables are stored, see ``work_folder``.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        id_columns: Mapping[str, str],
        forms: Mapping[str, CSVForm],
        work_dir: str | Path | None,
    ) -> None:
        self.paths = paths
        self._id_columns = id_columns
        self._forms = forms
        self._work_dir = work_dir
        self._text: Mapping[str, TextColumns] | None = None  # of the last reading
        self._tables: dict[str, ColumnTable] | None = None  # of the last reading, until they are taken

    @cached_property
    def work(self) -> WorkFolder | None:
        """The folder in which tables are prepared; None: in memory. It is removed when nothing uses it any more."""
        return work_folder(self.paths.values(), self._work_dir)

    def has_read(self, text: Mapping[str, TextColumns]) -> bool:
        """Whether the last reading took these columns as text."""
        return self._text == text

    def tables(self, text: Mapping[str, TextColumns]) -> dict[str, ColumnTable]:
        """Party -> its table.

        Args:
            text: party -> columns to read as text. If others were read as text, the files are read again.

        Raises:
            ConfigurationError: for files that cannot be read, and ids that are not of the same kind in all of them.
        """
        if self._tables is None or not self.has_read(text):
            if self._text is not None:  # records of the reading before may still use its folder
                self.__dict__.pop("work", None)
            self._text = text
            self._tables = {party: self._read(party, text[party]) for party in self.paths}
            check_kinds(self._tables)
        return self._tables

    def take(self, text: Mapping[str, TextColumns]) -> dict[str, ColumnTable]:
        """``tables``, which may be changed; to give them once more, the files are read again."""
        tables = self.tables(text)
        self._tables = None
        return tables

    def _read(self, party: str, text: TextColumns) -> ColumnTable:
        source = TableSource(self.paths[party], party, self._id_columns[party], self._forms[party], *text)
        return MemoryTable(source.read()) if self.work is None else source.store(self.work.path)


def check_kinds(tables: "Mapping[str, PartyTable]") -> None:
    """Accept tables whose ids are of the same kind.

    Raises:
        ConfigurationError: if they are not.
    """
    if not tables:
        return
    first = next(iter(tables))
    kind = kind_of(tables[first].index)
    for party, table in tables.items():
        if kind_of(table.index) != kind:
            raise ConfigurationError(
                f"ids of party '{party}' are {kind_of(table.index)} but those of party '{first}' are "
                f"{kind}; write them in the same form in all files, and read frames with dtype=str for this column"
            )


def check_label_column(tables: "Mapping[str, PartyTable]", party: str, column: str) -> None:
    """Accept tables of which the party's has the label column.

    Raises:
        ConfigurationError: if there is no such table, or no such column in it.
    """
    if party not in tables:
        raise ConfigurationError(f"label_party '{party}' has no table; use one of {', '.join(tables)}")
    if column not in tables[party]:
        others = [other for other, table in tables.items() if column in table]
        raise ConfigurationError(
            f"party '{party}' has no label column '{column}', only {listed(tables[party])}; correct label_column"
            + (f", or label_party: '{others[0]}' has such a column" if others else "")
        )


def join(
    tables: dict[str, ColumnTable], groups: Sequence[tuple[str, ...]], inner: bool, kept: str
) -> "tuple[NDArray[np.generic], dict[str, NDArray[np.bool_] | None], dict[str, NDArray[np.generic]], str]":
    """Put the tables into the order of the joined records; returns their sorted ids and which of them each party has.

    Args:
        tables: party -> its table, which is replaced.
        groups: the groups of tables; every table is in one.
        inner: whether a record must be in a table of every group.
        kept: else, the table of which all records are used; if there is none, all records of all tables are.

    Returns:
        (N,) ids; party -> (N,) bool, None for all; party -> the ids of its other records; a text that says how many
        records each party has.

    Raises:
        ConfigurationError: for ids in several tables of a group, and tables without an id in common.
    """
    refuse_shared_ids(tables, groups)
    if inner:
        needed = groups
    else:
        needed = ((kept,),) if kept in tables else (tuple(tables),)
    ids = common_ids(tables, needed)
    held: dict[str, NDArray[np.bool_] | None] = {}
    left_out: dict[str, NDArray[np.generic]] = {}
    counts = []
    for party in list(tables):  # one after the other: the memory of the table in the file's order is free again
        own = plain_ids(tables[party].index)
        rows, places = _matched(own, ids)
        there = np.zeros(len(ids), dtype=np.bool_)
        there[places] = True
        held[party] = None if len(rows) == len(ids) else there
        if more := len(own) - len(rows):  # a process of a federation does not know those of other parties
            others = np.ones(len(own), dtype=np.bool_)
            others[rows] = False
            left_out[party] = own[others]
        counts.append(f"'{party}' holds {len(rows)} of them" + (f", {more} more are left out" if more else ""))
        tables[party] = tables[party].in_order(rows)
    return ids, held, left_out, f"{len(ids)} joined records; {', '.join(counts)}"


def _matched(own: "NDArray[np.generic]", ids: "NDArray[np.generic]") -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """The rows of the ids that are among the sorted ids, in the order of these, and their places there."""
    order = np.argsort(own, kind="stable")
    ascending = own[order]
    places = np.searchsorted(ids, ascending)
    places[places == len(ids)] = 0
    found = ids[places] == ascending
    return order[found], places[found]
