"""One training round between M parties and the server, as a single differentiable operation.

The messages of a round are computed without autograd, as they would be on separate machines. The autograd graph has one
node for the round. Its forward pass is the round; its backward pass is the server's ``answer`` and the parties'
``carry``. Quantised, masked and noisy sums therefore need no backward code of their own, and the server differentiates
exactly the values that it has received.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import EMBEDDINGS, InTheClear, wire_of
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.aggregators.parts import Heard, Opening, PartySide, ServerSide, Setup, Wire
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, MissingPolicy, StandIn, completed, filled_in
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.types import Parties, PartyRecords, RecordSource, Tensors, Widths, only_held
from lightning_vfl.wire import Aggregate, Contribution, Embeddings, LinearForms, Message, PartyView, ServerView, Tap

Hear = Callable[[Message], None]  # is called with every message that is sent


def contribute(
    form: type[Contribution],
    bottoms: PartyBank,
    features: Tensors,
    present: Tensor | None = None,
) -> Contribution:
    """The parties' contribution to a round, in the form that the aggregator needs.

    With ``present`` (B, M), rows that a party does not hold are exact zeros and have no gradient.
    """
    if form is Embeddings:
        h = bottoms(features)
        return Embeddings(h if present is None else only_held(h, present))
    if form is LinearForms:
        networks: list[Any] = list(bottoms.parties)  # build_bottoms has checked that they have weight and expand
        basis = tuple([network.expand(x) for network, x in zip(networks, features, strict=True)])
        return LinearForms(tuple([network.weight for network in networks]), basis)
    raise TypeError(f"form must be Embeddings or LinearForms; got {form.__name__}")


def contribute_some(bottoms: PartyBank, features: Tensors, parties: Parties, widths: Widths) -> Embeddings:
    """The embeddings of ``parties`` (at least one), and zeros for the other parties, whose bottoms do not run."""
    h = bottoms.some(features, parties)
    like = h[parties[0]]
    return Embeddings(tuple(h[m] if m in h else like.new_zeros(len(like), width) for m, width in enumerate(widths)))


class ExpandedRecords:
    """The records of a stage, expanded by the bottoms of the hosted parties; implements ``PartyRecords``.

    Args:
        source: the records.
        bottoms: the parties' networks, which have ``expand`` (see ``LinearForms``).
        device: the device of the computation.
    """

    def __init__(self, source: RecordSource, bottoms: PartyBank, device: torch.device) -> None:
        self.source = source
        self.networks: list[Any] = list(bottoms.parties)
        self.device = device

    def __len__(self) -> int:
        return len(self.source)

    def basis(self, party: int, ids: Tensor) -> Tensor:
        """(B, W_m), a party's expanded features of the records at positions ``ids``."""
        with torch.no_grad():
            network = self.networks[party]  # it has the dtype of a round's batches
            x = self.source.features_of(party, ids).to(self.device, network.weight.dtype)
            basis: Tensor = network.expand(x)
        return basis


def set_up(
    setup: Setup,
    records: PartyRecords,
    basis: Widths,
    view: PartyView,
    announce: Callable[[int, int], None] | None = None,
    hear: Hear | None = None,
) -> Any:
    """Run the set-up of parties that are all hosted here; returns their memory.

    ``announce`` is called with the number of records and of bytes before anything large is computed. ``hear``:
    an audit listens.
    """
    memory = setup.empty_memory(len(records), basis, view)
    if announce is not None and (size := getattr(memory, "nbytes", 0)):
        announce(len(records), size)
    return _exchanged(setup, setup.offer(records, memory, view), memory, view, hear)


def open_round(opening: Opening, memory: Any, view: PartyView, hear: Hear | None = None) -> Any:
    """Run the opening of a round whose parties are all hosted here; returns their memory."""
    return _exchanged(opening, opening.open(memory, view), memory, view, hear)


def _exchanged(
    part: Setup | Opening, messages: Iterable[Message], memory: Any, view: PartyView, hear: Hear | None
) -> Any:
    """The parties' memory after these messages, each of which is accepted before the next one is made."""
    for message in messages:
        if hear is not None:
            hear(message)
        memory = part.accept(memory, message, view)
    return memory


def from_senders(message: Message, senders: Tensor) -> Message:
    """The part of a message that comes from the ``senders``, (M,) bool."""
    arrived = {s: piece for s, piece in message.by_sender.items() if senders[s]}
    alongside = None if message.alongside is None else from_senders(message.alongside, senders)
    return replace(message, senders=tuple(arrived), pieces=tuple(arrived.values()), alongside=alongside)


def passed_on(message: Message) -> Message | None:
    """What the parties that answer get of a message to the server; None: it is for the server alone."""
    return message if message.to == "peers" or message.relayed else None


def decoded(side: ServerSide, policy: MissingPolicy, messages: Iterable[Message], view: ServerView) -> Aggregate:
    """The aggregate of the messages of a round, as ``ServerSide.read`` gives them; ``side.answer`` is the way back.

    The policy fills in for uploads that are missing from the first of the messages.
    """
    to_decode = [message for message in messages if passed_on(message) is None]
    if to_decode and policy.stand_in is not None:
        to_decode[0] = filled_in(policy.stand_in, to_decode[0], view)
    return side.decode(tuple(to_decode), view)


class Sides(NamedTuple):
    """A wire and its two sides. A module keeps them, because the party side keeps keystreams between rounds."""

    wire: Wire
    party: PartySide
    server: ServerSide

    @classmethod
    def of(cls, wire: Wire) -> "Sides":
        """New sides, with new secrets."""
        return cls(wire, wire.party_side(), wire.server_side())


class Exchange:
    """One round in this process, which hosts all M parties.

    Args:
        aggregator: joins the embeddings into one tensor.
        contribution: the parties' contribution; its leaves receive gradients.
        parties: the parties' view.
        server: the server's view.
        policy: the policy for missing uploads; None: missing uploads are not replaced.
        sides: the two sides of the aggregator's wire; None: new sides.
        tap: listens to the messages, for an audit; None: nobody listens.

    After ``run``, ``aggregate`` is the server's result.
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
        tap: Tap | None = None,
    ) -> None:
        self.aggregator = aggregator
        self.contribution = contribution
        self.parties = parties
        self.server = server
        self.policy = policy or Exclude()
        self.sides = sides or Sides.of(wire_of(aggregator))
        self.wire = self.sides.wire
        self.tap = tap
        if tap is not None and type(self.wire) is not InTheClear:
            # whoever is included answers also where fewer answers are enough: these are messages that an audit hears
            self.server = replace(server, roll=replace(server.roll, responders=server.roll.included))

    def run(self) -> Tensor:
        """The value of the aggregate, (B, D_out), connected to the leaves of the contribution."""
        leaves = self.contribution.leaves
        value: Tensor
        if type(self.wire) is InTheClear and not self.wire.compresses:
            value = self._in_the_clear(leaves)
        else:
            value = _Round.apply(self, *leaves)  # type: ignore[no-untyped-call]  # torch's
        if self.tap is not None:
            server = self.server
            self.tap.joined(self.aggregate.value, server.names, server.rows.ids, server.joiner)
        return value

    def _in_the_clear(self, leaves: Tensors) -> Tensor:
        """``plain`` of the embeddings. Autograd differentiates it: a node would take 0.7 ms more at M = 28."""
        server = self.server
        stand_in = self.policy.stand_in
        if self.tap is not None:
            leaves = _Heard.apply(self.tap, server, *leaves)  # type: ignore[no-untyped-call]  # torch's
            members = server.roll.included_parties
            pieces = tuple(leaves[m].detach() for m in members)
            lasting = len(pieces) == len(leaves)
            self._tell(Message(EMBEDDINGS, "server", members, pieces, round=server.names, lasting=lasting))
        h = leaves if stand_in is None else self._completed(stand_in, leaves)
        value = self.aggregator.plain(h, server.roll, server.present)
        self.aggregate = Aggregate(value.detach())
        if self.tap is not None:  # the top may write into what it is given, but not into what was sent
            return value.clone()
        return value

    def refuse_other_decoding(self) -> bool:
        """Refuse a wire whose messages decode to another value than its ``clear``, as if absent parties were there.

        Returns:
            Whether they have been compared: not if the policy has filled in for absent parties.

        Raises:
            ConfigurationError: naming the wire.
        """
        if not isinstance(self.policy, Exclude):
            return False
        with torch.no_grad():
            clear = self.wire.clear(self.contribution, self.parties, self.server.roll)
        # sums in another order differ in last bits; an absent party that is counted differs by its embedding
        if not torch.allclose(clear.value, self.aggregate.value, rtol=1e-4, atol=1e-5, equal_nan=True):
            raise ConfigurationError(
                f"{type(self.wire).__name__} decodes the messages of a round with absent parties to another value than "
                "its clear; use view.roll in decode and roll in clear"
            )
        return True

    def send(self) -> Aggregate:
        """Send all legs of the round one after the other; returns the server's decoded aggregate."""
        roll = self.server.roll
        side = self.sides.server
        if self.wire.traits.equivalent:
            return self.wire.clear(self.contribution, self.parties, roll)
        answering = roll.responding
        if self.tap is None:  # more answers do not change the result
            answering = answering[: self.wire.needed(self.server.roster.parties)]
        view = replace(self.parties, receivers=answering)
        widths = dict(enumerate(self.server.widths))
        uploads: Generator[Message, Any, None] = self.sides.party.upload(self.contribution, view)
        messages: list[Message] = []
        heard: Heard | None = None
        while True:
            try:
                message = uploads.send(heard)
            except StopIteration:
                break
            if not messages and not roll.complete:  # those of the others do not arrive in time
                message = from_senders(message, roll.included)
            message = side.read(message, widths)
            if self.tap is not None:
                self._tell(message)
            messages.append(message)
            heard = Heard(roll.included, answering, passed_on(message))
        return decoded(side, self.policy, messages, self.server)

    def send_back(self, grad: Tensor) -> Tensors:
        """dL/d leaf for every leaf, from grad (B, D_out) = dL/dz; zeros in the rows that a party does not hold.

        A server that does not know which party holds which record answers for all rows. The active party knows the
        holders. It forwards to every party a sealed answer for all rows, with zeros for records that the party does not
        hold.
        """
        answer = self.sides.server.answer(grad, self.aggregate, self.server)
        if self.tap is not None:
            widths = dict(enumerate(self.server.widths))
            self._tell(self.sides.party.read(answer, widths))  # a listener decodes as the receivers do
        grads = self.sides.party.carry(answer, self.contribution, self.parties)
        present = self.parties.present
        if present is None or self.server.present is not None or not isinstance(self.contribution, Embeddings):
            return grads
        return only_held(grads, present)

    # ---- for an audit

    def _tell(self, message: Message) -> None:
        """Pass a message to the tap, and what the server forwards of it."""
        if self.tap is None:
            return
        server = self.server
        ids = server.rows.ids
        joiner = server.joiner
        self.tap.sent(message, ids, joiner)
        if message.relayed:
            legs = self.wire.legs(len(ids), server.widths, (), server.roster)
            kind = next(leg.kind for leg in legs if leg.to == "parties")
            forwarded = torch.cat(message.pieces[: self.wire.needed(server.roster.parties)])
            pieces = (forwarded,) * len(message.senders)
            again = Message(kind, "parties", (), pieces, receivers=message.senders, round=server.names)
            self.tap.sent(again, ids, joiner)

    def _completed(self, stand_in: StandIn, leaves: Tensors) -> Tensors:
        """The leaves, with the policy's replacements for missing embeddings; parties that do not count have zeros."""
        roll = self.server.roll
        if roll.complete and self.policy.memory is None:
            return leaves
        everything = Message(EMBEDDINGS, "server", tuple(range(len(leaves))), leaves)
        return completed(stand_in, from_senders(everything, roll.included), leaves, self.server)


class _Heard(torch.autograd.Function):
    """Passes the leaves on; on the way back, tells a tap of their gradients in one message.

    It knows the view and not the exchange, which would keep the graph until Python collects cycles.
    """

    @staticmethod
    def forward(ctx: Any, tap: Tap, server: ServerView, *leaves: Tensor) -> Tensors:
        ctx.set_materialize_grads(False)
        ctx.tap = tap
        ctx.server = server
        return leaves

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        server: ServerView = ctx.server
        members = server.roll.included_parties
        ids = server.rows.ids
        like = next(g for g in grads if g is not None)
        sent = ((m, grads[m]) for m in members)  # to a party that changes nothing in the aggregate, zeros
        pieces = tuple(like.new_zeros(len(ids), server.widths[m]) if g is None else g for m, g in sent)
        lasting = len(pieces) == len(grads)  # autograd adds to a gradient in place only if nobody else has it
        answer = Message(GRADIENTS, "parties", (), pieces, receivers=members, round=server.names, lasting=lasting)
        ctx.tap.sent(answer, ids, server.joiner)
        return None, None, *grads


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *leaves: Tensor) -> Tensor:
        ctx.exchange = exchange
        exchange.aggregate = exchange.send()
        return exchange.aggregate.value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.exchange.send_back(grads[0])
