"""Callbacks that end their process in the middle of a run or take its memory, named by recipes of the tests."""

import os
import signal
import sys
from pathlib import Path

import torch
from lightning.pytorch import Callback


class Takes(Callback):
    """Holds memory as long as the trainer is held, in pieces that an allocator keeps for itself when they are freed."""

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes

    def on_fit_start(self, trainer, pl_module):
        self.held = [torch.ones(250_000) for _ in range(self.megabytes)]


class Leaves(Callback):
    """Ends the run as if all were well."""

    def on_train_epoch_end(self, trainer, pl_module):
        sys.exit(0)


class Dies(Callback):
    """Is killed in its first ``times`` attempts, which are counted in a file."""

    def __init__(self, tally: str, times: int) -> None:
        self.tally, self.times = Path(tally), times

    def on_train_epoch_end(self, trainer, pl_module):
        died = len(self.tally.read_text()) if self.tally.exists() else 0
        if died < self.times:
            self.tally.write_text("x" * (died + 1))
            os.kill(os.getpid(), signal.SIGKILL)
