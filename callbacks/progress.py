"""Lightning's rich progress bar, moved every few rounds."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar


class SparseProgressBar(RichProgressBar):
    """The rich progress bar, moved every ``every`` training rounds and at the last of an epoch.

    Of a module that trains in phases it names the phase: "Epoch 3/19 (owner)".

    Lightning's own collects all metrics and takes the console's lock after every batch, whatever its refresh rate:
    0.3 ms a round, as much as a small round itself.

    Args:
        every: rounds from one movement to the next.
        console_kwargs: arguments of the ``rich.console.Console`` to draw on.
    """

    def __init__(self, every: int = 20, console_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(console_kwargs=console_kwargs)
        self.every = every

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % self.every == 0 or trainer.is_last_batch:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def _get_train_description(self, current_epoch: int) -> str:
        description = super()._get_train_description(current_epoch)
        phase = getattr(self.trainer.lightning_module, "phase", None)
        return description if phase is None else f"{description.rstrip()} ({phase})"
