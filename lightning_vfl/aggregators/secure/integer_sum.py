"""Sums of integers of which the server learns the sums alone: what aggregators on the Secure Layer have in common."""

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.secure.codec import Codec
from lightning_vfl.aggregators.secure.consent import LISTS, SIGNED
from lightning_vfl.aggregators.secure.layer import REVEALED, ROUND_KEYS, SecureLayer
from lightning_vfl.aggregators.secure.messages import check_uploads
from lightning_vfl.aggregators.secure.period_keys import Keys
from lightning_vfl.aggregators.secure.recovery import FIELD, LIMBS, WORD
from lightning_vfl.crypto.identities import SIGNATURE
from lightning_vfl.crypto.keys import SIZE
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Roll, Roster
from lightning_vfl.wire import Aggregate, Contribution, Gate, Leg, Message, PartyView, ServerView

if TYPE_CHECKING:
    from numpy.typing import NDArray

UPLOADS = "masked embeddings"
MOST_CLIPPED = 0.01  # share of the values of a round that may be clipped without a warning


class IntegerSum(Aggregator):
    """A masked sum of what a codec makes of embeddings; the subclass says which codec.

    Args:
        layer: which sums there are, and how they are hidden.
        equivalent: compute the same integers without masks.
    """

    visible: ClassVar[bool] = False
    everybody_called: ClassVar[bool] = True

    def __init__(self, layer: SecureLayer, equivalent: bool) -> None:
        self._layer = layer
        self._equivalent = equivalent
        self._roster: Roster | None = None

    @abstractmethod
    def codec(self, roster: Roster) -> Codec:
        """How embeddings become integers among these parties.

        Raises:
            ConfigurationError: if the sum could pass the ring, with what fits.
        """

    # ---- who takes part

    @property
    def equivalent(self) -> bool:
        return self._equivalent

    @property
    def loses_quietly(self) -> bool:
        return self._layer.layout == "segments" or self._layer.recovery is not None

    def min_responses(self, parties: int) -> int:
        return 1 if self._layer.recovery is None else self._layer.recovery.needed(parties)

    def among(self, roster: Roster) -> Self:
        self._layer.check(roster)
        self.codec(roster)
        bound = copy(self)
        bound._roster = roster
        return bound

    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        return self._layer.takes_part(called, arrived, roster)

    def released(self, roll: Roll, sent: Tensor, roster: Roster) -> Tensor:
        """With recovery, a late upload stays hidden by its own mask; else, once all have come, the masks cancel."""
        return super().released(roll, sent, roster) if self._layer.recovery is None else roll.included

    def refuse_partly_held(self, present: Tensor | None, roster: Roster) -> None:
        """Every group has to hold every record: where all but one hold none, a row of the sum is that one's."""
        if present is None or self._layer.allow_single:
            return
        for group in roster.groups:
            held = present[:, list(group)].any(1)
            if not held.all():
                raise ConfigurationError(
                    f"{int((~held).sum())} records are held by nobody of group {group}, first at position "
                    f"{int((~held).nonzero()[0])}: another's embedding might stand alone in their sum; leave them out "
                    "(overlap: inner), or accept it with allow_single: true"
                )

    def protection(self, uploads: int) -> str:
        if self.equivalent:
            return "none: execution: equivalent sends no masks"
        if self._layer.insecure_seeded_secrets:
            return "none: insecure_seeded_secrets"
        roster = self._roster
        alone = () if roster is None else self._layer.exposed(roster)
        words = "the server learns sums of embeddings; with members that collude with it, the sums of the others"
        recovery = self._layer.recovery
        if roster is not None and recovery is not None:
            m, needed = roster.parties, recovery.needed(roster.parties)
            words = (
                f"the server learns sums of embeddings; with up to {recovery.tolerated(m, lies=False)} parties that "
                f"collude with it, the sums of the others; if it lies about who is lost, with up to "
                f"{recovery.tolerated(m)} (recovery by {needed} of {m} parties)"
            )
        if roster is not None and roster.active is not None and self._layer.layout == "segments":
            words += (
                f"; one that colludes is enough to read party {roster.active}'s columns of its segment, and party "
                f"{roster.active} to read everything"
            )
        if self._layer.identities is None:
            words += "; it is trusted not to replace public keys, which nobody signs (identities)"
        if roster is not None and alone:
            groups = ", ".join(str(roster.groups[number]) for number in alone)
            words += f"; NOTHING hides the embeddings of {groups} (allow_single)"
        if roster is not None and (pairs := [group for group in roster.shared if len(group) == 2]):
            groups = ", ".join(map(str, pairs))
            words += f"; each of two parties learns the other's model updates in {groups} (allow_single)"
        return words

    # ---- shapes, before anything is computed

    def widths(self, width: int, roster: Roster) -> tuple[int, ...]:
        return tuple(width * len(own) for own in self._layer.segments(roster).of)

    def out_width(self, width: int, roster: Roster) -> int:
        return width * len(self._layer.segments(roster).members)

    def legs(self, rows: int, widths: tuple[int, ...], basis: tuple[int, ...], roster: Roster) -> tuple[Leg, ...]:
        sums, elements = self._layer.segments(roster), rows * torch.tensor(widths)
        others = torch.tensor([len(sums.members[own[0]]) - 1 for own in sums.of])  # an addition for each of them
        masked = Leg(UPLOADS, "server", elements, self._layer.bits, (elements * others).double())
        if self._layer.recovery is None:
            return (masked,)
        m, nothing = roster.parties, torch.zeros(roster.parties, dtype=torch.float64)
        keys = Leg(ROUND_KEYS, "server", torch.full((m,), SIZE), 8, nothing, gate=Gate.PREVIOUS)
        needed = self.min_responses(m)
        signed = Leg(SIGNED, "server", torch.full((m,), SIGNATURE), 8, nothing, gate=needed)
        lists = Leg(LISTS, "parties", torch.full((m,), needed * SIGNATURE), 8, nothing, gate=Gate.ALL, delay_share=0.0)
        shares = Leg(REVEALED, "server", torch.full((m,), m * LIMBS), FIELD.wire_bits, nothing, gate=needed)
        return masked, keys, signed, lists, shares

    def columns(self, widths: tuple[int, ...], roll: Roll) -> Tensor:
        sums = self._layer.segments(self._known(len(widths)))
        if roll.complete or self._layer.layout == "sum":
            return torch.ones(widths[0] // len(sums.of[0]) * len(sums.members), dtype=torch.bool)
        there = [self._is_there(members, roll) for members in sums.members]
        return torch.tensor(there).repeat_interleave(widths[0] // len(sums.of[0]))

    # ---- a round's beginning

    def opening_legs(self, rows: int, roster: Roster, called: Tensor, round: int, last: int) -> tuple[Leg, ...]:
        return self._layer.opening_legs(rows, roster, called, round, last)

    def empty_memory(self, records: int, basis: tuple[int, ...], view: PartyView) -> Keys:
        return Keys()

    def open(self, memory: Keys, view: PartyView) -> Iterator[Message]:
        if not self.equivalent:
            yield from self._layer.open(memory, view)

    def accept(self, memory: Keys, message: Message, view: PartyView) -> Keys:
        return self._layer.accept(memory, message, view)

    # ---- one round

    def encode(self, contribution: Contribution, view: PartyView) -> tuple[Message, None]:
        layer, sums = self._layer, self._layer.segments(view.roster)
        layer.check_selection(view.memory, view)
        mine, integers = self._integers(contribution, view)
        words, pieces, keys, begin = integers.numpy().view(WORD), [], [], 0
        called = tuple(view.called.nonzero().flatten().tolist())
        for party in mine:
            own = words[begin : begin + len(sums.of[party])]
            begin += len(own)
            for values, segment in zip(own, sums.of[party], strict=True):
                members = called if self._layer.layout == "sum" else sums.members[segment]
                layer.refuse_alone(members, view.roster)
                if self._layer.recovery is None:
                    layer.mask(values, party, members, "embeddings", segment, view)
                else:
                    keys.append(layer.mask_for_recovery(values, party, members, view))
            pieces.append(torch.from_numpy(own))
        sent = tuple(torch.from_numpy(np.frombuffer(key, np.uint8).copy()) for key in keys)
        alongside = Message(ROUND_KEYS, "server", mine, sent, round=view.names) if sent else None
        return Message(UPLOADS, "server", mine, tuple(pieces), alongside, round=view.names), None

    def consent(self, kept: None, included: Tensor, view: PartyView) -> Message | None:
        return None if self._layer.recovery is None else self._layer.consent(included, view)

    def reveal(self, kept: None, included: Tensor, view: PartyView, signed: Message | None = None) -> Message | None:
        return None if self._layer.recovery is None else self._layer.reveal(included, view, signed)

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        self._check_uploads(messages, view)
        sums, uploads = self._layer.segments(view.roster), messages[0]
        arrived = dict(zip(uploads.senders, uploads.pieces, strict=True))
        totals = []
        for segment, members in enumerate(sums.members):
            counted = self._counted(members, view.roll)
            pieces = [arrived[m][sums.of[m].index(segment)].numpy() for m in counted]
            total = self._layer.ring_sum(pieces) if pieces else np.zeros(0, WORD)
            if pieces and uploads.alongside is not None:
                needed = self.min_responses(view.roster.parties)
                self._layer.recover(total, uploads.alongside, messages[1], needed, view)
            totals.append(total)
        return self._aggregate(totals, view.roster, view.roll, view.widths, view.rows.ids)

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        sums, width = self._layer.segments(view.roster), tuple(h.shape[1] for h in contribution.leaves)
        mine, integers = self._integers(contribution, view)
        slots = [(m, segment) for m in mine for segment in sums.of[m]]
        values = dict(zip(slots, integers.numpy(), strict=True))
        totals = []
        for segment, members in enumerate(sums.members):
            summands = [values[m, segment] for m in self._counted(members, roll)]
            totals.append(np.stack(summands).sum(0) if summands else np.zeros(0, np.int64))
        return self._aggregate(totals, view.roster, roll, width, view.rows.ids)

    def plain(self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None = None) -> Tensor:
        """The sum of the embeddings, neither clipped nor rounded."""
        sums, joined = self._layer.segments(self._known(len(h))), []
        for segment, members in enumerate(sums.members):
            total = torch.zeros_like(sums.part(h[members[0]], members[0], segment))
            for m in self._counted(members, roll):
                part = sums.part(h[m], m, segment)
                total = total + (part if present is None else torch.where(present[:, m, None], part, 0.0))
            joined.append(total)
        return torch.cat(joined, 1)

    def pullback(
        self, grad: Tensor, aggregate: Aggregate, contribution: Contribution, view: ServerView
    ) -> tuple[Tensor, ...]:
        """The gradient of its segments for every member: clipping and rounding are passed straight through."""
        sums, included = self._layer.segments(view.roster), view.roll.included_parties
        useful = grad if view.roll.complete else grad * aggregate.columns.to(grad.device)
        parts = dict(enumerate(torch.split(useful, grad.shape[1] // len(sums.members), 1)))
        return tuple(
            sums.whole(parts, m).to(h.dtype) if m in included else torch.zeros_like(h)
            for m, h in enumerate(contribution.leaves)
        )

    # ---- inside

    def _check_uploads(self, messages: tuple[Message, ...], view: ServerView) -> None:
        of, recovery = self._layer.segments(view.roster).of, self._layer.recovery is not None
        kinds = (UPLOADS, ROUND_KEYS, REVEALED) if recovery else (UPLOADS,)
        shapes = {m: (len(of[m]), len(view.rows.ids), view.widths[m] // len(of[m])) for m in view.roll.included_parties}
        share, needed = (view.roster.parties, LIMBS), self.min_responses(view.roster.parties)
        check_uploads(messages, kinds, shapes, self._layer.bits, share, SIZE, FIELD.modulus, needed, view)

    def _integers(self, contribution: Contribution, view: PartyView) -> tuple[tuple[int, ...], Tensor]:
        """The hosted parties that are called, and the integers (slots, B, D) of theirs, party by party."""
        sums, rows = self._layer.segments(view.roster), view.rows
        codec = self.codec(view.roster)
        called = view.called.tolist()
        h = {m: leaf.detach() for m, leaf in zip(view.parties, contribution.leaves, strict=True) if called[m]}
        if not h:
            return (), torch.zeros(0, dtype=torch.int32)
        slots = [number for number, (m, _) in enumerate(sums.slots) if m in h]
        stacked = torch.stack([sums.part(h[m], m, segment) for m, segment in map(sums.slots.__getitem__, slots)])
        integers, share = codec.encode(stacked, slots, len(sums.slots), view.names, rows)
        self._note(view, "clipped_share", share)
        return tuple(h), integers

    def _note(self, view: PartyView, name: str, share: float) -> None:
        """Leave a share of clipped values in the log, and warn of too many."""
        view.notes[name] = share
        if share > MOST_CLIPPED:
            what = "embeddings" if name == "clipped_share" else "model updates"
            warnings.warn(
                f"more than {MOST_CLIPPED:.0%} of the values of {what} are out of range and clipped "
                f"(aggregator/{name} in the log); use a larger clip, or a bounded bottom (output_activation: "
                "torch.nn.Tanh)",
                stacklevel=2,
            )

    def _is_there(self, members: tuple[int, ...], roll: Roll) -> bool:
        return self._layer.layout == "sum" or all(m in roll.included_parties for m in members)

    def _counted(self, members: tuple[int, ...], roll: Roll) -> tuple[int, ...]:
        """Who is in the sum of these members; nobody, where the segment has vanished."""
        return tuple(m for m in members if m in roll.included_parties) if self._is_there(members, roll) else ()

    def _aggregate(
        self, totals: "Sequence[NDArray[Any]]", roster: Roster, roll: Roll, widths: tuple[int, ...], ids: Tensor
    ) -> Aggregate:
        codec, sums, columns = self.codec(roster), self._layer.segments(roster), self.columns(widths, roll)
        nothing, parts = torch.zeros(len(ids), len(columns) // len(sums.members), dtype=torch.float64), []
        for members, total in zip(sums.members, totals, strict=True):
            counted = self._counted(members, roll)
            parts.append(torch.from_numpy(codec.to_real(total, len(counted))) if counted else nothing)
        value = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        return Aggregate(value.to(ids.device, torch.get_default_dtype()), columns)

    def _known(self, parties: int) -> Roster:
        """The parties it was made for; without a protocol, everybody alone."""
        return self._roster or Roster.singles(parties)
