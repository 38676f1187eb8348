"""A few blocks of records in memory, from which records are gathered."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BlockBuffer:
    """Some of the blocks of a table of records, side by side in one tensor.

    Args:
        sizes: the number of records of each block; positions count through the blocks.
        slots: how many blocks are in memory.
        shape: of one record.
        dtype: of the numbers.
        read: writes a block into a tensor (n, *shape).

    Units: memory, ``slots`` times the largest block.
    Guarantee: ``gather`` gives the records at any positions, whatever was asked before. A block is read only if it is
        not in memory; the block that was read first gives its place.
    Not guaranteed: speed for positions all over the table: then every call reads its blocks anew.
    """

    def __init__(
        self,
        sizes: "NDArray[np.int64]",
        slots: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        read: Callable[[int, Tensor], None],
    ) -> None:
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self._sizes = sizes
        self._rows = int(sizes.max())
        self._form = (min(slots, len(sizes)), shape, dtype)
        self._read = read
        self._memory: Tensor | None = None
        self._next = 0  # the slot of the next block
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memory": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def gather(self, positions: "NDArray[np.int64]") -> Tensor:
        """(B, *shape) the records at these positions."""
        blocks = np.searchsorted(self._ends, positions, side="right")
        if self._memory is not None and (self._slot[blocks] >= 0).all():
            return self._at(positions, blocks)
        slots, shape, dtype = self._form
        found = torch.empty(len(positions), *shape, dtype=dtype)
        left = np.arange(len(positions))
        while len(left):
            here = self._slot[blocks[left]] >= 0
            ready = left[here]
            if len(ready):
                found[torch.from_numpy(ready)] = self._at(positions[ready], blocks[ready])
            left = left[~here]
            for block in np.unique(blocks[left])[:slots].tolist():
                self._load(block)
        return found

    def _at(self, positions: "NDArray[np.int64]", blocks: "NDArray[np.int64]") -> Tensor:
        if self._memory is None:
            raise RuntimeError("no block has been read")
        places = self._slot[blocks] * self._rows + positions - self._starts[blocks]
        return self._memory.index_select(0, torch.from_numpy(places))

    def _load(self, block: int) -> None:
        slots, shape, dtype = self._form
        if self._memory is None:
            with torch.inference_mode(False):  # evaluation may read first, and training afterwards
                self._memory = torch.empty(slots * self._rows, *shape, dtype=dtype)
        slot, self._next = self._next, (self._next + 1) % slots
        if (before := self._held[slot]) >= 0:
            self._slot[before] = -1
        self._held[slot] = -1  # until it is read: reading may fail
        start = slot * self._rows
        self._read(block, self._memory[start : start + int(self._sizes[block])])
        self._held[slot], self._slot[block] = block, slot

    def _forget(self) -> None:
        self._slot = np.full(len(self._sizes), -1, dtype=np.int64)  # the slot of each block
        self._held = np.full(self._form[0], -1, dtype=np.int64)  # the block of each slot
        self._next = 0
