"""Lightning's rich progress bar, updated every few rounds."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar


class SparseProgressBar(RichProgressBar):
    """The rich progress bar, updated every ``every`` training rounds and in the last round of an epoch.

    For a module that trains in phases, it shows the phase: "Epoch 3/19 (owner)".

    Lightning's progress bar collects all metrics and takes the console's lock after every batch, at any refresh rate.
    This takes 0.3 ms a round, as long as a small round.

    Args:
        every: the number of rounds between two updates.
        console_kwargs: arguments of the ``rich.console.Console``.
    """

    def __init__(self, every: int = 20, console_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(console_kwargs=console_kwargs)
        self.every = every

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % self.every == 0 or trainer.is_last_batch:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """The logged metrics, without the version of the logger, which would take a line of its own."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics

    def _get_train_description(self, current_epoch: int) -> str:
        description = super()._get_train_description(current_epoch)
        phase = getattr(self.trainer.lightning_module, "phase", None)
        return description if phase is None else f"{description.rstrip()} ({phase})"
