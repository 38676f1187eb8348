"""Lightning's model summary with one row for the network of each party, and one for the top."""

from collections.abc import Iterator

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelSummary, RichModelSummary
from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary as Summary
from torch import nn

from lightning_vfl.networks.bank import PartyBank

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
