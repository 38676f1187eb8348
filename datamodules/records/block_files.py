"""Parquet files of several parties with the same rows in the same order, read block by block."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BlockTable:
    """The Parquet file of one party. A block is a row group of the file.

    Args:
        path: the file.
        party: the name of the party, for errors.

    Units: memory, the file's index, about 700 bytes for each column of each block; and the columns of a block while
        they are read. The file is mapped into memory for the time of a call.
    Guarantee: it can be used in worker processes.

    Raises:
        ConfigurationError: if the file cannot be read.
    """

    def __init__(self, path: Path, party: str) -> None:
        self.path = path
        self.party = party
        self._index: Any = None
        with self._open() as file:
            self._index, schema = file.metadata, file.schema_arrow
        self.sizes = tuple(self._index.row_group(block).num_rows for block in range(self._index.num_row_groups))
        self.kinds: Mapping[str, Any] = {field.name: field.type for field in schema}

    def read(self, block: int, columns: Sequence[str]) -> "list[NDArray[Any]]":
        """The columns (n,) of a block; missing values of numbers are NaN.

        Raises:
            ConfigurationError: if the file is damaged.
        """
        with self._open() as file:
            table = file.read_row_group(block, columns=list(columns), use_threads=False)
        return [table.column(name).to_numpy() for name in columns]

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """The opened file; errors while it is used become one line."""
        import pyarrow as pa  # 0.1 s, where it is used
        import pyarrow.parquet as pq

        try:
            # opened anew with the index that is known: pages that stay mapped count as memory of the process
            with pq.ParquetFile(self.path, metadata=self._index, memory_map=True) as file:
                yield file
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"{self.path} of party '{self.party}' cannot be read as Parquet ({error}); correct the path or the file"
            ) from error

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
        """A digest of what the file's index says: the columns, the blocks, and the range of each column in each block.

        Not guaranteed: that other values are noticed that lie in the same ranges, or another order inside a block.
        """
        digest = sha256(repr((self.sizes, sorted((name, str(kind)) for name, kind in self.kinds.items()))).encode())
        for name in sorted(self.kinds):
            for block, one in self._statistics(name):
                if one is not None and one.has_min_max:
                    digest.update(repr((name, block, one.min, one.max)).encode())
        return digest.hexdigest()

    def _statistics(self, name: str) -> "Iterator[tuple[int, Any]]":
        """Each block and what the file's index says of a column in it, None where it says nothing."""
        place = [self._index.schema.column(i).path for i in range(self._index.num_columns)].index(name)
        for block in range(len(self.sizes)):
            yield block, self._index.row_group(block).column(place).statistics


def check_blocks(tables: Sequence[BlockTable]) -> None:
    """Accept files with the same blocks.

    Raises:
        ConfigurationError: for files without rows, or with other blocks than the first file.
    """
    first = tables[0]
    for table in tables:
        if not sum(table.sizes):
            raise ConfigurationError(f"{table.path} of party '{table.party}' has no rows; give a file with records")
        if sum(table.sizes) != sum(first.sizes):
            raise ConfigurationError(
                f"the file of party '{table.party}' has {sum(table.sizes):,} rows and that of '{first.party}' has "
                f"{sum(first.sizes):,}; give files with the same records in the same order, or use CSVTables"
            )
        if table.sizes != first.sizes:
            raise ConfigurationError(
                f"the file of party '{table.party}' has {len(table.sizes)} row groups and that of '{first.party}' has "
                f"{len(first.sizes)}, or groups of other sizes; write all files with the same row_group_size"
            )


def _are_numbers(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_floating(kind))


def check_classes(labels: "NDArray[Any]", block: int, party: str, classes: int | None) -> None:
    """Accept labels (n,) that are whole numbers from 0 to ``classes`` - 1, or with None finite numbers.

    Raises:
        ConfigurationError: for other labels, with the block and the party of their file.
    """
    if not len(labels):
        return
    numbers = labels.astype(np.float64)
    low, high = float(numbers.min()), float(numbers.max())  # NaN if one of them is
    whole = classes is None or bool((numbers == np.floor(numbers)).all())
    if not (np.isfinite(low) and np.isfinite(high)) or not whole:
        raise ConfigurationError(
            f"labels in row group {block} of party '{party}' are missing, infinite or "
            f"{'not whole numbers' if classes is not None else 'NaN'}; correct them"
        )
    if classes is not None and not 0 <= low <= high < classes:
        raise ConfigurationError(
            f"labels in row group {block} of party '{party}' run from {low:.0f} to {high:.0f}, outside "
            f"0..{classes - 1}; correct num_classes or the labels"
        )
