"""A limit of virtual time, to compare protocols of different speeds."""

from math import inf
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.checks import within

from .injector import protocol


class VirtualTimeLimit(Callback):
    """Ends the training with the first round after which the virtual clock has reached ``seconds``.

    The trainer validates once more, so every run has validation metrics at its end. If the run is resumed from its
    checkpoint with a higher limit, it begins its next epoch. The clock continues in a second fit.

    Args:
        seconds: the limit in virtual seconds, > 0.

    Raises:
        ConfigurationError: for a limit that is not a positive number.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = within("seconds", seconds, above=0, most=inf)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        protocol(self, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # all processes stop together, because virtual time is equal in all
        if protocol(self, pl_module).clock.seconds >= self.seconds:
            trainer.should_stop = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.on_train_start(trainer, pl_module)
