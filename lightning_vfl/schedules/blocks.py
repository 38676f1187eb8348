"""The order of records that are read in blocks: blocks are shuffled, and records among the blocks in memory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.schedules.batches import Passes, Planned, Schedule, Shuffled
from lightning_vfl.streams import permutation
from lightning_vfl.types import RecordBlocks, RecordSource

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BlockShuffled(Passes):
    """Every record once an epoch: blocks in a random order, and records in a random order within a window of blocks.

    The blocks of an epoch, permuted, are cut into windows of ``blocks.together`` blocks; the records of a window are
    permuted, and windows follow each other without a gap, so a batch may have records of two windows. The order depends
    only on (seed, epoch) and the blocks.

    Args:
        blocks: the sizes of the blocks, and how many of them form a window.
        batch_size: rows of a joint batch.
        seed: seeds the order.
        drop_last: leave out the last, smaller batch of every epoch.

    Units: memory, 24 bytes for each record of two windows and for each block; time to reach any batch of an epoch,
        that of permuting the blocks and one window.
    Guarantee: every epoch has every record once; a block is in one window only. With a single window the order is a
        uniformly random permutation.
    Not guaranteed: a uniformly random permutation with several windows: records of different windows are never in one
        batch, except where one window ends and the next begins. If neighbouring records of a file are alike, batches
        are more alike than random ones: a window has records of ``blocks.together`` places of the file.

    Raises:
        ConfigurationError: if a batch would be larger than the data; in ``load_state_dict``, for other blocks than
            those of the checkpoint.

    Examples:
        >>> plan = BlockShuffled(RecordBlocks((2, 2, 1), together=2), 2, seed=0).epoch(0)
        >>> sorted(int(i) for ids, _ in plan for i in ids)
        [0, 1, 2, 3, 4]
    """

    def __init__(self, blocks: RecordBlocks, batch_size: int, seed: int, drop_last: bool = False) -> None:
        super().__init__(sum(blocks.sizes), batch_size, seed, drop_last)
        self.sizes = np.array(blocks.sizes, dtype=np.int64)
        self.together = blocks.together
        self.starts = np.cumsum(self.sizes) - self.sizes

    def epoch(self, epoch: int) -> Iterator[Planned]:
        return self.rest(epoch, 0)

    def rest(self, epoch: int, played: int) -> Iterator[Planned]:
        skip = played * self.batch_size
        order = permutation(len(self.sizes), self.seed, "order", "fit", epoch, "blocks")
        left = np.empty(0, dtype=np.int64)
        for number, start in enumerate(range(0, len(order), self.together)):
            window = order[start : start + self.together]
            if skip >= (size := int(self.sizes[window].sum())):
                skip -= size
                continue
            left = np.concatenate([left, self._records(epoch, number, window)[skip:]])
            skip = 0
            whole = len(left) - len(left) % self.batch_size
            for begin in range(0, whole, self.batch_size):
                yield left[begin : begin + self.batch_size], None
            left = left[whole:]
        if len(left) and not self.drop_last:
            yield left, None

    def state_dict(self) -> dict[str, Any]:
        return {"blocks": len(self.sizes), "together": self.together}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self.state_dict()
        if {name: state.get(name, value) for name, value in own.items()} != own:
            raise ConfigurationError(
                f"the checkpoint was trained with {state['blocks']} blocks of records, {state['together']} of them "
                f"shuffled together, this run has {own['blocks']} and {own['together']}; resume with the same files "
                "and window_mb"
            )

    def _records(self, epoch: int, number: int, window: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """The positions of a window's records, permuted."""
        blocks = zip(self.starts[window], self.sizes[window], strict=True)
        positions = np.concatenate([np.arange(start, start + size) for start, size in blocks])
        return positions[permutation(len(positions), self.seed, "order", "fit", epoch, "window", number)]


def shuffled(records: RecordSource, batch_size: int, seed: int, drop_last: bool = False) -> Schedule:
    """Every record once an epoch: in a random order, or in that of ``BlockShuffled`` if records are read in blocks.

    Raises:
        ConfigurationError: if a batch would be larger than the data.
    """
    if records.blocks is None:
        return Shuffled(len(records), batch_size, seed, drop_last)
    return BlockShuffled(records.blocks, batch_size, seed, drop_last)
