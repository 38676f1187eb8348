"""Tables whose columns are held one by one, in memory or in a file, so that each can be used and forgotten."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .parquet_file import ParquetFile

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


class ColumnTable(ABC):
    """A ``PartyTable`` whose rows have been put into an order.

    Args:
        index: the ids of the rows.
        columns: the names of the columns.
    """

    def __init__(self, index: "pd.Index[Any]", columns: Sequence[Any]) -> None:
        self.index = index
        self.columns = list(columns)

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.columns)

    def __contains__(self, name: Any) -> bool:
        return name in self.columns

    def __getitem__(self, name: Any) -> "pd.Series[Any]":
        if name not in self.columns:
            raise KeyError(name)
        return self._column(name)

    def pop(self, name: Any) -> "pd.Series[Any]":
        """The column, which the table forgets."""
        column = self[name]
        self.columns.remove(name)
        self._forget(name)
        return column

    @abstractmethod
    def in_order(self, rows: "NDArray[np.int64]") -> "ColumnTable":
        """Only these rows, in this order; this table must not be used any more."""

    @abstractmethod
    def _column(self, name: Any) -> "pd.Series[Any]":
        """The column of this name."""

    @abstractmethod
    def _forget(self, name: Any) -> None:
        """Free the memory of the column."""


class MemoryTable(ColumnTable):
    """Columns in memory.

    Args:
        table: a pandas table with the ids as its index; the columns share its memory until they are put into an order.
    """

    def __init__(self, table: "pd.DataFrame") -> None:
        super().__init__(table.index, list(table.columns))
        self._columns = dict(table.items())

    def in_order(self, rows: "NDArray[np.int64]") -> "MemoryTable":
        self.index = self.index.take(rows)
        for name in self.columns:  # one after the other: two tables are never in memory
            taken = self._columns[name].take(rows)
            taken.index = self.index
            self._columns[name] = taken
        return self

    def _column(self, name: Any) -> "pd.Series[Any]":
        return self._columns[name]

    def _forget(self, name: Any) -> None:
        del self._columns[name]


class StoredTable(ColumnTable):
    """Columns of a Parquet file, each read when it is asked for.

    Args:
        file: the file.
        index: the ids of its rows.
        columns: the names of its columns, without that of the ids.
        rows: the rows in their order; None: all, in the order of the file.
    """

    def __init__(
        self, file: ParquetFile, index: "pd.Index[Any]", columns: Sequence[Any], rows: "NDArray[np.int64] | None" = None
    ) -> None:
        super().__init__(index, columns)
        self._file = file
        self._rows = rows

    def in_order(self, rows: "NDArray[np.int64]") -> "StoredTable":
        of_file = rows if self._rows is None else self._rows[rows]
        return StoredTable(self._file, self.index.take(rows), self.columns, of_file)

    def _column(self, name: Any) -> "pd.Series[Any]":
        column = self._file.column(name)
        taken = column if self._rows is None else column.take(self._rows)
        return taken.set_axis(self.index)

    def _forget(self, name: Any) -> None:
        """Nothing is in memory."""


def some_columns(table: ColumnTable, names: Sequence[Any]) -> MemoryTable:
    """These columns of the table, in memory."""
    import pandas as pd

    return MemoryTable(pd.DataFrame({name: table[name] for name in names}, index=table.index))


def together(columns: "Mapping[Any, pd.Series[Any]]") -> "pd.DataFrame":
    """The columns side by side."""
    import pandas as pd

    return pd.DataFrame(dict(columns))
