"""The two sides of an aggregator's wire, played leg by leg."""

from torch import Tensor

from lightning_vfl.aggregators import Aggregator, PartySide
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.aggregators.parts import Heard
from lightning_vfl.wire import Aggregate, Contribution, Message, PartyView, ServerView


class Upload:
    """One round of hosted parties.

    Args:
        aggregator: whose wire it is.
        contribution: of the hosted parties.
        view: theirs.
        side: their party side; None: a new one.

    ``first`` is the first leg; ``then`` gives the next one.
    """

    def __init__(
        self, aggregator: Aggregator, contribution: Contribution, view: PartyView, side: PartySide | None = None
    ) -> None:
        self.view = view
        self.legs = (side or wire_of(aggregator).party_side()).upload(contribution, view)
        self.first = next(self.legs)

    def then(
        self, included: Tensor, received: Message | None = None, parties: tuple[int, ...] | None = None
    ) -> Message:
        """The next leg of these parties (None: of all that are hosted), after the last leg has been closed."""
        return self.legs.send(Heard(included, self.view.parties if parties is None else parties, received))


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
