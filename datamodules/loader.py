"""The one loader of a stage: a schedule's batches, cut for this rank, counted so that a killed run finds its place."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lightning_vfl.schedules import Schedule
from lightning_vfl.types import Joint, VerticalBatch

from .records import Request, VerticalRecords


class RankRows(DistributedSampler[Request]):
    """This rank's rows of every joint batch of the schedule.

    A ``DistributedSampler``, because that is how Lightning sees that the data are already shared out between ranks. It
    shares out each batch, not the epoch: together the ranks see exactly the joint batch, without padding.
    """

    def __init__(self, records: VerticalRecords, schedule: Schedule, rank: int, world_size: int) -> None:
        # not DistributedSampler.__init__: it would size an epoch of padded records
        self.records = records
        self.schedule = schedule
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.offset = 0  # batches of this epoch that have been handed out

    def __len__(self) -> int:
        return self.schedule.steps

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of this epoch, unless it is the one that was interrupted. Called by the trainer."""
        while self.epoch < epoch:
            self.next_epoch()

    def next_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.schedule.advance()
        self.epoch, self.offset = self.epoch + 1, 0

    def __iter__(self) -> Iterator[Request]:
        plan = self.schedule.epoch(self.epoch)
        for positions, event in plan[self.offset :]:
            total = len(positions)
            start, end = total * self.rank // self.world_size, total * (self.rank + 1) // self.world_size
            ids = torch.from_numpy(np.ascontiguousarray(positions))
            joint = None
            if self.world_size > 1 or self.records.present is not None:
                joint = Joint(start, total, self._held(ids))
            yield Request(ids[start:end], event, joint)

    def _held(self, ids: torch.Tensor) -> tuple[int, ...] | None:
        if self.records.present is None:
            return None
        return tuple(self.records.present.index_select(0, ids).any(0).nonzero().flatten().tolist())


def _as_fetched(batch: Any) -> Any:
    return batch


class ScheduledLoader(DataLoader[VerticalBatch]):
    """Batches of a schedule, fetched whole. The same object serves a whole fit.

    The state is the epoch, the batches already handed out, and the schedule's state at the start of the epoch.
    Lightning stores it in checkpoints, so that a resumed run continues with the very next batch. It is counted when a
    batch is handed out, not when it is fetched: workers run ahead.

    Args:
        records: the records of the stage.
        schedule: the order of batches.
        rank: number of this process.
        world_size: number of processes.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
    """

    sampler: RankRows

    def __init__(
        self,
        records: VerticalRecords,
        schedule: Schedule,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.schedule = schedule
        self._restored = False  # the offset is where to go on, not where an earlier pass ended
        super().__init__(
            records,
            batch_size=None,
            sampler=RankRows(records, schedule, rank, world_size),
            num_workers=num_workers,
            pin_memory=pin_memory,
            collate_fn=_as_fetched,  # torch's own would turn the tuples inside a batch into lists
            # without one of its own, creating the iterator draws from the global generator
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[VerticalBatch]:  # type: ignore[override]  # a generator instead of torch's own iterator class
        sampler = self.sampler
        if sampler.offset > 0 and not self._restored:  # begun before: nobody has called set_epoch since
            sampler.next_epoch()
        self._restored = False
        # torch's own iterator has nothing to do for data in memory, and takes 0.05 ms a batch to do it
        direct = self.num_workers == 0 and not self.pin_memory
        for batch in map(self.dataset.__getitem__, sampler) if direct else super().__iter__():
            sampler.offset += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands; plain numbers."""
        return {"epoch": self.sampler.epoch, "offset": self.sampler.offset, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand there again."""
        self.sampler.epoch, self.sampler.offset = state["epoch"], state["offset"]
        self.schedule.load_state_dict(state["schedule"])
        self._restored = True
