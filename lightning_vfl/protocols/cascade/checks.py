"""What cascade training refuses: aggregators, policies and networks that it has no rule for."""

from torch import nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.types import Roster
from lightning_vfl.wire import Embeddings, Leg


def refuse_parts(aggregator: Aggregator, policy: MissingPolicy) -> None:
    """Refuse an aggregator and a policy for the missing that events cannot work with.

    Raises:
        ConfigurationError: naming those that can.
    """
    name, missing = type(aggregator).__name__, type(policy).__name__
    if aggregator.form is not Embeddings:
        raise ConfigurationError(
            f"{name} computes on shares of records and models, and gives no party an embedding's gradient to carry "
            "on; use Concat, Sum, Mean, MaskedSum or PoissonBinomial"
        )
    somebody, nobody = Roster.singles(3, active=0), Roster.singles(3)
    if not wire_of(aggregator).traits.visible and aggregator.out_width(1, somebody) != aggregator.out_width(1, nobody):
        raise ConfigurationError(
            f"{name}'s sums are made for one active party, and here they take turns; use layout: sum"
        )
    if policy.padding is not None:
        raise ConfigurationError(f"{missing} pads behind a norm, and CascadeVFL has none; use Exclude")
    if policy.stand_in is not None and aggregator.wire is not None:
        raise ConfigurationError(
            f"missing: {missing} stands in for single embeddings, which {name} does not send as they are; "
            "use Exclude or Skip"
        )


def refuse_running_statistics(top: nn.Module) -> None:
    """Refuse a top whose norm keeps running statistics: replicas would learn them, and the collaborator's would not.

    Raises:
        ConfigurationError: for a batch norm.
    """
    norms = (layer for layer in top.modules() if isinstance(layer, nn.modules.batchnorm._NormBase))
    if any(layer.running_mean is not None for layer in norms):
        raise ConfigurationError(
            "the top's batch norm would learn its running statistics with the active parties and never with the "
            "collaborator; use LayerNorm in the top, or no norm"
        )


def refuse_for_parties(aggregator: Aggregator, first: Leg, parties: int) -> None:
    """Refuse an aggregator that does not hide embeddings from a party that joins them.

    Args:
        aggregator: how embeddings are joined.
        first: its first leg.
        parties: M.

    Raises:
        ConfigurationError: for shares, and for sums of two.
    """
    if first.to != "server":
        raise ConfigurationError(
            f"the shares of {type(aggregator).__name__} hide embeddings from who joins them, but here that is "
            "a party, and holds shares as well; use Concat, Sum, Mean, MaskedSum or PoissonBinomial"
        )
    if not wire_of(aggregator).traits.visible and parties < 3:
        raise ConfigurationError(
            "of a sum of two parties an active party, which knows its own part, would read the other's embedding; "
            "use at least 3 parties"
        )
