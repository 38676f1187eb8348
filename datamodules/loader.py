"""The order of training batches, and the loader: this process's rows, counted so that a run can be resumed."""

from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.schedules.batches import Schedule
from lightning_vfl.schedules.blocks import BlockShuffled, shuffled
from lightning_vfl.types import Joint, Parties, VerticalBatch, numbers_in

from .records.records import Records, Request


def training_order(trainer: Any, records: Records, batch_size: int, seed: int, drop_last: bool) -> Schedule:
    """The order of the training batches.

    Args:
        trainer: the trainer of the datamodule; None: there is none, and the records are shuffled.
        records: the training records.
        batch_size: rows of a joint batch.
        seed: seeds the order.
        drop_last: leave out the last, smaller batch of every epoch.

    Raises:
        ConfigurationError: for ``overfit_batches`` with a protocol whose epochs depend on earlier epochs, and for
            records that are read in blocks with a protocol that has an order of its own.
    """
    module = None if trainer is None else trainer.lightning_module
    if isinstance(module, VFLModule):
        schedule = module.schedule(records, batch_size, seed, drop_last)
    else:
        schedule = shuffled(records, batch_size, seed, drop_last)
    if records.blocks is not None and not isinstance(schedule, BlockShuffled):
        raise ConfigurationError(
            f"the order of records in {type(module).__name__} goes over all records at once, but these data are read "
            "in blocks; use SplitVFL with an aggregator without set-up, or CSVTables"
        )
    overfits = getattr(trainer, "overfit_batches", 0)
    return schedule.repeated() if overfits else schedule


class ScheduledLoader:
    """The batches of a schedule. The same object is used for a whole fit.

    The state is the epoch, the batches already handed out, and the schedule's state at the start of the epoch.
    Lightning stores it in checkpoints, so that a resumed run continues with the next batch. A batch is counted when it
    is handed out, not when it is loaded, because workers load batches ahead.

    The loader is not a ``DataLoader``, because the trainer rebuilds those with samplers of its own (for several
    processes, and for prediction) and would change the order. Each process takes its rows of every joint batch, without
    padding: together the processes see exactly the joint batch. Batches with a column of positions for every
    participant need a single process, because their rows are not the same records for all participants.

    Args:
        records: the records of the stage.
        schedule: the order of batches.
        rank: number of this process.
        world_size: number of processes.
        num_workers: worker processes that load batches; 0 is fastest for data in memory.
        pin_memory: copy batches to pinned memory, from which a GPU loads faster.

    Raises:
        ConfigurationError: on iteration, for several processes and batches with a column for every participant.
    """

    batch_sampler = None  # Lightning reads it together with ``sampler``

    def __init__(
        self,
        records: Records,
        schedule: Schedule,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.records = records
        self.schedule = schedule
        self.rank = rank
        self.world_size = world_size
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.epoch = 0
        self.offset = 0  # batches of this epoch that have been handed out
        self._restored = False  # True: the offset comes from a checkpoint; False: it is where an earlier pass ended

    def __len__(self) -> int:
        return self.schedule.steps

    @property
    def dataset(self) -> Records:
        """The records; Lightning and its callbacks read their number here."""
        return self.records

    @property
    def sampler(self) -> "ScheduledLoader | _SameOrder":
        """The object on which Lightning calls ``set_epoch``: the loader itself, unless every epoch is the same.

        ``overfit_batches`` replaces the sampler of every loader whose sampler is not a ``SequentialSampler``.
        """
        return _SameOrder(self) if self.schedule.same_every_epoch else self

    def repeated(self) -> "ScheduledLoader":
        """A loader that has the first epoch of this one in every epoch.

        Raises:
            ConfigurationError: if an epoch depends on earlier epochs.
        """
        one = copy(self)
        one.schedule = self.schedule.repeated()
        one.epoch = 0
        one.offset = 0
        return one

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of this epoch, unless it was interrupted and is resumed. Called by the trainer."""
        while self.epoch < epoch:
            self._next_epoch()

    def __iter__(self) -> Iterator[VerticalBatch]:
        if self.offset > 0 and not self._restored:  # begun before, without a call of set_epoch since
            self._next_epoch()
        self._restored = False
        for batch in self._batches():
            self.offset += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The position of the loader, as plain numbers."""
        return {
            "epoch": self.epoch,
            "offset": self.offset,
            "steps": self.schedule.steps,
            "schedule": self.schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position from a checkpoint.

        Raises:
            ConfigurationError: in the middle of an epoch, for another number of batches in an epoch.
        """
        if state["steps"] != self.schedule.steps and 0 < state["offset"] < state["steps"]:
            raise ConfigurationError(
                f"the checkpoint is from the middle of an epoch of {state['steps']} batches, this loader has "
                f"{self.schedule.steps}; resume with the same batch_size and number of processes"
            )
        self.epoch = state["epoch"]
        self.offset = state["offset"]
        self.schedule.load_state_dict(state["schedule"])
        self._restored = True

    def _next_epoch(self) -> None:
        self.schedule.advance(played=self.offset)
        self.epoch += 1
        self.offset = 0

    def _batches(self) -> Iterator[VerticalBatch]:
        if self.num_workers == 0 and not self.pin_memory:
            return map(self.records.__getitem__, self._requests())
        loader: DataLoader[VerticalBatch | ConfigurationError] = DataLoader(
            _Caught(self.records),
            batch_size=None,
            sampler=self._requests(),  # requests, not positions; planned as they are needed
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            collate_fn=_as_fetched,  # torch's default would turn the tuples inside a batch into lists
            generator=torch.Generator(),  # without it, the loader would draw from the global generator
        )
        return map(_or_raise, loader)

    def _requests(self) -> Iterator[Request]:
        """The rest of the epoch: this process's rows of every joint batch."""
        for positions, event in self.schedule.rest(self.epoch, self.offset):
            total = len(positions)
            start, end = total * self.rank // self.world_size, total * (self.rank + 1) // self.world_size
            ids = torch.from_numpy(np.ascontiguousarray(positions))
            joint = None
            if ids.ndim == 2:
                self._refuse_several()
            elif self.world_size > 1 or self.records.present is not None:
                joint = Joint(start, total, self._held(ids), positions if self.world_size > 1 else None)
            yield Request(ids[start:end], event, joint)

    def _refuse_several(self) -> None:
        if self.world_size > 1:
            raise ConfigurationError(
                "if parties hold different records, every participant has an order of its own, which "
                f"{self.world_size} processes cannot share; use one (--trainer.devices 1)"
            )

    def _held(self, ids: torch.Tensor) -> Parties | None:
        if self.records.present is None:
            return None
        return tuple(numbers_in(self.records.present.index_select(0, ids).any(0)))


class _SameOrder(SequentialSampler):
    """The sampler of a loader whose epochs are all the same."""

    def __init__(self, loader: ScheduledLoader) -> None:
        super().__init__(loader.records)
        self.set_epoch = loader.set_epoch


def _as_fetched(batch: Any) -> Any:
    return batch


class _Caught(Dataset[VerticalBatch | ConfigurationError]):
    """The records, for worker processes: errors are returned, so that torch does not wrap them in a traceback."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def __getitem__(self, request: Request) -> VerticalBatch | ConfigurationError:
        try:
            return self.records[request]
        except ConfigurationError as error:
            return error


def _or_raise(batch: VerticalBatch | ConfigurationError) -> VerticalBatch:
    if isinstance(batch, ConfigurationError):
        raise batch
    return batch
