"""One training round between M parties and the server, as a single differentiable operation.

The messages of a round are computed without autograd, as they would be on separate machines. Autograd sees one node.
Its forward is the round; its backward is the server's ``answer`` and the parties' ``carry``. So quantised, masked and
noisy sums need no other backward, and the server differentiates exactly what it has received.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import EMBEDDINGS, wire_of
from lightning_vfl.aggregators.parts import Heard, Opening, PartySide, ServerSide, Setup, Wire
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.types import PartyRecords, RecordSource
from lightning_vfl.wire import Aggregate, Contribution, Embeddings, LinearForms, Message, PartyView, ServerView


def contribute(
    form: type[Contribution],
    bottoms: PartyBank,
    features: tuple[Tensor, ...],
    present: Tensor | None = None,
) -> Contribution:
    """What the parties contribute to a round, in the form that the aggregator asks for.

    With ``present`` (B, M), rows that a party does not hold are exact zeros, and no gradient goes back through them.
    """
    if form is Embeddings:
        h = bottoms(features)
        if present is not None:
            h = tuple(torch.where(present[:, m, None], x, x.new_zeros(())) for m, x in enumerate(h))
        return Embeddings(h)
    if form is LinearForms:
        networks: list[Any] = list(bottoms.parties)  # build_bottoms has seen that they have weight and expand
        basis = tuple(network.expand(x) for network, x in zip(networks, features, strict=True))
        return LinearForms(tuple(network.weight for network in networks), basis)
    raise TypeError(f"form must be Embeddings or LinearForms; got {form.__name__}")


def contribute_some(
    bottoms: PartyBank, features: tuple[Tensor, ...], parties: tuple[int, ...], widths: tuple[int, ...]
) -> Embeddings:
    """The embeddings of these parties (at least one), and zeros for the others, whose bottoms are not run."""
    h = bottoms.some(features, parties)
    like = h[parties[0]]
    return Embeddings(tuple(h[m] if m in h else like.new_zeros(len(like), width) for m, width in enumerate(widths)))


class ExpandedRecords:
    """The records of a stage, expanded by the bottoms of the parties hosted here: ``PartyRecords``.

    Args:
        source: the records.
        bottoms: the parties' networks, which offer ``expand`` (see ``LinearForms``).
        device: where to compute.
    """

    def __init__(self, source: RecordSource, bottoms: PartyBank, device: torch.device) -> None:
        self.source = source
        self.networks: list[Any] = list(bottoms.parties)
        self.device = device

    def __len__(self) -> int:
        return len(self.source)

    def basis(self, party: int, ids: Tensor) -> Tensor:
        """(B, W_m), the expanded features of these positions."""
        with torch.no_grad():
            network = self.networks[party]  # its dtype is that of the batches of a round
            x = self.source.features_of(party, ids).to(self.device, network.weight.dtype)
            basis: Tensor = network.expand(x)
        return basis


def set_up(
    setup: Setup,
    records: PartyRecords,
    basis: tuple[int, ...],
    view: PartyView,
    announce: Callable[[int, int], None] | None = None,
) -> Any:
    """The memory of the hosted parties after set-up; every message is accepted before the next one is made.

    ``announce`` is called with the number of records and of bytes before anything large is computed.
    """
    memory = setup.empty_memory(len(records), basis, view)
    if announce is not None and (size := getattr(memory, "nbytes", 0)):
        announce(len(records), size)
    for message in setup.offer(records, memory, view):
        memory = setup.accept(memory, message, view)
    return memory


def open_round(opening: Opening, memory: Any, view: PartyView) -> Any:
    """The memory of the hosted parties after the beginning of a round; every message is accepted as it comes."""
    for message in opening.open(memory, view):
        memory = opening.accept(memory, message, view)
    return memory


class Sides(NamedTuple):
    """The two sides of a wire, for as long as a fit: the party side keeps its keystreams between rounds."""

    party: PartySide
    server: ServerSide

    @classmethod
    def of(cls, wire: Wire) -> "Sides":
        """New sides, with secrets of their own."""
        return cls(wire.party_side(), wire.server_side())


class Exchange:
    """One round in this process, which hosts all M parties.

    Args:
        aggregator: how embeddings become one tensor.
        contribution: what the parties contribute; gradients flow to its leaves.
        parties: the parties' view.
        server: the server's view.
        policy: what stands in for the missing; None: nothing.
        sides: the two sides of the aggregator's wire; None: new ones.

    After ``run``, ``aggregate`` is what the server holds.
    """

    aggregate: Aggregate

    def __init__(
        self,
        aggregator: Aggregator,
        contribution: Contribution,
        parties: PartyView,
        server: ServerView,
        policy: MissingPolicy | None = None,
        sides: Sides | None = None,
    ) -> None:
        self.aggregator = aggregator
        self.contribution = contribution
        self.parties = parties
        self.server = server
        self.policy = policy or Exclude()
        self.wire = wire_of(aggregator)
        self.sides = sides or Sides.of(self.wire)

    def run(self) -> Tensor:
        """The value of the aggregate, (B, D_out), connected to the leaves of the contribution."""
        if self.aggregator.wire is None:  # autograd of plain IS the round; a node costs 0.7 ms more at M = 28
            roll, server = self.server.roll, self.server
            clear = self.aggregator.plain(self._completed(), roll, server.present)
            self.aggregate = Aggregate(clear.detach(), self.aggregator.columns(server.widths, roll))
            return clear
        value: Tensor = _Round.apply(self, *self.contribution.leaves)  # type: ignore[no-untyped-call]  # torch's
        return value

    def send(self) -> Aggregate:
        """All legs of the round in turn, and the server's decode."""
        roll = self.server.roll
        if self.wire.traits.equivalent:
            return self.wire.clear(self.contribution, self.parties, roll)
        answering = tuple(m for m in self.parties.parties if roll.responders[m])
        answering = answering[: self.wire.needed(self.server.roster.parties)]  # more answers would change nothing
        legs = self.sides.party.upload(self.contribution, replace(self.parties, receivers=answering))
        message: Message | None = next(legs)
        if message is not None and not roll.complete:
            message = _from(message, roll.included)
        to_decode: list[Message] = []
        while message is not None:
            handed_on = message if message.to == "peers" or message.relayed else None
            if handed_on is None:
                stand_in = None if to_decode else self.policy.stand_in  # for uploads, which are the first
                to_decode.append(message if stand_in is None else stand_in.fill(message, self.server))
            message = _next_leg(legs, Heard(roll.included, answering, handed_on))
        return self.sides.server.decode(tuple(to_decode), self.server)

    def send_back(self, grad: Tensor) -> tuple[Tensor, ...]:
        """dL/d leaf for every leaf, from grad (B, D_out) = dL/dz; zeros in the rows that a party does not hold.

        A server that does not know who holds which record answers for all rows. The active party knows it, and passes
        on to every party a sealed answer of all rows, with zeros for records that the party does not hold.
        """
        answer = self.sides.server.answer(grad, self.aggregate, self.server)
        grads = self.sides.party.carry(answer, self.contribution, self.parties)
        present = self.parties.present
        if present is None or self.server.present is not None or not isinstance(self.contribution, Embeddings):
            return grads
        return tuple(torch.where(present[:, m, None], g, g.new_zeros(())) for m, g in enumerate(grads))

    def _completed(self) -> tuple[Tensor, ...]:
        """The leaves, with the policy's stand-ins for the missing; parties that do not count have zeros."""
        leaves, roll = self.contribution.leaves, self.server.roll
        stand_in = self.policy.stand_in
        if stand_in is None or (roll.complete and self.policy.memory is None):
            return leaves
        everything = Message(EMBEDDINGS, "server", tuple(range(len(leaves))), leaves)
        filled = stand_in.fill(_from(everything, roll.included), self.server)
        arrived = dict(zip(filled.senders, filled.pieces, strict=True))
        return tuple(arrived[m] if m in arrived else torch.zeros_like(h) for m, h in enumerate(leaves))


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *leaves: Tensor) -> Tensor:
        ctx.exchange = exchange
        exchange.aggregate = exchange.send()
        return exchange.aggregate.value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.exchange.send_back(grads[0])


def _next_leg(legs: Generator[Message, Heard, None], heard: Heard) -> Message | None:
    """The next message of the hosted parties; None: there is no other leg."""
    try:
        return legs.send(heard)
    except StopIteration:
        return None


def _from(message: Message, senders: Tensor) -> Message:
    """What arrives of a message if only these senders, (M,) bool, are heard."""
    heard = [(s, piece) for s, piece in zip(message.senders, message.pieces, strict=True) if senders[s]]
    alongside = None if message.alongside is None else _from(message.alongside, senders)
    senders_heard, pieces = tuple(s for s, _ in heard), tuple(piece for _, piece in heard)
    return replace(message, senders=senders_heard, pieces=pieces, alongside=alongside)
