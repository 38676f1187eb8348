"""Embeddings and model updates in the clear: how they travel if an aggregator has no part that hides them."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import FLOAT_BITS, Aggregator
from lightning_vfl.aggregators.messages import (
    GRADIENTS,
    UPDATES,
    check_message,
    gradients_in,
    only,
    refuse_infinite,
    width_of,
)
from lightning_vfl.aggregators.parts import PartySide, ServerSide, SharedBottoms, Traits, Uploads, Wire
from lightning_vfl.compressors import Compressor, Sender, bytes_of_record, unpacked
from lightning_vfl.errors import MalformedMessage
from lightning_vfl.types import Parties, Roll, Roster, RoundNames, Tensors, Widths
from lightning_vfl.wire import Aggregate, Contribution, Leg, Message, PartyView, ServerView

EMBEDDINGS = "embeddings"  # kind of the uploads
BYTE_BITS = 8  # what is compressed travels as bytes


def wire_of(aggregator: Aggregator) -> Wire:
    """The aggregator's wire; ``InTheClear`` if it has none."""
    return aggregator.wire or InTheClear(aggregator)


def shared_bottoms_of(aggregator: Aggregator) -> SharedBottoms:
    """How the aggregator joins model updates; ``UpdatesInTheClear`` if it has no such part."""
    return aggregator.shared_bottoms or UpdatesInTheClear()


class EmbeddingWire(Wire, ABC):
    """A wire whose uploads have the shape of embeddings: one float32 leg to the server, gradients back.

    Subclass it for embeddings that a party changes before it sends them.
    """

    def legs(self, rows: int, widths: Widths, basis: Widths, roster: Roster) -> tuple[Leg, ...]:
        return (Leg(EMBEDDINGS, "server", rows * torch.tensor(widths), FLOAT_BITS),)

    def downlink(self, rows: int, widths: Widths, roster: Roster) -> Leg:
        return gradients_leg(rows, widths)

    def needed(self, parties: int) -> int:
        return 1

    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        return arrived

    def refuse_partly_held(self, present: Tensor | None, roster: Roster) -> None:
        return


@dataclass(frozen=True)
class InTheClear(EmbeddingWire):
    """Embeddings as they are, or in fewer bytes; the server computes ``plain`` of what it gets.

    Args:
        aggregator: any with an aggregate of single embeddings.
        compressor: of the embeddings; None: they are sent as they are.
        gradient_compressor: of the gradients; None: they are sent as they are.
    """

    aggregator: Aggregator
    compressor: Compressor | None = None
    gradient_compressor: Compressor | None = None

    traits = Traits(visible=True, loses_quietly=True)

    @cached_property
    def compresses(self) -> bool:
        """Whether messages have other numbers than embeddings and gradients."""
        return self.compressor is not None or self.gradient_compressor is not None

    def legs(self, rows: int, widths: Widths, basis: Widths, roster: Roster) -> tuple[Leg, ...]:
        return tuple(_in_bytes(leg, self.compressor, rows, widths) for leg in super().legs(rows, widths, basis, roster))

    def downlink(self, rows: int, widths: Widths, roster: Roster) -> Leg:
        return _in_bytes(super().downlink(rows, widths, roster), self.gradient_compressor, rows, widths)

    def protection(self, uploads: int) -> str | None:
        return None

    def party_side(self) -> "ClearParty":
        return ClearParty(self.compressor, self.gradient_compressor)

    def server_side(self) -> "PlainServer":
        sender = None if self.gradient_compressor is None else Sender(self.gradient_compressor, "gradient compressor")
        return PlainServer(self.aggregator, self.compressor, sender)

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        return self.server_side().aggregate(contribution.leaves, roll, view.present)


class ClearParty(PartySide):
    """Parties that send their embeddings as they are, or compressed.

    Args:
        compressor: of the embeddings; None: they are sent as they are.
        gradient_compressor: of the server's gradients; None: they come as they are.
    """

    def __init__(self, compressor: Compressor | None = None, gradient_compressor: Compressor | None = None) -> None:
        self.sender = None if compressor is None else Sender(compressor, "compressor")
        self.gradient_compressor = gradient_compressor

    def upload(self, contribution: Contribution, view: PartyView) -> Uploads:
        by_party = zip(view.parties, contribution.leaves, strict=True)
        pieces = tuple(self.pack(party, h, view.rows.ids, view.names) for party, h in by_party)
        yield Message(EMBEDDINGS, "server", view.parties, pieces, round=view.names)

    def pack(self, party: int, h: Tensor, ids: Tensor, names: RoundNames) -> Tensor:
        """What a party sends of its embeddings."""
        return h if self.sender is None else self.sender.pack(party, h, ids, names)

    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> Tensors:
        self.settle(answer.receivers or ())
        widths = {party: h.shape[1] for party, h in zip(view.parties, contribution.leaves, strict=True)}
        return gradients_in(self.read(answer, widths), contribution.leaves, view)

    def settle(self, parties: Parties) -> None:
        """The server has used the embeddings of these parties, and those of no other."""
        if self.sender is not None:
            self.sender.settle(parties)

    def read(self, message: Message, widths: Mapping[int, int]) -> Message:
        return _read(message, self.gradient_compressor, message.receivers or (), widths)


class _Saved(NamedTuple):
    """The uploads and the aggregate with its autograd graph, for the server's answer."""

    h: Tensors
    z: Tensor


@dataclass(frozen=True)
class PlainServer(ServerSide):
    """A server that computes ``plain`` of the embeddings that it receives, and differentiates it by autograd.

    Args:
        aggregator: has ``plain``.
        compressor: of the embeddings; None: they come as they are.
        sender: compresses the gradients; None: they are sent as they are.
    """

    aggregator: Aggregator
    compressor: Compressor | None = None
    sender: Sender | None = None

    def read(self, message: Message, widths: Mapping[int, int]) -> Message:
        return _read(message, self.compressor, message.senders, widths)

    def pack(self, party: int, gradient: Tensor, ids: Tensor, names: RoundNames) -> Tensor:
        """What the server sends of a party's gradients; the party uses it, or is gone."""
        if self.sender is None:
            return gradient
        piece = self.sender.pack(party, gradient, ids, names)
        self.sender.settle((party,))
        return piece

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        message = only(messages)
        rows = len(view.rows.ids)
        shapes = {m: (rows, view.widths[m]) for m in view.roll.counted}
        check_message(message, EMBEDDINGS, "server", shapes, None, view.names, view.roll.included_parties)
        refuse_infinite(message)
        like = message.pieces[0] if message.pieces else view.rows.ids.new_zeros((), dtype=torch.get_default_dtype())
        arrived = message.by_sender
        h = tuple(arrived[m] if m in arrived else like.new_zeros(rows, width) for m, width in enumerate(view.widths))
        return self.aggregate(h, view.roll, view.present)

    def aggregate(self, h: Tensors, roll: Roll, present: Tensor | None) -> Aggregate:
        """``plain`` of these embeddings, with the autograd graph that ``answer`` needs."""
        with torch.enable_grad():
            leaves = tuple(x.detach().requires_grad_() for x in h)
            z = self.aggregator.plain(leaves, roll, present)
        return Aggregate(z.detach(), saved=_Saved(leaves, z))

    def answer(self, grad: Tensor, aggregate: Aggregate, view: ServerView) -> Message:
        saved = aggregate.saved
        members = view.roll.included_parties
        uploads = [saved.h[m] for m in members]
        found: tuple[Tensor | None, ...] = (None,) * len(uploads)
        if uploads and saved.z.requires_grad:
            found = torch.autograd.grad(saved.z, uploads, grad, allow_unused=True)
        grads = (torch.zeros_like(h) if g is None else g for g, h in zip(found, uploads, strict=True))
        pieces = tuple(self.pack(m, g, view.rows.ids, view.names) for m, g in zip(members, grads, strict=True))
        return Message(GRADIENTS, "parties", (), pieces, receivers=members, round=view.names)


class UpdatesInTheClear(SharedBottoms):
    """Model updates as they are, in float32."""

    @property
    def bits(self) -> int:
        return FLOAT_BITS

    def tell(self, updates: Mapping[int, Tensor], view: PartyView) -> Message:
        members = tuple(sorted(updates))
        return Message(UPDATES, "server", members, tuple(updates[m] for m in members), round=view.names)

    def join(self, message: Message, view: ServerView) -> Tensor:
        checked_group(message, None, view)
        return torch.stack(message.pieces).sum(0)


def _in_bytes(leg: Leg, compressor: Compressor | None, rows: int, widths: Widths) -> Leg:
    """A leg of numbers as it is sent: compressed, with one operation for each number."""
    if compressor is None:
        return leg
    sizes = torch.tensor([bytes_of_record(compressor, width) for width in widths])
    return replace(leg, elements=rows * sizes, bits=BYTE_BITS, flops=leg.flops + leg.elements.double())


def _read(
    message: Message, compressor: Compressor | None, parties: Sequence[int], widths: Mapping[int, int]
) -> Message:
    """The numbers of a compressed message; ``parties``: whose pieces it has."""
    if compressor is None:
        return message
    if len(parties) != len(message.pieces) or not {*parties} <= widths.keys():
        raise MalformedMessage(f"'{message.kind}' of parties {list(parties)} has {len(message.pieces)} pieces")
    dtype = torch.get_default_dtype()
    found = [
        unpacked(compressor, piece, widths[party], f"'{message.kind}' of party {party}").to(dtype)
        for party, piece in zip(parties, message.pieces, strict=True)
    ]
    return replace(message, pieces=tuple(found))


def gradients_leg(rows: int, widths: Widths) -> Leg:
    """The gradient of each party's embedding, float32, (rows, D_m)."""
    return Leg(GRADIENTS, "parties", rows * torch.tensor(widths), FLOAT_BITS)


def checked_group(message: Message, dtype: torch.dtype | None, view: ServerView) -> Parties:
    """The group whose parties have all sent their updates of this type.

    Raises:
        MalformedMessage: if the first sender is of no group, or one of its group has sent nothing, or something else.
    """
    for group in view.roster.groups:
        if message.senders and message.senders[0] in group:
            shapes = dict.fromkeys(group, (width_of(message),))
            check_message(message, UPDATES, "server", shapes, dtype, view.names, group)
            return group
    raise MalformedMessage(
        f"'{message.kind}' came from senders {list(message.senders)}; it must come from the parties of one group"
    )
