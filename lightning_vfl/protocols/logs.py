"""Logging of a training: losses of steps and epochs, and the progress beside them."""

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.books import EpochLoss
from lightning_vfl.protocols.checks import searches_rate
from lightning_vfl.protocols.columns_told import MANY
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import VerticalBatch


def log_step(module: SplitModel, step: Step, batch: VerticalBatch, batch_idx: int) -> None:
    """Log ``train/loss`` and the progress at every logging step; after an epoch's last round, its mean loss and ε too.

    Logging takes 0.2 ms a value, so values that no logger would write are not logged.

    Args:
        module: the protocol.
        step: without a loss, it does not count in the epoch's mean.
        batch: this process's part of the joint batch.
        batch_idx: its number in the epoch.
    """
    loss = step.loss if step.logged is None else step.logged
    trainer = module.trainer
    books = module.books
    total = len(batch.record_ids) if batch.joint is None else batch.joint.total
    if books.epoch_loss.number != module.current_epoch:
        books.epoch_loss = EpochLoss(module.current_epoch)
    if loss is not None and module.scores_here:
        books.epoch_loss.add(loss.detach(), total)
    show_loss(trainer, books.epoch_loss, batch_idx)
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set in Trainer.__init__
    seen = batch_idx == 0 or (every > 0 and (module.global_step + 1) % every == 0)
    if not (seen or trainer.is_last_batch):
        return
    refuse_nan_loss(books.epoch_loss, trainer)
    joint = trainer.world_size > 1
    module.log_dict(_exact(module))
    if seen and loss is not None:
        if module.scores_here:
            module.log("train/loss", loss.detach(), sync_dist=joint, batch_size=total)
        for name, value in step.notes.items():
            module.log(name, value, sync_dist=joint, batch_size=total)
    if not trainer.is_last_batch:
        return
    if books.epoch_loss.rows:
        mean = books.epoch_loss.mean()
        module.log("train/loss_epoch", mean, on_step=False, on_epoch=True, sync_dist=joint, batch_size=1)
    for name, account in (("label_epsilon", module.label_privacy), ("epsilon", module.privacy)):
        if account.accountant is not None:
            spent = torch.tensor(account.epsilon(), dtype=torch.float64)
            module.log(f"privacy/{name}", spent, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=joint)


def show_loss(trainer: Trainer, loss: EpochLoss, batch_idx: int) -> None:
    """Show the epoch's mean loss so far in the progress bar as ``train/loss``, in the rounds that update the bar.

    Lightning would show the loss that was logged last: at a small number of rounds, the first one's. With several
    processes, the bar shows the loss of the first process.
    """
    bar = trainer.progress_bar_callback
    if bar is None or not loss.rows:
        return
    every = getattr(bar, "every", getattr(bar, "refresh_rate", 1))
    if trainer.is_last_batch or (every > 0 and (batch_idx + 1) % every == 0):
        trainer.progress_bar_metrics["train/loss"] = loss.mean().item()


def refuse_nan_loss(loss: EpochLoss, trainer: Trainer) -> None:
    """End a training with a loss of NaN: the gradients of that round, and the parameters after it, are NaN too.

    A gradient scaler leaves out the steps of such rounds, and a search of a learning rate runs into them: both go on.

    Args:
        loss: the losses of the epoch so far; the sum is NaN from the first such round on.
        trainer: of the training.

    Raises:
        ConfigurationError: naming the epoch.
    """
    scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
    if torch.as_tensor(loss.total).isnan() and not (scaled or searches_rate(trainer)):
        raise ConfigurationError(
            f"the training loss is NaN in epoch {loss.number}, and parameters that are NaN learn nothing more; use a "
            "lower learning rate, trainer.gradient_clip_val, or a loss that is finite for these labels"
        )


def log_standing(module: SplitModel) -> None:
    """Log the progress beside an epoch's values: a logger can then plot them against time, bytes and passes."""
    joint = module.trainer.world_size > 1
    module.log_dict(_exact(module), on_step=False, on_epoch=True, reduce_fx="max", sync_dist=joint)


def is_due(step: int, every: int) -> bool:
    """Whether an action that runs every ``every`` steps is due after this step; 0: never."""
    return every > 0 and step % every == 0


def _exact(module: SplitModel) -> dict[str, Tensor]:
    """The progress as float64 tensors: Lightning would convert numbers to float32."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in module.standing().items()}


def say_columns(module: SplitModel) -> None:
    """Log the line before a fit whose uploads are hidden, and in every process of a federation."""
    traits = module.wire.traits
    if module.place is None and (traits.visible or traits.equivalent):
        return
    epochs = module.trainer.max_epochs
    told = module.columns_told(epochs if epochs is not None and epochs > 0 else MANY)
    line = None if told is None else told.line(module.joiner)
    if line is not None:
        rank_zero_info(line)
