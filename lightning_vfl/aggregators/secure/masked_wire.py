"""How masked sums travel: the parties' uploads, the server's sum, and the gradient back."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import gradients_leg
from lightning_vfl.aggregators.messages import GRADIENTS, check_message, gradients_in, refuse_outside
from lightning_vfl.aggregators.parts import PartySide, ServerSide, Traits, Uploads, Wire
from lightning_vfl.aggregators.secure.codec import Codec, note_clipped, refuse_other_integers, try_codec
from lightning_vfl.aggregators.secure.consent import LISTS, SIGNED
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.opening import check_selection
from lightning_vfl.aggregators.secure.period_keys import bytes_of
from lightning_vfl.aggregators.secure.recovery import FIELD, LIMBS, REVEALED, ROUND_KEYS, WORD
from lightning_vfl.aggregators.secure.ring_sums import RingSums, Segments, segments
from lightning_vfl.crypto.identities import SIGNATURE
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.privacy.draws import OwnKeystreams
from lightning_vfl.types import Parties, Roll, Roster, Tensors, Widths, numbers_in
from lightning_vfl.wire import Aggregate, Contribution, Gate, Leg, Message, PartyView, ServerView

if TYPE_CHECKING:
    from numpy.typing import NDArray

UPLOADS = "masked embeddings"  # kind of the uploads


@dataclass(frozen=True)
class MaskedWire(Wire):
    """Integers under masks that cancel in the sum.

    Args:
        layer: which sums there are, and how they are hidden.
        codec: how embeddings become integers; None: the parties are not known yet.
        roster: the parties; None: not known yet.
        equivalent: rounds sum the same integers without masks.
        claim: what the codec hides besides, in words, for the members of the smallest sum and so many uploads.
    """

    layer: SecureLayer
    codec: Codec | None
    roster: Roster | None
    equivalent: bool
    claim: Callable[[int, int], str] | None = None

    @cached_property
    def traits(self) -> Traits:
        loses_quietly = self.layer.layout == "segments" or self.layer.recovery is not None
        charged = self.claim is not None  # the sums are of random draws, and each sum is charged
        steady = charged or self.layer.layout == "segments"
        return Traits(False, loses_quietly, everybody_called=True, equivalent=self.equivalent, steady=steady)

    # ---- traffic

    def legs(self, rows: int, widths: Widths, basis: Widths, roster: Roster) -> tuple[Leg, ...]:
        sums = self.layer.segments(roster)
        elements = rows * torch.tensor(widths)
        sizes = [len(members) for members in sums.members]
        shared = [self.layer.masked_with(size) or size - 1 for size in sizes]
        masks_added = torch.tensor([shared[first] for first, *_ in sums.of])
        upload = Leg(UPLOADS, "server", elements, self.layer.bits, (elements * masks_added).double())
        sharing = self.layer.sharing
        if sharing is None:
            return (upload,)

        parties = roster.parties
        needed = self.needed(parties)
        circle = 1 + (sharing.neighbours(parties) or parties - 1)

        def leg(kind: str, to: Literal["server", "parties"], size: int, gate: Gate | int, bits: int = 8) -> Leg:
            return Leg(kind, to, torch.full((parties,), size), bits, gate=gate)

        # Bonawitz et al. 2017, figure 4: what rebuilds the masks of a lost party
        return (
            upload,
            leg(ROUND_KEYS, "server", sharing.key_bytes(parties), Gate.PREVIOUS),
            leg(SIGNED, "server", SIGNATURE, needed),
            replace(leg(LISTS, "parties", needed * SIGNATURE, Gate.ALL), delay_share=0.0),
            leg(REVEALED, "server", circle * LIMBS, needed, FIELD.wire_bits),
        )

    def downlink(self, rows: int, widths: Widths, roster: Roster) -> Leg:
        return gradients_leg(rows, widths)

    # ---- who takes part

    def needed(self, parties: int) -> int:
        return self.layer.sums.needed(parties)

    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        return self.layer.takes_part(called, arrived, roster)

    def refuse_partly_held(self, present: Tensor | None, roster: Roster) -> None:
        """If all groups but one lack a record, its row is that one's embedding."""
        if present is None or self.layer.allow_single:
            return
        for group in roster.groups:
            held = present[:, list(group)].any(1)
            if not held.all():
                raise ConfigurationError(
                    f"{int((~held).sum())} records are held by no party of group {group}, first at position "
                    f"{int((~held).nonzero()[0])}: another's embedding might stand alone in their sum; leave them out "
                    "(overlap: inner), or accept it with allow_single: true"
                )

    # ---- what is claimed

    def protection(self, uploads: int) -> str:
        if self.equivalent:
            return "none: execution: equivalent sends no masks"
        if self.layer.insecure_seeded_secrets:
            return "none: insecure_seeded_secrets"
        words = ["single uploads are hidden: the server learns sums of embeddings"]
        if self.roster is not None:
            words += self._among(self.roster)
        if self.layer.identities is None:
            words.append("it is trusted not to replace public keys, which nobody signs (identities)")
        if self.claim is not None and self.roster is not None:
            n = min(len(members) for members in self.layer.segments(self.roster).members)
            words.append(self.claim(n, uploads))
        return "; ".join(words)

    def _among(self, roster: Roster) -> Iterator[str]:
        """What members that collude with the server learn."""
        layer = self.layer
        parties = roster.parties
        largest = layer.segments(roster).largest
        neighbours = layer.masked_with(largest)
        sharing = layer.sharing
        if sharing is not None and neighbours is not None and layer.neighbours is not None:
            yield (
                f"with up to {sharing.tolerated(parties)} of {parties} parties that collude with it, the sum of the "
                f"others, also if it lies about who is lost, but with probability {layer.neighbours.failure:.0e} for "
                f"each period of keys, as long as a record is always summed over the same parties; each shares masks "
                f"and secrets with {neighbours} neighbours, and up to {parties - sharing.answers(parties)} parties may "
                "be lost or absent (neighbours, recovery)"
            )
        elif sharing is not None:
            yield (
                f"with up to {sharing.tolerated(parties, lies=False)} parties that collude with it, the sums of the "
                f"others; if it lies about who is lost, with up to {sharing.tolerated(parties)} (recovery by "
                f"{sharing.answers(parties)} of {parties} parties), as long as a record is always summed over the same "
                "parties"
            )
        elif layer.neighbours is not None and neighbours is not None:
            yield (
                f"with up to {layer.colluders(roster)} of {largest} members of a sum that collude with it, the sum of "
                f"the others, but with probability {layer.neighbours.failure:.0e} for each set of members in a period "
                f"of keys, because each shares masks with {neighbours} neighbours (neighbours)"
            )
        else:
            yield "with members that collude with it, the sums of the others"
        if roster.active is not None and layer.layout == "segments":
            yield (
                f"one that colludes is enough to read party {roster.active}'s columns of its segment, and party "
                f"{roster.active} to read everything"
            )
        if alone := ", ".join(str(roster.groups[number]) for number in layer.exposed(roster)):
            yield f"NOTHING hides the embeddings of {alone} (allow_single)"
        if pairs := ", ".join(str(group) for group in roster.shared if len(group) == 2):
            yield f"each of two parties learns the other's model updates in {pairs} (allow_single)"

    # ---- the two sides

    def party_side(self) -> "MaskedParty":
        return MaskedParty(self.layer, self._known_codec())

    def server_side(self) -> "MaskedServer":
        return MaskedServer(self.layer.sums, self._known_codec())

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        party, server = self._without_messages
        _, slots, integers = party.integers(contribution, view)
        values = dict(zip(slots, integers.numpy(), strict=True))
        sums = self.layer.segments(view.roster)
        counted = sums.counted(roll)
        totals = []
        for segment, members in enumerate(counted):
            summands = [values[m, segment] for m in members]
            totals.append(np.stack(summands).sum(0) if summands else np.zeros(0, np.int64))
        width = contribution.leaves[0].shape[1] // len(sums.of[0])
        return server.aggregate(totals, counted, width, view.rows.ids)

    @cached_property
    def _without_messages(self) -> "tuple[MaskedParty, MaskedServer]":
        """The sides that ``clear`` computes with, made once: a new party side draws new keys."""
        return self.party_side(), self.server_side()

    def _known_codec(self) -> Codec:
        if self.codec is None:
            raise ConfigurationError(
                "the number of parties decides how embeddings become integers, and it is not known yet; call "
                "aggregator.among(roster) and use the aggregator that it returns"
            )
        return self.codec


class MaskedParty(PartySide):
    """Parties that upload integers under masks. In their first round they try the codec.

    Args:
        layer: who may be summed, and how sums are hidden.
        codec: how embeddings become integers.
    """

    def __init__(self, layer: SecureLayer, codec: Codec) -> None:
        self.layer = layer
        self.codec = codec
        self._own = OwnKeystreams()
        self._tried = False

    def upload(self, contribution: Contribution, view: PartyView) -> Uploads:
        heard = yield self._masked(contribution, view)
        if self.layer.recovery is None:
            return
        heard = yield self.layer.consent(heard.included, replace(view, parties=heard.parties))
        yield self.layer.reveal(heard.included, replace(view, parties=heard.parties), heard.received)

    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> Tensors:
        """Clipping and rounding are passed straight through."""
        return gradients_in(answer, contribution.leaves, view)

    def integers(self, contribution: Contribution, view: PartyView) -> tuple[Parties, list[tuple[int, int]], Tensor]:
        """The hosted parties that are called, their (party, segment), and an integer (B, D) for each of these."""
        sums = self.layer.segments(view.roster)
        called = view.called.tolist()
        h = {m: leaf.detach() for m, leaf in zip(view.parties, contribution.leaves, strict=True) if called[m]}
        if not h:
            return (), [], torch.zeros(0, dtype=torch.int32)
        numbers = [number for number, (m, _) in enumerate(sums.slots) if m in h]
        slots = [sums.slots[number] for number in numbers]
        stacked = torch.stack([part for m in h for part in h[m].chunk(len(sums.of[m]), 1)])
        encoded = self.codec.encode(stacked, numbers, len(sums.slots), view.names, view.rows, self._own)
        if not self._tried:
            n = sums.largest
            refuse_other_integers(self.codec, encoded, stacked, n, self.layer.bits)
            try_codec(self.codec, len(sums.slots), n, self.layer.bits, view.names)
            self._tried = True
        integers, share = encoded
        note_clipped(view, "clipped_share", share)
        return tuple(h), slots, integers

    def _masked(self, contribution: Contribution, view: PartyView) -> Message:
        layer = self.layer
        sums = layer.segments(view.roster)
        check_selection(view.memory, view)
        mine, slots, integers = self.integers(contribution, view)
        words = dict(zip(slots, integers.numpy().view(WORD), strict=True))
        called = tuple(numbers_in(view.called))
        keys = []
        for segment, everybody in enumerate(sums.members):
            members = called if layer.layout == "sum" else everybody
            values = {m: words[m, segment] for m in mine if (m, segment) in words}
            if not values:
                continue
            if view.renew is not None and not {*members} <= {*called}:  # a process is gone and has no keys
                for absent in values.values():
                    absent.fill(0)  # the segment is absent: nothing is sent for it
                continue
            layer.refuse_alone(members, view.roster)
            if layer.recovery is None:
                layer.mask(values, members, "embeddings", segment, view)
            else:
                keys += [bytes_of(layer.mask_for_recovery(value, m, members, view)) for m, value in values.items()]
        pieces = torch.split(integers.view(torch.uint32), [len(sums.of[m]) for m in mine])
        alongside = Message(ROUND_KEYS, "server", mine, tuple(keys), round=view.names) if keys else None
        return Message(UPLOADS, "server", mine, pieces, alongside, round=view.names)


@dataclass(frozen=True)
class MaskedServer(ServerSide):
    """A server that adds masked uploads and decodes the sums.

    Args:
        sums: which sums there are.
        codec: what the integers stand for.
    """

    sums: RingSums
    codec: Codec

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        sums = segments(self.sums.layout, view.roster)
        check_uploads(messages, self.sums, sums, view)
        uploads = messages[0]
        arrived = uploads.by_sender
        counted = sums.counted(view.roll)
        totals = []
        for segment, members in enumerate(counted):
            pieces = [arrived[m][sums.of[m].index(segment)].numpy() for m in members]
            total = self.sums.add(pieces) if pieces else np.zeros(0, WORD)
            if pieces and uploads.alongside is not None:
                self.sums.recover(total, uploads.alongside, messages[1], view)
            totals.append(total)
        return self.aggregate(totals, counted, view.widths[0] // len(sums.of[0]), view.rows.ids)

    def aggregate(
        self, totals: "Sequence[NDArray[Any]]", counted: Sequence[Parties], width: int, ids: Tensor
    ) -> Aggregate:
        """The aggregate from the sum of the integers of each segment, and the parties in it; ``width``: of a segment.

        The rows are those of the records ``ids``.
        """
        parts = []
        for total, members in zip(totals, counted, strict=True):
            if members:
                parts.append(torch.from_numpy(self.codec.to_real(total, len(members))))
            else:
                parts.append(torch.zeros(len(ids), width, dtype=torch.float64))
        value = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        return Aggregate(value.to(ids.device, torch.get_default_dtype()))

    def answer(self, grad: Tensor, aggregate: Aggregate, view: ServerView) -> Message:
        """Each member is sent the gradient of its segments."""
        sums = segments(self.sums.layout, view.roster)
        included = view.roll.included_parties
        width = grad.shape[1] // len(sums.members)
        useful = grad
        if not view.roll.complete:
            useful = grad * sums.columns(width, view.roll).to(grad.device)
        parts = torch.split(useful, width, 1)
        pieces = []
        for m in included:
            own = sums.of[m]
            pieces.append(parts[own[0]] if len(own) == 1 else torch.cat([parts[segment] for segment in own], 1))
        return Message(GRADIENTS, "parties", (), tuple(pieces), receivers=included, round=view.names)


def check_uploads(messages: tuple[Message, ...], ring: RingSums, sums: Segments, view: ServerView) -> None:
    """The masked uploads of a round, and with recovery the keys alongside and the shares that are revealed.

    Raises:
        MalformedMessage: naming the party.
    """
    sharing = ring.sharing
    expected = 1 if sharing is None else 2
    if len(messages) != expected:
        who = sorted({sender for message in messages for sender in message.senders})
        raise MalformedMessage(f"{len(messages)} messages have come from parties {who} where {expected} were expected")
    uploads = messages[0]
    names = view.names
    of = sums.of
    shapes = {m: (len(of[m]), len(view.rows.ids), view.widths[m] // len(of[m])) for m in view.roll.included_parties}
    more = None if sharing is None else ROUND_KEYS
    check_message(uploads, UPLOADS, "server", shapes, torch.uint32, names, tuple(shapes), alongside=more)
    if ring.bits < 32:
        refuse_outside(uploads.pieces, uploads.senders, UPLOADS, 2**ring.bits)
    if uploads.alongside is None or sharing is None:
        return
    parties = view.roster.parties
    keys = dict.fromkeys(shapes, (sharing.key_bytes(parties),))
    check_message(uploads.alongside, ROUND_KEYS, "server", keys, torch.uint8, names, tuple(shapes))
    revealed = messages[1]
    shares = dict.fromkeys(view.roll.responding, (1 + (sharing.neighbours(parties) or parties - 1), LIMBS))
    check_message(revealed, REVEALED, "server", shares, torch.int64, names, ring.needed(parties))
    refuse_outside(revealed.pieces, revealed.senders, REVEALED, FIELD.modulus)
