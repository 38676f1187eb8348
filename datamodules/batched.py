"""The half of a datamodule that makes batches of prepared records."""

from abc import ABC

import torch
from lightning.pytorch import LightningDataModule

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.hooks import FreeHooks
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.schedules.batches import InOrder, Schedule
from lightning_vfl.types import VerticalBatch

from .loader import ScheduledLoader
from .order import training_order
from .records.records import Records, SplitName

_NEEDED: dict[str, tuple[SplitName, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}


class BatchedDataModule(FreeHooks, LightningDataModule, ABC):
    """Records of a stage in batches: in the order of the protocol's schedule, or in their own order.

    Args:
        batch_size: rows of a batch in each process; the joint batch has this times the number of processes.
        seed: names the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes that load batches.
        pin_memory: copy batches to pinned memory.

    Raises:
        ConfigurationError: for a batch size below 1.
    """

    def __init__(self, batch_size: int, seed: int, drop_last: bool, num_workers: int, pin_memory: bool) -> None:
        super().__init__()
        self._records: dict[SplitName, Records] = {}
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.pin_memory = pin_memory

    @property
    def batch_size(self) -> int:
        """Rows of a batch in each process; at most the number of training records if a running trainer sets it.

        ``BatchSizeFinder`` doubles it until the memory is full.
        """
        return self._batch_size

    @batch_size.setter
    def batch_size(self, rows: int) -> None:
        if rows < 1:
            raise ConfigurationError(f"batch_size must be at least 1; got {rows}")
        search = "train" in self._records and self.trainer is not None
        self._batch_size = min(rows, len(self._records["train"]) // self._place()[1]) if search else rows

    def records(self, split: SplitName) -> Records:
        """The records of a split, after ``setup``.

        Raises:
            ConfigurationError: if the stage that was set up has no such split.
        """
        if split not in self._records:
            share = f", and set {split}_share above 0" if getattr(self, f"{split}_share", None) == 0 else ""
            raise ConfigurationError(
                f"{type(self).__name__} has no '{split}' records in this stage; call setup first{share}"
            )
        return self._records[split]

    def train_dataloader(self) -> ScheduledLoader:
        """Batches in the order of the protocol's schedule; without a protocol, shuffled."""
        records = self.records("train")
        rank, world = self._place()
        schedule = training_order(self.trainer, records, self.batch_size * world, self.seed, self.drop_last)
        loader = self._loader(records, schedule, rank, world)
        self._resume(loader)
        return loader

    def val_dataloader(self) -> ScheduledLoader | list[ScheduledLoader]:
        """Validation records in order; an empty list if there are none."""
        return self._in_order("val") if "val" in self._records else []

    def test_dataloader(self) -> ScheduledLoader:
        """Test records in order."""
        return self._in_order("test")

    def predict_dataloader(self) -> ScheduledLoader:
        """Records to predict, in order: the test records, unless the data set has others."""
        return self._in_order("predict")

    def transfer_batch_to_device(
        self, batch: VerticalBatch, device: torch.device, dataloader_idx: int
    ) -> VerticalBatch:
        """Move the batch only if it is on another device: visiting the tensors of 28 parties costs 0.2 ms a step."""
        if isinstance(batch, VerticalBatch) and batch.record_ids.device == device:
            return batch
        moved: VerticalBatch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return moved

    # ---- inside

    @property
    def _module(self) -> VFLModule | None:
        module = None if self.trainer is None else self.trainer.lightning_module
        return module if isinstance(module, VFLModule) else None

    def _resume(self, loader: ScheduledLoader) -> None:
        """Let a schedule with state go on where the checkpoint of a resumed fit was saved."""
        module = self._module
        if module is not None and module.position:
            position, module.position = module.position, {}
            if self.trainer is not None and self.trainer.ckpt_path is not None:  # not a new fit of a loaded module
                loader.load_state_dict(dict(position))

    def _missing(self, stage: str) -> list[SplitName]:
        """The splits that the stage needs and that are not set up yet."""
        return [name for name in _NEEDED.get(stage, ("train", "val", "test")) if name not in self._records]

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def _in_order(self, name: SplitName) -> ScheduledLoader:
        records = self.records(name)
        rank, world = self._place()
        if not len(records):
            raise ConfigurationError(f"there are no {name} records; correct load, or leave out this stage")
        # a process without records cannot take part in reducing metrics, of which a prediction has none
        if len(records) < world and name != "predict":
            raise ConfigurationError(
                f"the {len(records)} {name} records cannot be shared by {world} processes; use at most {len(records)}"
            )
        return self._loader(records, InOrder(len(records), self.batch_size * world), rank, world)

    def _loader(self, records: Records, schedule: Schedule, rank: int, world: int) -> ScheduledLoader:
        return ScheduledLoader(records, schedule, rank, world, self.num_workers, self.pin_memory)
