"""One training round between M parties and the server, as a single differentiable operation.

Everything a round sends is computed without autograd, as it would be on separate machines; autograd sees one node whose
forward is the round and whose backward is the aggregator's ``pullback``. So quantised, masked and noisy sums need no
hand-written backward anywhere else, and what the server differentiates is exactly what it received.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
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
    """What the parties bring into a round, in the form that the aggregator wants.

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
    raise TypeError(f"no rule to bring a contribution of form {form.__name__}")


def contribute_some(
    bottoms: PartyBank, features: tuple[Tensor, ...], parties: tuple[int, ...], widths: tuple[int, ...]
) -> Embeddings:
    """The embeddings of these parties (at least one); zeros in the place of those that nobody would look at."""
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
    aggregator: Aggregator,
    records: PartyRecords,
    basis: tuple[int, ...],
    view: PartyView,
    announce: Callable[[Aggregator, int, int], None] | None = None,
) -> Any:
    """What the hosted parties know after set-up: every message is accepted before the next one is made.

    ``announce`` hears of aggregator, records and bytes before anything large is computed.
    """
    memory = aggregator.empty_memory(len(records), basis, view)
    if announce is not None and (size := getattr(memory, "nbytes", 0)):
        announce(aggregator, len(records), size)
    for message in aggregator.offer(records, memory, view):
        memory = aggregator.accept(memory, message, view)
    return memory


def open_round(aggregator: Aggregator, memory: Any, view: PartyView) -> Any:
    """The memory of the hosted parties after the beginning of a round: every message is accepted as it comes."""
    for message in aggregator.open(memory, view):
        memory = aggregator.accept(memory, message, view)
    return memory


class Exchange:
    """One round in this process: all M parties are hosted here.

    Args:
        aggregator: how embeddings become one tensor.
        contribution: what the parties bring; its leaves are what gradients flow to.
        parties: the parties' view.
        server: the server's view.
        policy: what stands in for the missing; default: nothing.

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
    ) -> None:
        self.aggregator = aggregator
        self.contribution = contribution
        self.parties = parties
        self.server = server
        self.policy = policy or Exclude()

    def run(self) -> Tensor:
        """The value of the aggregate, (B, D_out), connected to the leaves of the contribution."""
        if self.aggregator.in_the_clear:  # autograd of plain IS the round; a node costs 0.7 ms more at M = 28
            roll, server = self.server.roll, self.server
            clear = self.aggregator.plain(self._completed(), roll, server.present)
            self.aggregate = Aggregate(clear.detach(), self.aggregator.columns(server.widths, roll))
            return clear
        value: Tensor = _Round.apply(self, *self.contribution.leaves)  # type: ignore[no-untyped-call]  # torch's
        return value

    def send(self) -> Aggregate:
        """All legs of the round in turn, and the server's decode."""
        roll = self.server.roll
        if self.aggregator.equivalent:
            return self.aggregator.clear(self.contribution, self.parties, roll)
        answering = tuple(m for m in self.parties.parties if roll.responders[m])
        if self.aggregator.any_will_do:  # what is not needed is not computed
            answering = answering[: self.aggregator.min_responses(self.server.roster.parties)]
        message, kept = self.aggregator.encode(self.contribution, replace(self.parties, receivers=answering))
        if not roll.complete:
            message = _from(message, roll.included)
        asked = replace(self.parties, parties=answering)
        if message.to == "peers":
            message = self.aggregator.respond(kept, message, roll.included, asked)
            revealed = None
        else:
            signed = self.aggregator.consent(kept, roll.included, asked)
            revealed = self.aggregator.reveal(kept, roll.included, asked, signed)
        if self.policy.stand_in is not None:
            message = self.policy.stand_in.fill(message, self.server)
        messages = (message, *(() if revealed is None else (revealed,)))
        return self.aggregator.decode(messages, self.server)

    def _completed(self) -> tuple[Tensor, ...]:
        """The leaves, with what stands in for the missing; what is not counted is not looked at."""
        leaves, roll = self.contribution.leaves, self.server.roll
        stand_in = self.policy.stand_in
        if stand_in is None or (roll.complete and self.policy.memory is None):
            return leaves
        everything = Message("embeddings", "server", tuple(range(len(leaves))), leaves)
        filled = stand_in.fill(_from(everything, roll.included), self.server)
        arrived = dict(zip(filled.senders, filled.pieces, strict=True))
        return tuple(arrived[m] if m in arrived else torch.zeros_like(h) for m, h in enumerate(leaves))

    def pullback(self, grad: Tensor) -> tuple[Tensor, ...]:
        """dL/d leaf for every leaf; of an embedding, zeros in the rows that its party does not hold.

        A server that does not know who holds which record answers for all rows. The active party knows it, and passes
        on to every party a sealed answer of all rows, with zeros for records that the party does not hold.
        """
        grads = self.aggregator.pullback(grad, self.aggregate, self.contribution, self.server)
        present = self.parties.present
        if present is None or self.server.present is not None or not isinstance(self.contribution, Embeddings):
            return grads
        return tuple(torch.where(present[:, m, None], g, g.new_zeros(())) for m, g in enumerate(grads))


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *leaves: Tensor) -> Tensor:
        ctx.exchange = exchange
        exchange.aggregate = exchange.send()
        return exchange.aggregate.value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.exchange.pullback(grads[0])


def _from(message: Message, senders: Tensor) -> Message:
    """What arrives of a message when only these senders, (M,) bool, are heard."""
    heard = [(s, piece) for s, piece in zip(message.senders, message.pieces, strict=True) if senders[s]]
    alongside = None if message.alongside is None else _from(message.alongside, senders)
    senders_heard, pieces = tuple(s for s, _ in heard), tuple(piece for _, piece in heard)
    return replace(message, senders=senders_heard, pieces=pieces, alongside=alongside)
