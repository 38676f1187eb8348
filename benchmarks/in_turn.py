"""A training through the Trainer and its rivals, chunk by chunk in turn, in one process."""

import time
from collections.abc import Iterator, Mapping
from statistics import median

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.harness import Pairs


class InTurn(Callback):
    """Times a chunk of the trainer's steps, then a chunk of each rival's, over and over."""

    def __init__(self, rivals: Mapping[str, Iterator[None]], chunk: int) -> None:
        self.rivals = rivals
        self.chunk = chunk
        self.own: list[float] = []
        self.other: dict[str, list[float]] = {name: [] for name in rivals}
        self._steps = 0
        self._since = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._since = time.perf_counter()

    def on_train_batch_end(self, *args: object, **kwargs: object) -> None:
        self._steps += 1
        if self._steps % self.chunk:
            return
        self.own.append(time.perf_counter() - self._since)
        for name, rival in self.rivals.items():
            since = time.perf_counter()
            for _ in range(self.chunk):
                next(rival)
            self.other[name].append(time.perf_counter() - since)
        self._since = time.perf_counter()

    def pairs(self, name: str) -> Pairs:
        """Without the first chunk, in which everything is cold."""
        return Pairs(self.own[1:], self.other[name][1:])

    def step(self, chunks: list[float]) -> float:
        """Median seconds a step."""
        return median(chunks[1:]) / self.chunk
