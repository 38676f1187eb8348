"""Repeated ids in a file that is read in blocks, found in memory that does not grow with the file."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .block_files import BlockTable, _are_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray


_AT_ONCE = 2**23  # hashes that are sorted together: 64 MB


def ascend(ids: "NDArray[Any]", before: Any) -> bool:
    """Whether ids ascend strictly, after the id ``before`` (None: they are the first), so that none is repeated."""
    if not len(ids):
        return True
    return bool((ids[1:] > ids[:-1]).all()) and (before is None or bool(ids[0] > before))


def refuse_repeated(table: BlockTable, id_column: str) -> None:
    """Refuse a file in which an id occurs twice. The ids are read once for every 8 million rows, and once more.

    Raises:
        ConfigurationError: naming the file, an id, and two of its rows.
    """
    parts = max(1, ceil(sum(table.sizes) / _AT_ONCE))
    for part in range(parts):
        hashes = np.concatenate([own[own % parts == part] for _, own in _hashed(table, id_column)])
        hashes.sort()
        twice = hashes[1:][hashes[1:] == hashes[:-1]]
        if len(twice):  # equal ids, or different ones with equal hashes
            _refuse_equal(table, id_column, twice)


def _refuse_equal(table: BlockTable, id_column: str, twice: "NDArray[np.uint64]") -> None:
    """Compare the ids themselves that have these hashes."""
    seen: dict[str, int] = {}
    start = 0
    for ids, own in _hashed(table, id_column):
        for row in np.flatnonzero(np.isin(own, twice)).tolist():
            first = seen.setdefault(str(ids[row]), start + row)
            if first != start + row:
                raise ConfigurationError(
                    f"{table.path} of party '{table.party}' has id {ids[row]} in row {first:,} and in row "
                    f"{start + row:,}; remove repeated records from all files"
                )
        start += len(ids)


def _hashed(table: BlockTable, id_column: str) -> "Iterator[tuple[NDArray[Any], NDArray[np.uint64]]]":
    """The ids of each block, and 64-bit hashes of them."""
    from pandas.util import hash_array

    for block in range(len(table.sizes)):
        (ids,) = table.read(block, [id_column])
        yield ids, hash_array(ids, categorize=False)


def check_ids(tables: Sequence[BlockTable], id_columns: Mapping[str, str]) -> str:
    """Accept files with the same ids in every row; a block of ids of two files is in memory at a time.

    Args:
        tables: the files of all parties.
        id_columns: party -> the column of its ids.

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
    first, start, digest = tables[0], 0, sha256()
    ordered, before = True, None
    for block, size in enumerate(first.sizes):
        (ids,) = first.read(block, [id_columns[first.party]])
        ordered = ordered and ascend(ids, before)
        before = ids[-1] if len(ids) else before
        digest.update(ids.tobytes() if ids.dtype.kind in "iuf" else "\0".join(map(str, ids)).encode())
        for table in tables[1:]:
            (own,) = table.read(block, [id_columns[table.party]])
            if (other := ids != own).any():
                row = int(np.argmax(other))
                for one in (first, table):
                    refuse_repeated(one, id_columns[one.party])  # a record too many in one file shifts all others
                raise ConfigurationError(
                    f"row {start + row:,} has id {own[row]} in the file of party '{table.party}' and {ids[row]} in "
                    f"that of '{first.party}'; write all files in the same order, or use CSVTables, which joins them"
                )
        start += size
    if not ordered:
        refuse_repeated(first, id_columns[first.party])
    return digest.hexdigest()
