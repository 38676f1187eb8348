"""Checks of Lightning's own callbacks: those that would break a law of the protocol are refused before training."""

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.tuner.lr_finder import _LRCallback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import Binary
from lightning_vfl.protocols.checks import refuse_accumulation
from lightning_vfl.protocols.model import SplitModel


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """The callbacks of a trainer."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
    return callbacks


def refuse_callbacks(module: SplitModel) -> None:
    """Refuse callbacks that cannot train this protocol; its networks are built, and no round has run.

    Raises:
        ConfigurationError: naming the callback and what to use instead.
    """
    if module._trainer is None:
        return
    refuse_accumulation(module.trainer)
    for callback in callbacks_of(module.trainer):
        if isinstance(callback, GradientAccumulationScheduler) and {*callback.scheduling.values()} != {1}:
            raise ConfigurationError(
                "GradientAccumulationScheduler sets accumulate_grad_batches to "
                f"{max(callback.scheduling.values())}, but one optimiser step would "
                "combine rounds with different parties; raise batch_size instead"
            )
        if isinstance(callback, ModelPruning):
            raise ConfigurationError(
                "ModelPruning compares the weights of different parties, which no party may see; prune each network "
                "in the function that makes it (bottom=, top=)"
            )
        if isinstance(callback, StochasticWeightAveraging) and any(
            isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()
        ):
            raise ConfigurationError(
                "StochasticWeightAveraging would run an additional epoch for the statistics of batch norm, in which no "
                "round trains; use layers without batch norm, or EMAWeightAveraging"
            )
        if module.roster.shared:
            _refuse_search(callback, "the parties that share a bottom are checked")
        if module.memory is not None:
            _refuse_search(callback, f"{type(module).__name__} has made its table of embeddings")
    refuse_searches(module)


def check_validation(module: SplitModel) -> None:
    """Refuse callbacks that choose by a score of validation which the data do not define.

    Raises:
        ConfigurationError: naming the callback and its score, if there are no validation records, or if they are all of
            one class and the score compares two.
    """
    data = module.datamodule
    records = getattr(data, "_records", None)  # a datamodule of the user's own may have no such records
    if not records:
        return
    _check_last_batch(module, len(records["train"]) if "train" in records else 0)
    val = records.get("val")
    labels = val.labels_at(torch.arange(len(val))) if val is not None and module.labels_here else None
    one_class = isinstance(module.objective, Binary) and labels is not None and len(labels.unique()) == 1
    if val is not None and labels is not None and one_class:
        classes = data.class_names or range(2)
        rank_zero_info(
            f"the {len(val)} validation records are all of class {classes[int(labels[0])]}: val/auroc and "
            "val/average_precision are not defined (nan)"
        )
    for callback in callbacks_of(module.trainer):
        score = getattr(callback, "monitor", None) or ""
        if not isinstance(callback, EarlyStopping | ModelCheckpoint) or not score.startswith("val/"):
            continue
        if val is None:
            raise ConfigurationError(
                f"{type(callback).__name__} chooses by {score}, and there are no validation records; give a val_share "
                "above 0, or let it monitor train/loss"
            )
        if one_class and score in ("val/auroc", "val/average_precision"):
            raise ConfigurationError(
                f"{type(callback).__name__} chooses by {score}, which is not defined: the {len(val)} validation "
                "records are all of one class; use another split or seed, or let it monitor val/loss"
            )


def _check_last_batch(module: SplitModel, records: int) -> None:
    """Refuse a last batch of one record, from which batch norm of features (B, width) has no variance."""
    data = module.datamodule
    size = data.batch_size
    alone = module.trainer.world_size == 1
    if not alone or data.drop_last or not records or records % size != (1 if size > 1 else 0):
        return
    layers = (layer for network in (*module.bottoms.parties, module.top) for layer in network.modules())
    if any(isinstance(layer, nn.BatchNorm1d) for layer in layers):
        raise ConfigurationError(
            f"{records} training records in batches of {size} leave a last batch of one record, for which batch norm "
            f"has no variance; give {'a larger' if size == 1 else 'drop_last: true, or another'} batch_size"
        )


def refuse_searches(module: SplitModel) -> None:
    """Refuse searches of a learning rate or a batch size for aggregators that must be set up or must account.

    Raises:
        ConfigurationError: naming the aggregator.
    """
    aggregator = module.aggregator
    if aggregator.setup is not None or aggregator.accounting is not None:
        for callback in callbacks_of(module.trainer):
            _refuse_search(callback, f"the parties are set up for {type(aggregator).__name__}")
    if module.has_rates and any(isinstance(callback, LearningRateFinder) for callback in callbacks_of(module.trainer)):
        raise ConfigurationError(
            "LearningRateFinder finds one rate for all, and optimizer_of has rates too; leave out lr of optimizer_of"
        )


def repeat_last_loss(trainer: Trainer) -> None:
    """Let a search of a learning rate take the last known loss for a round that was given up, which has none."""
    for callback in callbacks_of(trainer):
        if isinstance(callback, _LRCallback):
            callback.best_loss = inf  # Lightning takes that of the first step, which may be a round without a loss
            callback.on_train_batch_end = _repeating(callback.on_train_batch_end)  # type: ignore[method-assign]


def _repeating(end: Callable[..., None]) -> Callable[..., None]:
    """The end of a batch in a search, in which the loss of a round that was given up is that of the round before."""
    last: dict[str, Tensor] = {}

    def on_train_batch_end(trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not outputs["loss"].isnan():
            last.update(outputs)
        end(trainer, module, last, batch, batch_idx)

    return on_train_batch_end


def _refuse_search(callback: Callback, done: str) -> None:
    if isinstance(callback, LearningRateFinder | BatchSizeFinder):
        raise ConfigurationError(
            f"{type(callback).__name__} runs rounds before {done}; leave the callback out and compare values in a study"
        )
