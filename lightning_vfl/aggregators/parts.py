"""The parts of an aggregator: abstract classes, all of whose methods are abstract, except ``read`` of the two sides.

A party's methods read their arguments and a ``PartyView``; the server's methods read messages and a ``ServerView``. The
two sides of a wire are separate objects, so that each can run in a process of its own: data reach the other side in a
``Message`` or not at all. Everything else here is configuration that both sides may know.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from lightning_vfl.aggregators.coded.blocks import Blocks
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.types import Parties, PartyRecords, Roll, Roster, Stage, Tensors, Widths
from lightning_vfl.wire import Aggregate, Contribution, Leg, Message, PartyView, ServerView


@dataclass(frozen=True)
class Traits:
    """What a protocol asks about a wire before training.

    Args:
        visible: the server can read one party's upload, so that it can reuse an old one.
        loses_quietly: the uploads that arrive can be used although another upload that was expected is lost.
        everybody_called: parties that hold none of a batch's records take part too, so that nobody can tell.
        equivalent: rounds run ``Wire.clear`` instead of the messages: same value, bytes and seconds, no secrets.
        corrects: how many wrong answers are corrected in a round.
        steady: two aggregates of one record never differ by one party's embedding: every sum is always of the same
            parties, or noise is charged for each sum.
    """

    visible: bool
    loses_quietly: bool
    everybody_called: bool = False
    equivalent: bool = False
    corrects: int = 0
    steady: bool = False

    @cached_property
    def subtractable(self) -> bool:
        """Whether uploads are hidden, and sums with and without a party still tell the party's embedding."""
        return not (self.visible or self.steady)


@dataclass(frozen=True)
class Heard:
    """What the hosted parties are told when a leg is closed.

    Args:
        included: (M,) bool, the parties whose first upload is in the aggregate.
        parties: the hosted parties that send the next leg.
        received: the messages of the peers, or a message that the server relays; None: nothing.
    """

    included: Tensor
    parties: Parties
    received: Message | None


Uploads = Generator[Message, Heard, None]
"""The messages of the hosted parties in a round, one leg after the other; the caller sends ``Heard`` after each leg."""


class PartySide(ABC):
    """The side of the hosted parties in the rounds of a fit; it holds their keystreams and nothing of the server's."""

    @abstractmethod
    def upload(self, contribution: Contribution, view: PartyView) -> Uploads:
        """The messages of the hosted parties. Hosted parties that are not called send nothing."""

    @abstractmethod
    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> Tensors:
        """One gradient for each leaf of the contribution, from the server's answer; zeros for who got no piece."""

    def read(self, message: Message, widths: Mapping[int, int]) -> Message:
        """The server's answer in numbers, for listeners; default: as it was sent. ``widths``: by party."""
        return message


class ServerSide(ABC):
    """The side of the server in the rounds of a fit."""

    def read(self, message: Message, widths: Mapping[int, int]) -> Message:
        """An upload in numbers, before missing ones are replaced; default: as it was sent. ``widths``: by party.

        Raises:
            MalformedMessage: for an upload that cannot be read; names its sender.
        """
        return message

    @abstractmethod
    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        """The aggregate, from the messages that were sent to the server and that the server does not relay.

        Raises:
            MalformedMessage: for a message that does not fit the round; names the party that sent it. An aggregator of
                your own calls ``check_message`` of ``lightning_vfl.aggregators.messages``.
        """

    @abstractmethod
    def answer(self, grad: Tensor, aggregate: Aggregate, view: ServerView) -> Message:
        """The message ``gradients`` to the parties, from grad (B, D_out) = dL/dz.

        It has no senders; ``receivers`` are the included parties, with one piece for each.
        """


class Wire(ABC):
    """How embeddings travel from the parties to the server, where they do not travel in the clear."""

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What a protocol asks before training."""

    @abstractmethod
    def legs(self, rows: int, widths: Widths, basis: Widths, roster: Roster) -> tuple[Leg, ...]:
        """The traffic of the parties in a round of ``rows`` records, from shapes alone.

        Args:
            rows: rows of the joint batch; coded rows if the aggregator has a set-up with an arrangement.
            widths: (M,) embedding widths.
            basis: (M,) widths of the expanded features for ``LinearForms``, empty for ``Embeddings``.
            roster: the parties.
        """

    @abstractmethod
    def downlink(self, rows: int, widths: Widths, roster: Roster) -> Leg:
        """The server's answer to the parties."""

    @abstractmethod
    def needed(self, parties: int) -> int:
        """The fewest answers of M parties that can be decoded. Any so many answers give the same aggregate.

        No more parties than these are asked for the legs after the first.
        """

    @abstractmethod
    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        """(M,) bool: of the parties whose first upload has arrived, those whose upload enters the aggregate.

        Also asked before a round, with the parties that could be called in both places; the result is called.
        """

    @abstractmethod
    def refuse_partly_held(self, present: Tensor | None, roster: Roster) -> None:
        """Refuse records (N, M) that not every party holds, if the aggregator cannot join them.

        Raises:
            ConfigurationError: before training.
        """

    @abstractmethod
    def protection(self, uploads: int) -> str | None:
        """What is hidden of a record after so many uploads, in words for the summary; None: nothing is claimed."""

    @abstractmethod
    def party_side(self) -> PartySide:
        """A new party side, with secrets of its own."""

    @abstractmethod
    def server_side(self) -> ServerSide:
        """A new server side."""

    @abstractmethod
    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        """The aggregate that the messages of a round give, bit for bit, without messages and secrets.

        For simulations, which host all M parties.
        """


class Setup(ABC):
    """What parties exchange before the first round of a stage."""

    @abstractmethod
    def arrangement(self, records: int, parties: int, seed: int, stage: Stage) -> Blocks:
        """How N records are stacked in coded rows, so that schedules can offer cheap batches."""

    @abstractmethod
    def legs(self, records: int, basis: Widths, roster: Roster) -> tuple[Leg, ...]:
        """The traffic of set-up, from shapes alone."""

    @abstractmethod
    def propose(self, records: PartyRecords, party: int, weight: Tensor, roster: Roster) -> Mapping[str, int]:
        """The public settings that one party proposes, from its own records and weights."""

    @abstractmethod
    def settle(self, proposals: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
        """The public settings that follow from the proposals of all parties; kept in checkpoints.

        Raises:
            ConfigurationError: if no setting suits all parties.
        """

    @abstractmethod
    def empty_memory(self, records: int, basis: Widths, view: PartyView) -> Any:
        """What the hosted parties hold before the first message has arrived."""

    @abstractmethod
    def offer(self, records: PartyRecords, memory: Any, view: PartyView) -> Iterator[Message]:
        """The messages of the hosted parties to each other, one at a time so that nothing large exists twice."""

    @abstractmethod
    def accept(self, memory: Any, message: Message, view: PartyView) -> Any:
        """What the hosted parties hold after a message has arrived."""


class Opening(ABC):
    """What parties exchange at the beginning of each round."""

    @abstractmethod
    def legs(self, rows: int, roster: Roster, called: Tensor, round: int, last: int) -> tuple[Leg, ...]:
        """The traffic at the beginning of a round, from shapes alone.

        Args:
            rows: rows of the joint batch.
            roster: the parties.
            called: (M,) bool, the parties that take part in the round.
            round: the number of the round in its stage.
            last: the number of the last round that began; -1: there was none.
        """

    @abstractmethod
    def empty_memory(self, view: PartyView) -> Any:
        """What the hosted parties hold before the first message has arrived."""

    @abstractmethod
    def open(self, memory: Any, view: PartyView) -> Iterator[Message]:
        """The messages of the hosted parties to each other; each is accepted before the next one is made."""

    @abstractmethod
    def accept(self, memory: Any, message: Message, view: PartyView) -> Any:
        """What the hosted parties hold after a message has arrived."""


class Accounting(ABC):
    """What the rounds of training cost the privacy of their records."""

    @property
    @abstractmethod
    def simulated(self) -> str | None:
        """Why the privacy figures hold in a deployment only, in words for the summary; None: they hold here."""

    @abstractmethod
    def event(self, included: Parties, widths: Widths, roster: Roster) -> PrivacyEvent | None:
        """What a round with these parties releases about each of its records; None: nothing."""

    @abstractmethod
    def colluders(self, roster: Roster) -> int:
        """The largest number of parties that may collude with the server for a figure against them to hold."""

    @abstractmethod
    def released(self, roll: Roll, sent: Tensor, roster: Roster) -> Tensor:
        """(M,) bool: the parties whose uploads the server can learn something from in the end.

        ``sent`` (M,) bool are the parties that put their first upload on the wire, in time or late: a curious server
        also reads what arrives too late for the round.
        """


class SharedBottoms(ABC):
    """How the parties of a group send the server the updates of the bottom that they share."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Wire size of one number of an update."""

    @abstractmethod
    def tell(self, updates: Mapping[int, Tensor], view: PartyView) -> Message:
        """The message ``model updates`` of the hosted parties of one group, from the update (W,) of each."""

    @abstractmethod
    def join(self, message: Message, view: ServerView) -> Tensor:
        """The sum (W,) of the updates of all parties of a group, at the server."""
