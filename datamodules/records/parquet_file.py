"""The Parquet file of a party: its columns one by one, or all of them block by block."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .party_tables import refuse_equal_names

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray

_AT_ONCE = 1 << 14  # rows that are decoded together: 17 MB of 128 numbers of 8 bytes


class ParquetFile:
    """A Parquet file with rows.

    Args:
        path: the file.
        party: the name of the party, for errors.

    Units: memory, the file's index, about 700 bytes for each column of each row group; and the column, or the rows,
        that are being read. The file is mapped into memory for the time of a call.
    Guarantee: it can be used in worker processes.

    Raises:
        ConfigurationError: if the file cannot be read or has two columns of one name; in every method, if it is
            damaged.
    """

    def __init__(self, path: Path, party: str) -> None:
        self.path = path
        self.party = party
        self._index: Any = None
        self._written: tuple[int, int] | None = None
        with self._open() as file:
            self._index = file.metadata
            self._written = self._size_and_time()
            schema = file.schema_arrow
        self.kinds: Mapping[str, Any] = {field.name: field.type for field in schema}
        index = (schema.pandas_metadata or {}).get("index_columns", [])  # pandas makes no columns of these
        self.columns = [name for name in schema.names if name not in index]
        refuse_equal_names(self.columns, path, party)
        self.sizes = tuple(self._index.row_group(group).num_rows for group in range(self._index.num_row_groups))

    def __len__(self) -> int:
        rows: int = self._index.num_rows
        return rows

    def column(self, name: str) -> "pd.Series[Any]":
        """One column, as it is in the whole table."""
        with self._open() as file:
            column: pd.Series[Any] = file.read(columns=[name], use_threads=False).to_pandas()[name]
        return column

    def table(self) -> "pd.DataFrame":
        """All columns."""
        with self._open() as file:
            table: pd.DataFrame = file.read().to_pandas()
        return table

    def blocks(
        self, columns: Sequence[str], ends: "NDArray[np.int64]", wanted: Collection[int] | None = None
    ) -> "Iterator[tuple[int, list[NDArray[Any]]]]":
        """The columns (n,) of blocks of rows, in their order; missing values of numbers are NaN.

        Args:
            columns: the names.
            ends: ascending; block b has the rows from ``ends[b - 1]`` up to before ``ends[b]``, whatever the row groups
                of the file are.
            wanted: the numbers of some blocks, which alone are read; None: all.

        Returns:
            Iterator over the number of a block and its columns.
        """
        import pyarrow as pa  # 0.1 s, where it is used

        some = range(len(ends)) if wanted is None else {*wanted}
        pieces: list[pa.RecordBatch] = []
        row = 0
        for group, size in enumerate(self.sizes):
            first, last = np.searchsorted(ends, [row, row + size - 1], side="right").tolist()
            if not any(block in some for block in range(first, last + 1)):
                row += size
                continue
            for batch in self._batches(group, columns):
                while len(batch):
                    block = int(np.searchsorted(ends, row, side="right"))
                    piece = batch.slice(0, int(ends[block]) - row)
                    batch = batch.slice(len(piece))
                    row += len(piece)
                    if block not in some:
                        continue
                    pieces.append(piece)
                    if row == ends[block]:
                        whole = pa.Table.from_batches(pieces)
                        pieces = []
                        yield block, [whole.column(name).to_numpy() for name in columns]

    def check_numbers(self, columns: Sequence[str]) -> None:
        """Accept columns of numbers, or of true and false, of which the file's index says that none is missing.

        Not guaranteed: that no value is NaN, which the index does not say.

        Raises:
            ConfigurationError: naming the first other column.
        """
        import pyarrow.types as kinds

        for name in columns:
            kind = self.kinds[name]
            if not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)):
                raise ConfigurationError(
                    f"column '{name}' of party '{self.party}' is of type {kind}, but tables that are read in blocks "
                    "have numbers only; encode or drop the column, or use CSVTables"
                )
            if lacking := self.missing(name):
                raise ConfigurationError(
                    f"column '{name}' of party '{self.party}' has {lacking:,} missing values; impute or remove them "
                    "before training"
                )

    def missing(self, name: str) -> int:
        """The missing values of a column, as far as the file's index counts them."""
        chunks = [one for _, one in self._statistics(name)]
        return sum(one.null_count for one in chunks if one is not None and one.has_null_count)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what the file's index says: the columns, the row groups, and the range of each column in each.

        Not guaranteed: that other values are noticed that lie in the same ranges, or another order inside a row group.
        """
        digest = sha256(repr((self.sizes, sorted((name, str(kind)) for name, kind in self.kinds.items()))).encode())
        for name in sorted(self.kinds):
            for group, one in self._statistics(name):
                if one is not None and one.has_min_max:
                    digest.update(repr((name, group, one.min, one.max)).encode())
        return digest.hexdigest()

    # ---- inside

    def _batches(self, group: int, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        """The rows of a row group, some at a time."""
        with self._open() as file:
            yield from file.iter_batches(_AT_ONCE, row_groups=[group], columns=list(columns), use_threads=False)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """The opened file; errors while it is used become one line."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            if self._written not in (None, self._size_and_time()):  # its index would be that of other values
                raise ConfigurationError(
                    f"{self.path} of party '{self.party}' has changed while it was used; start again"
                )
            # opened anew with the index that is known: pages that stay mapped count as memory of the process
            with pq.ParquetFile(self.path, metadata=self._index, memory_map=True) as file:
                yield file
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"{self.path} of party '{self.party}' cannot be read as Parquet ({error}); correct the path or the file"
            ) from error

    def _size_and_time(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns

    def _statistics(self, name: str) -> "Iterator[tuple[int, Any]]":
        """Each row group and what the file's index says of a column in it, None where it says nothing."""
        place = [self._index.schema.column(i).path for i in range(self._index.num_columns)].index(name)
        for group in range(len(self.sizes)):
            yield group, self._index.row_group(group).column(place).statistics


def check_lengths(files: Sequence[ParquetFile]) -> None:
    """Accept files with equally many rows.

    Raises:
        ConfigurationError: for files without rows, or with more or fewer than the first file.
    """
    for file in files:
        first = files[0]
        if not len(file):
            raise ConfigurationError(f"{file.path} of party '{file.party}' has no rows; give a file with records")
        if len(file) != len(first):
            raise ConfigurationError(
                f"the file of party '{file.party}' has {len(file):,} rows and that of '{first.party}' has "
                f"{len(first):,}; give files with the same records in the same order, or use CSVTables"
            )


def check_classes(labels: "NDArray[Any]", start: int, party: str, classes: int | None) -> None:
    """Accept labels (n,) that are whole numbers from 0 to ``classes`` - 1, or with None finite numbers.

    Args:
        labels: of the rows from ``start`` on.
        start: the number of the first row.
        party: whose file it is, for errors.
        classes: how many classes there are; None: labels are real numbers.

    Raises:
        ConfigurationError: for other labels, with the rows and the party of their file.
    """
    if not len(labels):
        return
    numbers = labels.astype(np.float64)
    low, high = float(numbers.min()), float(numbers.max())  # NaN if one of them is
    whole = classes is None or bool((numbers == np.floor(numbers)).all())
    where = f"labels in rows {start:,} to {start + len(labels) - 1:,} of party '{party}'"
    if not (np.isfinite(low) and np.isfinite(high)) or not whole:
        raise ConfigurationError(
            f"{where} are missing, infinite or {'not whole numbers' if classes is not None else 'NaN'}; correct them"
        )
    if classes is not None and not 0 <= low <= high < classes:
        raise ConfigurationError(
            f"{where} run from {low:.0f} to {high:.0f}, outside 0..{classes - 1}; correct num_classes or the labels"
        )
