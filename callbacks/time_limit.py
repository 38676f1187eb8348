"""A limit of virtual time, to compare protocols of different speeds."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.errors import ConfigurationError

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
        if not seconds > 0:
            raise ConfigurationError(f"VirtualTimeLimit needs seconds > 0; got {seconds}")
        self.seconds = seconds

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        protocol(self, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._look(trainer, pl_module)

    def _look(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (
            protocol(self, pl_module).clock.seconds >= self.seconds
        ):  # all processes stop together, because virtual time is equal in all
            trainer.should_stop = True
