"""What a training logs: losses of steps and epochs, and beside them where the training stands."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.protocols.books import EpochLoss
from lightning_vfl.types import VerticalBatch

if TYPE_CHECKING:
    from lightning_vfl.protocols.evaluation import EvaluatedModule
    from lightning_vfl.protocols.training import TrainedModule


def log_step(
    module: "TrainedModule",
    loss: Tensor | None,
    notes: Mapping[str, float | Tensor],
    batch: VerticalBatch,
    batch_idx: int,
) -> None:
    """``train/loss`` and the standing at every logging step; with an epoch's last round, its mean loss and ε too.

    Logging costs 0.2 ms a value, so values that no logger would see are not logged.

    Args:
        module: the protocol.
        loss: the mean loss of the batch; None: nobody has learnt from the round, and it enters no mean.
        notes: further values of the round, by the name they are logged under.
        batch: this process's part of the joint batch.
        batch_idx: its number in the epoch.
    """
    trainer, books = module.trainer, module.books
    total = len(batch.record_ids) if batch.joint is None else batch.joint.total
    if books.epoch_loss.number != module.current_epoch:
        books.epoch_loss = EpochLoss(module.current_epoch)
    if loss is not None:
        books.epoch_loss.add(loss.detach(), total)
    seen = batch_idx == 0 or is_due(module.global_step + 1, trainer.log_every_n_steps)  # type: ignore[attr-defined]  # set in Trainer.__init__
    if not (seen or trainer.is_last_batch):
        return
    joint = trainer.world_size > 1
    module.log_dict(_exact(module))
    if seen and loss is not None:
        module.log("train/loss", loss.detach(), prog_bar=True, sync_dist=joint, batch_size=total)
        for name, value in notes.items():
            module.log(name, value, sync_dist=joint, batch_size=total)
    if not trainer.is_last_batch:
        return
    if books.epoch_loss.rows:
        mean = books.epoch_loss.mean()
        module.log("train/loss_epoch", mean, on_step=False, on_epoch=True, sync_dist=joint, batch_size=1)
    if module.privacy.accountant is not None:
        spent = torch.tensor(module.privacy.epsilon(), dtype=torch.float64)
        name = "privacy/update_epsilon" if module.aggregator.accounting is None else "privacy/epsilon"
        module.log(name, spent, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=joint)


def log_standing(module: "EvaluatedModule") -> None:
    """Beside an epoch's values, so that every logger can plot them against time, bytes and passes."""
    joint = module.trainer.world_size > 1
    module.log_dict(_exact(module), on_step=False, on_epoch=True, reduce_fx="max", sync_dist=joint)


def is_due(step: int, every: int) -> bool:
    """Whether something done every so many steps is due after this one; 0: never."""
    return every > 0 and step % every == 0


def _exact(module: "EvaluatedModule") -> dict[str, Tensor]:
    """The standing as float64 tensors: Lightning would make float32 of numbers."""
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in module.standing().items()}
