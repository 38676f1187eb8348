"""Metrics on all training records."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lightning_vfl.checks import positive
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.objectives import predictions
from lightning_vfl.protocols import VFLModule
from lightning_vfl.protocols.scores import round_to
from lightning_vfl.types import RoundNames, Stage, VerticalBatch

from .injector import protocol

ROWS = 1024  # rows of a batch; without gradients, more rows fit into memory than in training


class TrainMetrics(Callback):
    """Computes metrics on all training records at the end of an epoch, such as ``train/accuracy``.

    The metrics are those of validation, without the loss: ``train/loss`` is the loss of the rounds. The networks are in
    evaluation mode and aggregation is in the clear, for any setting of ``evaluate``. Parties that validation leaves out
    are left out here too. A shortened epoch is not measured.

    Guarantee: training with and without the callback is the same bit for bit: counts, network modes and random numbers
        included. A value is in ``callback_metrics`` only in its own epoch, so a callback that monitors the value needs
        the same ``every_n_epochs``.
    Not guaranteed: meaningful values for records that only some parties hold: they are measured too, with zeros for the
        other parties, and with labels that may be unknown to all parties. The metrics exist only in a simulation: no
        message is sent and no privacy is charged, so no party could compute them in a deployment.

    Args:
        every_n_epochs: 1: measure every epoch, 2: every second epoch; other epochs take no time.

    Raises:
        ConfigurationError: for a number below 1; before training, for several processes, for loaders that do not know
            their records, and for a module that is not a protocol of this toolkit.
    """

    def __init__(self, every_n_epochs: int = 1) -> None:
        self.every_n_epochs = positive("every_n_epochs", every_n_epochs, whole=True)
        self._told: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        return {"told": list(self._told)}  # a resumed fit begins with these values, and deletes them as the whole one

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._told = tuple(state_dict["told"])

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        protocol(self, pl_module)
        if stage == "fit" and trainer.world_size > 1:
            raise ConfigurationError(
                f"TrainMetrics works in one process; got {trainer.world_size}; use devices: 1, or leave it out"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not hasattr(trainer.train_dataloader, "records"):
            raise ConfigurationError(
                "TrainMetrics must know the training records; give the trainer a VerticalDataModule instead of a loader"
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name in self._told:  # delete values of earlier epochs, which are not values of this epoch
            trainer.callback_metrics.pop(name, None)
        self._told = ()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        # not at the epoch's end: callbacks earlier in the list would not see the values
        if trainer.is_last_batch and is_due(trainer.current_epoch + 1, self.every_n_epochs):
            values = measure(trainer, protocol(self, pl_module))
            pl_module.log_dict(values, on_step=False, on_epoch=True, batch_size=1)
            self._told = tuple(values)


@torch.no_grad()
def measure(trainer: Trainer, module: VFLModule) -> dict[str, Tensor]:
    """The validation metrics on all training records, by name, with the current weights."""
    metrics = module.val.metrics.clone(prefix="train/")
    metrics.reset()
    round_to(metrics, torch.float32)  # the dtype of predictions
    loader: Any = trainer.train_dataloader
    names = RoundNames(module.seed, Stage.VALIDATION, 0)
    with _evaluating(module), trainer.precision_plugin.val_step_context():
        for batch in _batches(loader.records):
            batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch), module.device)
            metrics.update(predictions(module.objective, module.evaluated(batch, names)), batch.labels)
    values: dict[str, Tensor] = metrics.compute()
    return values


def _batches(records: Any) -> Iterator[VerticalBatch]:
    """Batches of the records, in order."""
    for ids in torch.split(torch.arange(len(records)), ROWS):
        present = None if records.present is None else records.present.index_select(0, ids)
        yield VerticalBatch(records.rows(ids), records.labels_at(ids), ids, present)


@contextmanager
def _evaluating(module: VFLModule) -> Iterator[None]:
    """Set evaluation mode and aggregation in the clear; afterwards, restore the former modes."""
    protected = module.protected_evaluation
    module.protected_evaluation = False
    try:
        with evaluating(module):
            yield
    finally:
        module.protected_evaluation = protected


def is_due(step: int, every: int) -> bool:
    """Whether an action that runs every ``every`` steps is due after this step; 0: never."""
    return every > 0 and step % every == 0


def validates_fit(trainer: Trainer) -> bool:
    """Whether a validation is one of the training: neither its sanity check, nor a validation alone."""
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
