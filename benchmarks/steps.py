"""Fits of a few steps on random records, timed from batch to batch: what benchmarks of a round have in common."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.datamodules import ContiguousColumns, Layout, Partitioner, Split, Unchanged, VerticalDataModule
from lightning_vfl.datamodules.base import SplitName

STEPS, WARM = 60, 20


class RandomFloats(VerticalDataModule):
    """Records of standard normal floats, so many columns a party, and ten classes."""

    def __init__(self, parties: int, records: int, batch_size: int, columns: int) -> None:
        self.parties, self.records_in_all, self.columns = parties, records, columns
        super().__init__(normaliser=Unchanged(), batch_size=batch_size, drop_last=True)

    @property
    def layout(self) -> Layout:
        return Layout((self.parties * self.columns,))

    @property
    def num_classes(self) -> int:
        return 10

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(self.parties)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.records_in_all, self.parties * self.columns, generator=generator)
        y = torch.randint(10, (self.records_in_all,), generator=generator)
        return {"train": Split(x, y, np.arange(self.records_in_all))}


def settle() -> None:
    """Wait for what a GPU still has to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Steps(Callback):
    """When each step ended.

    Args:
        clock: seconds since some moment; ``time.process_time`` for CPU seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.ends: list[float] = []

    def on_train_batch_end(self, *args: object, **kwargs: object) -> None:
        settle()
        self.ends.append(self.clock())

    @property
    def gaps(self) -> list[float]:
        """The seconds of each step, once everything is warm."""
        return [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)][WARM:]

    @property
    def step(self) -> float:
        """Median seconds of a step, once everything is warm."""
        return median(self.gaps)


def take_steps(
    module: LightningModule, data: VerticalDataModule, accelerator: str = "cpu", callbacks: Sequence[Callback] = ()
) -> Steps:
    """A fit of some steps; ``callbacks`` are further ones."""
    steps = Steps()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            accelerator=accelerator,
            devices=1,
            max_steps=STEPS,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            callbacks=[*callbacks, steps],
            enable_model_summary=False,
            default_root_dir=folder,
        ).fit(module, datamodule=data)
    return steps


def in_turn(kinds: dict[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """Median seconds a step, by kind, turn by turn."""
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(turns):
        for kind, run in kinds.items():
            taken[kind].append(run())
    return taken
