"""Repeated ids in a file that is read in blocks, found in memory that does not grow with the file."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .parquet_file import ParquetFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


_AT_ONCE = 2**23  # hashes that are sorted together: 64 MB


def ascend(ids: "NDArray[Any]", before: Any) -> bool:
    """Whether ids ascend strictly, after the id ``before`` (None: they are the first), so that none is repeated."""
    if not len(ids):
        return True
    return bool((ids[1:] > ids[:-1]).all()) and (before is None or bool(ids[0] > before))


def refuse_repeated(table: ParquetFile, id_column: str, ends: "NDArray[np.int64]") -> None:
    """Refuse a file in which an id occurs twice. The ids are read once for every 8 million rows, and once more.

    Args:
        table: the file.
        id_column: its column of ids.
        ends: of the blocks that are read.

    Raises:
        ConfigurationError: naming the file, an id, and two of its rows.
    """
    parts = max(1, ceil(len(table) / _AT_ONCE))
    for part in range(parts):
        hashes = np.concatenate([own[own % parts == part] for _, own in _hashed(table, id_column, ends)])
        hashes.sort()
        twice = hashes[1:][hashes[1:] == hashes[:-1]]
        if len(twice):  # equal ids, or different ones with equal hashes
            _refuse_equal(table, id_column, ends, twice)


def _refuse_equal(table: ParquetFile, id_column: str, ends: "NDArray[np.int64]", twice: "NDArray[np.uint64]") -> None:
    """Compare the ids themselves that have these hashes."""
    seen: dict[str, int] = {}
    start = 0
    for ids, own in _hashed(table, id_column, ends):
        for row in np.flatnonzero(np.isin(own, twice)).tolist():
            first = seen.setdefault(str(ids[row]), start + row)
            if first != start + row:
                raise ConfigurationError(
                    f"{table.path} of party '{table.party}' has id {ids[row]} in row {first:,} and in row "
                    f"{start + row:,}; remove repeated records from all files"
                )
        start += len(ids)


def _hashed(
    table: ParquetFile, id_column: str, ends: "NDArray[np.int64]"
) -> "Iterator[tuple[NDArray[Any], NDArray[np.uint64]]]":
    """The ids of each block, and 64-bit hashes of them."""
    from pandas.util import hash_array

    for _, (ids,) in table.blocks([id_column], ends):
        yield ids, hash_array(ids, categorize=False)


def check_ids(tables: Sequence[ParquetFile], id_columns: Mapping[str, str], ends: "NDArray[np.int64]") -> str:
    """Accept files with the same ids in every row; a block of ids of two files is in memory at a time.

    Args:
        tables: the files of all parties.
        id_columns: party -> the column of its ids.
        ends: of the blocks that are read.

    Returns:
        A digest of the ids in their order.

    Raises:
        ConfigurationError: for a file without the column, rows without an id, ids of different kinds, repeated ids,
            and for the first row with another id.
    """
    kinds = []
    for table in tables:
        id_column = id_columns[table.party]
        if id_column not in table.kinds:
            raise ConfigurationError(
                f"the file of party '{table.party}' has no id column '{id_column}'; correct id_column, or leave it "
                "out if all files have the same records in the same order"
            )
        if lacking := table.missing(id_column):
            raise ConfigurationError(
                f"{lacking:,} rows of the file of party '{table.party}' have no id in column '{id_column}'; add ids or "
                "remove the rows from all files"
            )
        kinds.append(table.kinds[id_column])
        if _are_numbers(kinds[-1]) != _are_numbers(kinds[0]):
            raise ConfigurationError(
                f"ids are {kinds[-1]} in the file of party '{table.party}' and {kinds[0]} in that of "
                f"'{tables[0].party}'; write ids of one kind"
            )
    first, *others = tables
    digest = sha256()
    ordered = True
    before = None
    start = 0
    passes = [table.blocks([id_columns[table.party]], ends) for table in tables]
    for (_, (ids,)), *blocks in zip(*passes, strict=True):
        ordered = ordered and ascend(ids, before)
        before = ids[-1]
        digest.update(ids.tobytes() if ids.dtype.kind in "iuf" else "\0".join(map(str, ids)).encode())
        for table, (_, (own,)) in zip(others, blocks, strict=True):
            if (other := ids != own).any():
                row = int(np.argmax(other))
                for one in (first, table):
                    # a record too many in one file shifts all others
                    refuse_repeated(one, id_columns[one.party], ends)
                raise ConfigurationError(
                    f"row {start + row:,} has id {own[row]} in the file of party '{table.party}' and {ids[row]} in "
                    f"that of '{first.party}'; write all files in the same order, or use CSVTables, which joins them"
                )
        start += len(ids)
    if not ordered:
        refuse_repeated(first, id_columns[first.party], ends)
    return digest.hexdigest()


def _are_numbers(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_integer(kind) or kinds.is_floating(kind))
