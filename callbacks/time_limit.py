"""An end by virtual time, which makes protocols of different pace comparable."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.errors import ConfigurationError


class VirtualTimeLimit(Callback):
    """Ends the training with the first round after which the virtual clock has reached ``seconds``.

    The trainer validates once more, so every run ends with a value at its end.

    Args:
        seconds: of virtual time, > 0.

    Raises:
        ConfigurationError: for a limit that is no positive number.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ConfigurationError(f"VirtualTimeLimit of {seconds} seconds trains nothing; give seconds > 0")
        self.seconds = seconds

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        clock: Any = pl_module.clock
        if clock.seconds >= self.seconds:  # a function of the recipe: all processes stop together
            trainer.should_stop = True
