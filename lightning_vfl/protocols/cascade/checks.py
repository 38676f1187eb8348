"""Checks of cascade training: unsupported aggregators, policies and networks are refused."""

from torch import nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.types import Roster
from lightning_vfl.wire import Embeddings, Leg


def refuse_parts(aggregator: Aggregator, policy: MissingPolicy) -> None:
    """Refuse an aggregator and a policy for missing embeddings that do not work with cascade events.

    Raises:
        ConfigurationError: naming those that work.
    """
    name, missing = type(aggregator).__name__, type(policy).__name__
    if aggregator.form is not Embeddings:
        raise ConfigurationError(
            f"{name} computes on shares of records and models, so parties receive no gradients of embeddings; use "
            "Concat, Sum, Mean, MaskedSum or PoissonBinomial"
        )
    somebody, nobody = Roster.singles(3, active=0), Roster.singles(3)
    if not wire_of(aggregator).traits.visible and aggregator.out_width(1, somebody) != aggregator.out_width(1, nobody):
        raise ConfigurationError(
            f"{name} with this layout makes sums for one active party, but CascadeVFL has several; use layout: sum"
        )
    if policy.padding is not None:
        raise ConfigurationError(f"{missing} pads after a norm, but CascadeVFL has no norm; use Exclude")
    if policy.stand_in is not None and aggregator.wire is not None:
        raise ConfigurationError(
            f"missing: {missing} replaces single embeddings, but {name} hides these; use Exclude or Skip"
        )


def refuse_running_statistics(top: nn.Module) -> None:
    """Refuse a top with running statistics: the replicas would update them, and the collaborator's top would not.

    Raises:
        ConfigurationError: for a batch norm.
    """
    norms = (layer for layer in top.modules() if isinstance(layer, nn.modules.batchnorm._NormBase))
    if any(layer.running_mean is not None for layer in norms):
        raise ConfigurationError(
            "a batch norm in the top would update its running statistics at the active parties, but never at the "
            "collaborator; use LayerNorm in the top, or no norm"
        )


def refuse_for_parties(aggregator: Aggregator, first: Leg, parties: int) -> None:
    """Refuse an aggregator that does not hide embeddings from a party that joins them.

    Args:
        aggregator: how embeddings are joined.
        first: its first leg.
        parties: M.

    Raises:
        ConfigurationError: for shares, and for sums of two parties.
    """
    if first.to != "server":
        raise ConfigurationError(
            f"{type(aggregator).__name__} hides embeddings only from a server, but in CascadeVFL a party joins the "
            "embeddings and holds shares too; use Concat, Sum, Mean, MaskedSum or PoissonBinomial"
        )
    if not wire_of(aggregator).traits.visible and parties < 3:
        raise ConfigurationError(
            "an active party knows its own part of a sum, so it could read the other embedding of a sum of two "
            "parties; use at least 3 parties"
        )
