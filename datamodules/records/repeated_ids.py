"""Repeated ids in a file that is read in blocks, found in memory that does not grow with the file."""

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .block_files import BlockTable

_AT_ONCE = 2**23  # hashes that are sorted together: 64 MB


def ascend(ids: "NDArray[Any]", before: Any) -> bool:
    """Whether ids ascend strictly, after the id ``before`` (None: they are the first), so that none is repeated."""
    if not len(ids):
        return True
    return bool((ids[1:] > ids[:-1]).all()) and (before is None or bool(ids[0] > before))


def refuse_repeated(table: "BlockTable", id_column: str) -> None:
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


def _refuse_equal(table: "BlockTable", id_column: str, twice: "NDArray[np.uint64]") -> None:
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


def _hashed(table: "BlockTable", id_column: str) -> "Iterator[tuple[NDArray[Any], NDArray[np.uint64]]]":
    """The ids of each block, and 64-bit hashes of them."""
    from pandas.util import hash_array

    for block in range(len(table.sizes)):
        (ids,) = table.read(block, [id_column])
        yield ids, hash_array(ids, categorize=False)
