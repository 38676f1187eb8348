"""A training or an evaluation whose numbers are NaN ends: nothing can be learnt or decided from them."""

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.tuner.lr_finder import _LRCallback
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.books import EpochLoss


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
    if torch.as_tensor(loss.total).isnan() and not (scaled or _searches(trainer)):
        raise ConfigurationError(
            f"the training loss is NaN in epoch {loss.number}, and parameters that are NaN learn nothing more; use a "
            "lower learning rate, trainer.gradient_clip_val, or a loss that is finite for these labels"
        )


def refuse_nan_output(output: Tensor, record_ids: Tensor, trainer: Trainer) -> None:
    """Refuse outputs of NaN: metrics and decisions would count them as some class.

    Args:
        output: (B, outputs) of records that get a prediction.
        record_ids: (B,) their positions.
        trainer: of the evaluation; a search of a learning rate goes on.

    Raises:
        ConfigurationError: naming the first record.
    """
    wrong = output.isnan()
    if wrong.any() and not _searches(trainer):
        wrong = wrong.reshape(len(output), -1).any(1)
        raise ConfigurationError(
            f"the model's output is NaN for {int(wrong.sum())} of {len(wrong)} records of a batch, first for the "
            f"record at position {int(record_ids[wrong][0])}; train again with a lower learning rate or "
            "trainer.gradient_clip_val, or use an earlier checkpoint"
        )


def _searches(trainer: Trainer) -> bool:
    return any(isinstance(callback, _LRCallback) for callback in trainer.callbacks)  # type: ignore[attr-defined]  # set in Trainer.__init__
