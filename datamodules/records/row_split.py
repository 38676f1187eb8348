"""Which rows of a long table are for training, validation and testing, without a list of all rows."""

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

from .records import SplitName

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CELL = 4096
_SPLITS: tuple[SplitName, ...] = ("test", "val", "train")


class RowSplit:
    """Rows divided at random within cells of 4,096 rows, so that each place of the table has its share of every split.

    The last cell has the remaining rows too. In each cell the shares are rounded up to whole rows. All rows are
    predicted.

    Args:
        rows: N, of the table.
        seed: names the draw.
        val_share: share of the rows for validation.
        test_share: share of the rows for testing.

    Units: memory, 16 bytes a cell, and a few cells; time, 0.1 ms for each cell that is asked for.
    Guarantee: a pure function of its arguments. Every row is in exactly one of train, val and test. How the table is
        stored does not matter.
    Not guaranteed: shares by class; in long tables they differ from those of all rows by chance alone.

    Raises:
        ConfigurationError: if no row is left for training.

    Examples:
        >>> split = RowSplit(10, seed=0, val_share=0.1, test_share=0.2)
        >>> [split.count(name) for name in ("train", "val", "test", "predict")]
        [7, 1, 2, 10]
    """

    def __init__(self, rows: int, seed: int, val_share: float, test_share: float) -> None:
        self.rows = rows
        self.seed = seed
        self._shares: dict[SplitName, float] = {"val": val_share, "test": test_share}
        self.cells = max(1, rows // _CELL)
        self.ends: NDArray[np.int64] = np.arange(1, self.cells + 1) * _CELL
        self.ends[-1] = rows
        if min(self.sizes("train")) < 1:
            raise ConfigurationError(
                f"{rows} records with val_share {val_share} and test_share {test_share} leave none for training; use "
                "smaller shares or more records"
            )
        self._of_cell = lru_cache(maxsize=16)(self._drawn)

    def __reduce__(self) -> tuple[type, tuple[int, int, float, float]]:
        return RowSplit, (self.rows, self.seed, self._shares["val"], self._shares["test"])

    def sizes(self, name: SplitName) -> tuple[int, ...]:
        """How many rows of each cell belong to the split."""
        return (self._in_cell(name, 0),) * (self.cells - 1) + (self._in_cell(name, self.cells - 1),)

    def count(self, name: SplitName) -> int:
        """The number of the split's records."""
        return sum(self.sizes(name))

    def in_cell(self, name: SplitName, cell: int) -> "NDArray[np.int64]":
        """The split's rows of a cell, counted from the first row of the cell, sorted."""
        return np.arange(self._size(cell)) if name == "predict" else self._of_cell(name, cell)

    def all_rows(self, name: SplitName) -> "NDArray[np.int64]":
        """The split's rows, sorted; a list of all of them."""
        starts = self.ends - [self._size(cell) for cell in range(self.cells)]
        return np.concatenate([start + self.in_cell(name, cell) for cell, start in enumerate(starts.tolist())])

    def _size(self, cell: int) -> int:
        return int(self.ends[cell] - (self.ends[cell - 1] if cell else 0))

    def _in_cell(self, name: SplitName, cell: int) -> int:
        size = self._size(cell)
        if name == "predict":
            return size
        # 0.2 * 4,095 may be a hair above a whole number in floats: round first
        drawn = {held: ceil(round(share * size, 6)) for held, share in self._shares.items()}
        return drawn[name] if name in drawn else size - sum(drawn.values())

    def _drawn(self, name: SplitName, cell: int) -> "NDArray[np.int64]":
        order = permutation(self._size(cell), self.seed, "rows", cell)
        ends = np.cumsum([self._in_cell(split, cell) for split in _SPLITS])
        place = _SPLITS.index(name)
        return np.sort(order[ends[place] - self._in_cell(name, cell) : ends[place]])
