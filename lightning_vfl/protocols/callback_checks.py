"""Checks of Lightning's own callbacks: those that would break a law of the protocol are refused before training."""

from typing import TYPE_CHECKING

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
)
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.checks import refuse_accumulation

if TYPE_CHECKING:
    from lightning_vfl.protocols.training import TrainedModule


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """The callbacks of a trainer."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
    return callbacks


def refuse_callbacks(module: "TrainedModule") -> None:
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


def refuse_searches(module: "TrainedModule") -> None:
    """Refuse searches of a learning rate or a batch size for aggregators that must be set up or must account.

    Raises:
        ConfigurationError: naming the aggregator.
    """
    aggregator = module.aggregator
    if aggregator.setup is not None or aggregator.accounting is not None:
        for callback in callbacks_of(module.trainer):
            _refuse_search(callback, f"the parties are set up for {type(aggregator).__name__}")


def _refuse_search(callback: Callback, done: str) -> None:
    if isinstance(callback, LearningRateFinder | BatchSizeFinder):
        raise ConfigurationError(
            f"{type(callback).__name__} runs rounds before {done}; leave the callback out and compare values in a study"
        )
