"""The two sides of an aggregator's wire, played leg by leg."""

from torch import Tensor

from lightning_vfl.aggregators import Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.testing.rounds import Upload
from lightning_vfl.wire import Aggregate, Contribution, Message, PartyView, ServerView


def first_leg(aggregator: Aggregator, contribution: Contribution, view: PartyView) -> Message:
    """What the hosted parties send first."""
    return Upload(aggregator, contribution, view).first


def second_leg(
    aggregator: Aggregator,
    contribution: Contribution,
    view: PartyView,
    received: Message,
    included: Tensor,
    parties: tuple[int, ...] | None = None,
) -> Message:
    """What these parties (None: all that are hosted) send after they have received this; their first leg is lost."""
    return Upload(aggregator, contribution, view).then(included, received, parties)


def decoded(aggregator: Aggregator, messages: tuple[Message, ...], server: ServerView) -> Aggregate:
    """What the server makes of these messages."""
    return wire_of(aggregator).server_side().decode(messages, server)
