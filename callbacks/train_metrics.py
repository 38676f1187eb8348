"""How well the networks do on the very records that they learn from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.protocols import VFLModule
from lightning_vfl.protocols.logs import is_due
from lightning_vfl.types import RoundNames, Stage, VerticalBatch

from .injector import protocol

ROWS = 1024  # in a batch: without gradients there is room for more than in training


class TrainMetrics(Callback):
    """Measures all training records at the end of an epoch: ``train/accuracy`` and the like, beside ``val/accuracy``.

    The metrics are those of validation, without the loss: ``train/loss`` is that of the rounds. The networks are in
    evaluation mode and everything is in the clear, whatever ``evaluate`` says; who is left out of validation is left
    out here. An epoch that was cut short is not measured.

    Guarantee: the training is the same to the bit without it, books, modes of the networks and random numbers included.
        A value stands in ``callback_metrics`` in its own epoch only: a monitor of it has to have the same
        ``every_n_epochs``.
    Not guaranteed: a meaning for records that only some parties hold: they are measured too, with nothing for the
        others' part, and with labels that nobody may have. That anybody could measure this outside of a simulation:
        nothing is sent, and no privacy is spent.

    Args:
        every_n_epochs: 1 measures every epoch, 2 every second one; the others cost nothing.

    Raises:
        ConfigurationError: for another number than 1 or more; before training, for several processes, for loaders
            that do not know their records, and for a module that is no protocol of this toolkit.
    """

    def __init__(self, every_n_epochs: int = 1) -> None:
        if not (isinstance(every_n_epochs, int) and every_n_epochs >= 1):
            raise ConfigurationError(f"every_n_epochs {every_n_epochs!r} measures nothing; use a whole number from 1")
        self.every_n_epochs = every_n_epochs
        self._told: tuple[str, ...] = ()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        protocol(self, pl_module)
        if stage == "fit" and trainer.world_size > 1:
            raise ConfigurationError(
                f"TrainMetrics measures all training records in one process, not in {trainer.world_size}; "
                "use devices: 1, or leave it out"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not hasattr(trainer.train_dataloader, "records"):
            raise ConfigurationError(
                "TrainMetrics has to know the training records; give the trainer a VerticalDataModule instead of a "
                "loader"
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name in self._told:  # else they would pass for values of this epoch, measured or not
            trainer.callback_metrics.pop(name, None)
        self._told = ()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # not at the epoch's end: callbacks that come first would not see the values there
        if trainer.is_last_batch and is_due(trainer.current_epoch + 1, self.every_n_epochs):
            values = measure(trainer, protocol(self, pl_module))
            pl_module.log_dict(values, on_step=False, on_epoch=True, batch_size=1)
            self._told = tuple(values)


@torch.no_grad()
def measure(trainer: Trainer, module: VFLModule) -> dict[str, Tensor]:
    """The metrics of validation for all training records, by name, with the weights as they are."""
    metrics = module.val.metrics.clone(prefix="train/")
    metrics.reset()
    loader: Any = trainer.train_dataloader
    names = RoundNames(module.seed, Stage.VALIDATION, 0)
    with _evaluating(module), trainer.precision_plugin.val_step_context():
        for batch in _batches(loader.records):
            batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch), module.device)
            metrics.update(module.objective.predict(module.output(batch, names)).float(), batch.labels)
    values: dict[str, Tensor] = metrics.compute()
    return values


def _batches(records: Any) -> Iterator[VerticalBatch]:
    """The records in order."""
    for ids in torch.split(torch.arange(len(records)), ROWS):
        present = None if records.present is None else records.present.index_select(0, ids)
        yield VerticalBatch(records.rows(ids), records.labels.index_select(0, ids), ids, present)


@contextmanager
def _evaluating(module: VFLModule) -> Iterator[None]:
    """In evaluation mode and in the clear; what was in which mode before is afterwards."""
    protected, module.protected_evaluation = module.protected_evaluation, False
    try:
        with evaluating(module):
            yield
    finally:
        module.protected_evaluation = protected
