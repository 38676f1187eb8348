"""Networks that are asked for before a fit builds them, and the toolkit's own callbacks before a fit.

One line says how to build networks earlier. For callbacks that read the module in their ``setup`` they are built in
time. Lightning's model summary gets one row for the network of each party.
"""

from collections.abc import Iterator

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    Callback,
    ModelSummary,
    RichModelSummary,
    StochasticWeightAveraging,
)
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary as Summary
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.bank import PartyBank

_READERS = StochasticWeightAveraging, BaseFinetuning
_WITHOUT = "lightning", "pytorch_lightning", "lightning_vfl"  # whose other callbacks need no networks in setup


class NotBuilt(ConfigurationError, AttributeError):
    """A module was asked for its networks, or for what depends on the shapes of the data, before both are known."""


def not_built(module: LightningModule, asked: str) -> NotBuilt:
    """The error of a module that is asked for something too early.

    Examples:
        >>> from lightning_vfl import SplitVFL
        >>> from lightning_vfl.aggregators import Mean
        >>> SplitVFL(Mean()).top
        Traceback (most recent call last):
        ...
        lightning_vfl.protocols.early_build.NotBuilt: SplitVFL has no top before its networks are built, for which it \
must know the data: a fit builds them, and build_for(datamodule) builds them earlier
    """
    known = module.hparams.get("party_shapes") is not None
    cli = "; LightningCLI's --optimizer asks too early: use --model.optimizer" if asked == "parameters" else ""
    return NotBuilt(
        f"{type(module).__name__} has no {asked} before its networks are built, for which it must know the data: a fit "
        f"builds them, and {'configure_model()' if known else 'build_for(datamodule)'} builds them earlier{cli}"
    )


class BuildNetworks(Callback):
    """Builds the networks as soon as the data are set up; it comes before all other callbacks."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        strategy = trainer.strategy
        with (
            strategy.tensor_init_context(),
            strategy.model_sharded_context(),
            strategy.precision_plugin.module_init_context(),
        ):
            pl_module.configure_model()


def with_networks(callbacks: list[Callback]) -> list[Callback]:
    """The callbacks; if one of them may read networks in its ``setup``, another one builds the networks first."""
    built = any(isinstance(callback, BuildNetworks) for callback in callbacks)
    return [BuildNetworks(), *callbacks] if not built and any(map(_reads_networks, callbacks)) else callbacks


def _reads_networks(callback: Callback) -> bool:
    """Whether a callback copies or freezes networks in its ``setup``, as an author's own may do."""
    own = type(callback).__module__.partition(".")[0] not in _WITHOUT
    return isinstance(callback, _READERS) or (own and is_overridden("setup", callback, parent=Callback))


_DEPTH = 3  # levels of a name such as bottoms.parties.0


class PartyRows(Summary):
    """A summary whose rows are the networks of the owners; parts without parameters have no row.

    Args:
        module: a protocol whose networks are built.

    Examples:
        >>> from lightning_vfl import SplitVFL
        >>> from lightning_vfl.aggregators import Mean
        >>> module = SplitVFL(Mean(), party_shapes=[(3,), (2,)], num_classes=2)
        >>> module.configure_model()
        >>> PartyRows(module).layer_names
        ['bottoms.parties.0', 'bottoms.parties.1', 'top']
    """

    def __init__(self, module: LightningModule) -> None:
        super().__init__(module, max_depth=_DEPTH)

    @property
    def named_modules(self) -> list[tuple[str, nn.Module]]:
        return list(_rows(self._model))


class PlainPartySummary(ModelSummary):
    """Prints ``PartyRows`` as text before training."""

    def _summary(self, trainer: Trainer, pl_module: LightningModule) -> Summary:
        return PartyRows(pl_module)


class RichPartySummary(RichModelSummary):
    """Prints ``PartyRows`` as a table before training."""

    def _summary(self, trainer: Trainer, pl_module: LightningModule) -> Summary:
        return PartyRows(pl_module)


def with_party_rows(callback: Callback) -> Callback:
    """The callback; Lightning's default summary is replaced by one with a row for each party."""
    for default, own in ((ModelSummary, PlainPartySummary), (RichModelSummary, RichPartySummary)):
        if type(callback) is default and callback._max_depth == 1:
            return own(**callback._summarize_kwargs)
    return callback


def _rows(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, network in module.named_children():
        if isinstance(network, PartyBank):
            yield from ((f"{name}.parties.{number}", own) for number, own in enumerate(network.parties))
        elif any(True for _ in network.parameters()):
            yield name, network
