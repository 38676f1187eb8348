"""The order of batches: a pure function of seeds and sizes, never of a parameter."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.blocks import PADDING, Blocks
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation
from lightning_vfl.types import Event

if TYPE_CHECKING:
    from numpy.typing import NDArray

Planned = tuple["NDArray[np.int64]", Event | None]
Plan = list[Planned]


class Schedule(ABC):
    """Which records, in which order, in which round; the same in every process.

    ``epoch(e)`` is the plan of one epoch: the joint batch's record positions and, in asynchronous protocols, the event.
    ``steps`` is the same for every epoch of a fit. A schedule with state (an event queue that runs on across epochs)
    plans from the start of the current epoch, moves with ``advance`` and keeps its state as plain numbers. It may plan
    as it is asked, so that nothing is planned that is never done.
    """

    steps: int

    @property
    def pass_batches(self) -> int:
        """Mini-batches of one party's pass over its records, ⌊N/B⌋; default: ``steps``."""
        return self.steps

    @abstractmethod
    def epoch(self, epoch: int) -> Iterable[Planned]:
        """The batches of this epoch, in order."""

    def advance(self, played: int) -> None:
        """Move to the start of the next epoch, after so many batches of this one; default: nothing to move."""
        return

    def state_dict(self) -> dict[str, Any]:
        """State at the start of the current epoch."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to that state."""
        return


def _batches(order: "NDArray[np.int64]", batch_size: int, drop_last: bool) -> Plan:
    whole = len(order) - len(order) % batch_size if drop_last else len(order)
    return [(order[start : start + batch_size], None) for start in range(0, whole, batch_size)]


def _refuse_larger(batch_size: int, records: int) -> None:
    if batch_size > records:
        raise ConfigurationError(
            f"batch_size {batch_size} exceeds the {records} training records; lower it to at most {records}"
        )


class InOrder(Schedule):
    """Every record once, in order of position: evaluation and prediction.

    Example:
        >>> [ids.tolist() for ids, _ in InOrder(5, 2).epoch(0)]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, records: int, batch_size: int) -> None:
        self.records = records
        self.batch_size = batch_size
        self.steps = -(-records // batch_size)

    def epoch(self, epoch: int) -> Plan:
        return _batches(np.arange(self.records, dtype=np.int64), self.batch_size, drop_last=False)


class Aligned(Schedule):
    """Every record once an epoch, K records of one coded row always together: the cheap batches of coded aggregators.

    A batch is ⌈batch_size / K⌉ coded rows with all their records, so up to K - 1 records more than was asked for. Their
    order depends on (seed, epoch) alone; which records share a coded row, on ``blocks``.

    Args:
        blocks: which record is in which coded row.
        batch_size: rows of a joint batch, rounded up to whole coded rows.
        seed: names the order.
        drop_last: leave out the last, smaller batch of every epoch.

    Raises:
        ConfigurationError: if a batch would be larger than the data.

    Example:
        >>> from lightning_vfl.blocks import Blocks
        >>> plan = Aligned(Blocks(5, 2), 3, seed=0).epoch(0)
        >>> sorted(len(ids) for ids, _ in plan), sorted(int(i) for ids, _ in plan for i in ids)
        ([1, 4], [0, 1, 2, 3, 4])
    """

    def __init__(self, blocks: Blocks, batch_size: int, seed: int, drop_last: bool = False) -> None:
        _refuse_larger(batch_size, blocks.records)
        self.blocks = blocks
        self.rows = -(-batch_size // blocks.count)
        self.seed = seed
        self.drop_last = drop_last
        self.steps = max(1, blocks.rows // self.rows) if drop_last else -(-blocks.rows // self.rows)

    @property
    def pass_batches(self) -> int:
        return max(1, self.blocks.rows // self.rows)

    def epoch(self, epoch: int) -> Plan:
        order = permutation(self.blocks.rows, self.seed, "order", "fit", epoch)
        table = self.blocks.at(0, self.blocks.rows).numpy()
        batches = (table[order[i * self.rows : (i + 1) * self.rows]].reshape(-1) for i in range(self.steps))
        return [(ids[ids != PADDING], None) for ids in batches]


class Shuffled(Schedule):
    """Every record once an epoch, in an order that depends on (seed, epoch) alone.

    Args:
        records: N.
        batch_size: rows of a joint batch.
        seed: names the order.
        drop_last: leave out the last, smaller batch of every epoch.

    Raises:
        ConfigurationError: if a batch would be larger than the data.

    Example:
        >>> plan = Shuffled(5, 2, seed=0).epoch(0)
        >>> sorted(int(i) for ids, _ in plan for i in ids)
        [0, 1, 2, 3, 4]
    """

    def __init__(self, records: int, batch_size: int, seed: int, drop_last: bool = False) -> None:
        _refuse_larger(batch_size, records)
        self.records = records
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.steps = records // batch_size if drop_last else -(-records // batch_size)

    @property
    def pass_batches(self) -> int:
        return self.records // self.batch_size

    def epoch(self, epoch: int) -> Plan:
        order = permutation(self.records, self.seed, "order", "fit", epoch)
        return _batches(order, self.batch_size, self.drop_last)
