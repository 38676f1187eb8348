"""vFedSec: embeddings are quantised and masked, the masks cancel in the sum, and the server learns nothing else."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.integer_sum import Shift, fitting_levels, uniform_words
from lightning_vfl.aggregators.recovery import FIELD, LIMBS, WORD, Recovery
from lightning_vfl.aggregators.secure_layer import REVEALED, ROUND_KEYS, Keys, SecureLayer
from lightning_vfl.crypto.keys import SIZE
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Aggregate, Contribution, Leg, Message, PartyView, Roll, Roster, ServerView

if TYPE_CHECKING:
    from numpy.typing import NDArray

RING_BITS = 32  # vFedSec section 3.5: uint32
MOST_CLIPPED = 0.01  # share of the values of a round that may be clipped without a warning


class MaskedSum(Aggregator):
    r"""The sum of embeddings of any networks, of which the server sees the sum alone: vFedSec's Secure Layer.

    Every pair of parties agrees on a key (X25519, HKDF-SHA256). In a round a party clips its embedding to [-t, t],
    rounds it stochastically to R levels, adds a mask for each party of higher number and subtracts one for each of
    lower number (AES-256-CTR), modulo 2^32. In the sum over all members of a set the masks cancel.

    Layout ``sum``: one set, everybody who is called; all embeddings add up to D columns. Layout ``segments``: passive
    group i owns columns [iD, (i + 1)D) of the joint embedding, the active party C_0 adds to all of them and is asked
    for an embedding of all; a set is a group and C_0, so that a group can vanish without the others.

    Shapes: h_m (B, D), of C_0 in ``segments`` (B, G D) for G passive groups; value (B, D) or (B, G D).
    Units: uploads in ring elements of 32 bits, gradients in float32.
    Guarantee: what the server and any members that collude with it see of the others' uploads is computationally
        indistinguishable from uniform words with the same sum (Lemma 4.1). The value is the sum of the clipped
        embeddings to n 2t/R, n the members; exactly zero where all members are zero. Keys are fresh in every period of
        ``rekey_every`` rounds and after every resume.
    Not guaranteed: anything about what the sums themselves tell, about gradients, which everybody is sent in the clear,
        or about parties that deviate. A server that colludes with all members but one knows that one's embedding; with
        ``recovery``, one that colludes with t parties can put both secrets of any other together, and read its upload.

    Args:
        layout: ``sum`` or ``segments``.
        clip: t; log ``aggregator/clipped_share`` says how much it cuts off.
        levels: R, or ``auto``: the largest power of two that fits the ring, at most 2^27.
        rekey_every: K, rounds after which all keys are renewed, in training and in evaluation.
        allow_single: accept sets in which a group's embedding stands alone; the summary names them.
        recovery: ``{threshold: t}`` or ``auto``, for layout ``sum``: parties may vanish between masking and upload.
            Every round's mask seeds are secret-shared t of n (Shamir) when keys are renewed, and any t survivors undo
            what did not cancel.
        execution: ``masked`` does all of this; ``equivalent`` computes the same integers without masks, to the same
            bits, with the same bytes and virtual seconds in the books.
        insecure_seeded_secrets: keys from a named stream instead of the operating system; for tests only.

    Raises:
        ConfigurationError: before training, for sets that hide nothing and levels that overflow the ring; in a round,
            for embeddings that are not finite.

    Example:
        >>> roster = Roster(((0,), (1,), (2,)), active=0)
        >>> MaskedSum(layout="segments").widths(64, roster), MaskedSum(layout="segments").out_width(64, roster)
        ((128, 64, 64), 128)

    References:
        Qiu et al., "Secure Vertical Federated Learning Under Unreliable Connectivity" (vFedSec), sections 3.2 to 3.5.
        Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017.
    """

    visible: ClassVar[bool] = False
    private_evaluation: ClassVar[bool] = True
    everybody_called: ClassVar[bool] = True
    incidental: ClassVar[tuple[str, ...]] = ("rekey_every", "execution", "insecure_seeded_secrets")

    def __init__(
        self,
        layout: Literal["sum", "segments"] = "sum",
        clip: float = 4.0,
        levels: int | Literal["auto"] = "auto",
        rekey_every: int = 5,
        allow_single: bool = False,
        recovery: Recovery | Literal["auto"] | None = None,
        execution: Literal["masked", "equivalent"] = "masked",
        insecure_seeded_secrets: bool = False,
    ) -> None:
        if execution not in ("masked", "equivalent"):
            raise ConfigurationError(f"execution '{execution}' is unknown; use masked or equivalent")
        Shift(clip, 2 if levels == "auto" else levels)
        self.layout = layout
        self.clip = clip
        self.levels = levels
        self.rekey_every = rekey_every
        self.allow_single = allow_single
        self.recovery = Recovery.of(recovery)
        self.execution = execution
        self.insecure_seeded_secrets = insecure_seeded_secrets
        self._layer = SecureLayer(layout, RING_BITS, rekey_every, allow_single, self.recovery, insecure_seeded_secrets)
        self._roster: Roster | None = None

    # ---- who takes part

    @property
    def equivalent(self) -> bool:
        return self.execution == "equivalent"

    @property
    def loses_quietly(self) -> bool:
        return self.layout == "segments" or self.recovery is not None

    def min_responses(self, parties: int) -> int:
        return 1 if self.recovery is None else self.recovery.needed(parties)

    def among(self, roster: Roster) -> Self:
        self._layer.check(roster)
        self.codec(roster)
        bound = copy(self)
        bound._roster = roster
        return bound

    def codec(self, roster: Roster) -> Shift:
        """How embeddings become integers among these parties.

        Raises:
            ConfigurationError: if the sum could pass the ring, with the levels that fit.
        """
        return _codec(self.clip, self.levels, max(len(members) for members in self._layer.segments(roster).members))

    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        return self._layer.takes_part(called, arrived, roster)

    def refuse_partly_held(self, present: Tensor | None, roster: Roster) -> None:
        """Every group has to hold every record: where all but one hold none, a row of the sum is that one's."""
        if present is None or self.allow_single:
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
        if self.insecure_seeded_secrets:
            return "none: insecure_seeded_secrets"
        roster = self._roster
        alone = () if roster is None else self._layer.exposed(roster)
        words = "the server learns sums of embeddings; with members that collude with it, the sums of the others"
        if roster is not None and self.recovery is not None:
            words = (
                "the server learns sums of embeddings; with up to "
                f"{self.recovery.needed(roster.parties) - 1} parties that collude with it, the sums of the others"
            )
        if roster is not None and alone:
            groups = ", ".join(str(roster.groups[number]) for number in alone)
            words += f"; NOTHING hides the embeddings of {groups} (allow_single)"
        return words

    # ---- shapes, before anything is computed

    def widths(self, width: int, roster: Roster) -> tuple[int, ...]:
        return tuple(width * len(own) for own in self._layer.segments(roster).of)

    def out_width(self, width: int, roster: Roster) -> int:
        return width * len(self._layer.segments(roster).members)

    def legs(self, rows: int, widths: tuple[int, ...], basis: tuple[int, ...], roster: Roster) -> tuple[Leg, ...]:
        sums, elements = self._layer.segments(roster), rows * torch.tensor(widths)
        others = torch.tensor([len(sums.members[own[0]]) - 1 for own in sums.of])  # an addition for each of them
        masked = Leg("masked embeddings", "server", elements, RING_BITS, (elements * others).double())
        if self.recovery is None:
            return (masked,)
        m, nothing = roster.parties, torch.zeros(roster.parties, dtype=torch.float64)
        keys = Leg(ROUND_KEYS, "server", torch.full((m,), SIZE), 8, nothing, gate="previous")
        shares = torch.full((m,), m * LIMBS)
        return masked, keys, Leg(REVEALED, "server", shares, FIELD.wire_bits, nothing, gate=self.min_responses(m))

    def columns(self, widths: tuple[int, ...], roll: Roll) -> Tensor:
        sums = self._layer.segments(self._known(len(widths)))
        if roll.complete or self.layout == "sum":
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
                members = called if self.layout == "sum" else sums.members[segment]
                layer.refuse_alone(members, view.roster)
                if self.recovery is None:
                    layer.mask(values, party, members, "embeddings", segment, view)
                else:
                    keys.append(layer.mask_for_recovery(values, party, members, view))
            pieces.append(torch.from_numpy(own))
        sent = tuple(torch.from_numpy(np.frombuffer(key, np.uint8).copy()) for key in keys)
        alongside = Message(ROUND_KEYS, "server", mine, sent) if sent else None
        return Message("masked embeddings", "server", mine, tuple(pieces), alongside), None

    def reveal(self, kept: None, included: Tensor, view: PartyView) -> Message | None:
        return None if self.recovery is None else self._layer.reveal(included, view)

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
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

    # ---- groups of several parties

    @property
    def update_bits(self) -> int:
        return RING_BITS

    def join_updates(self, updates: Mapping[int, Tensor], view: PartyView) -> Tensor:
        """The sum of a group's updates, each quantised and masked as embeddings are (vFedSec, equation 4)."""
        codec, members = self.codec(view.roster), tuple(sorted(updates))
        group = next(number for number, others in enumerate(view.roster.groups) if members[0] in others)
        stacked = torch.stack([updates[m].detach() for m in members])
        drawn = uniform_words(
            tuple(stacked.shape), view.names.seed, "rounding", "updates", view.names.stage, view.names.round, group
        )
        rounded, share = codec.to_int(stacked, drawn)
        self._note(view, "clipped_update_share", share)
        integers = rounded.numpy()
        if self.equivalent:
            total = integers.sum(0)
        else:
            words = integers.view(WORD)
            for values, party in zip(words, members, strict=True):
                self._layer.mask(values, party, members, "updates", group, view)
            total = self._layer.ring_sum(list(words))
        like = updates[members[0]]
        return torch.from_numpy(codec.to_real(total, len(members))).to(like.device, like.dtype)

    # ---- inside

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
        everybody = (len(sums.slots), rows.total, stacked.shape[2])
        drawn = uniform_words(everybody, view.names.seed, "rounding", view.names.stage, view.names.round)
        if drawn.shape != stacked.shape:
            drawn = drawn[slots, rows.start : rows.start + stacked.shape[1]]
        integers, share = codec.to_int(stacked, drawn)
        self._note(view, "clipped_share", share)
        return tuple(h), integers

    def _note(self, view: PartyView, name: str, share: float) -> None:
        """Leave a share of clipped values in the log, and warn of too many."""
        view.notes[name] = share
        if share > MOST_CLIPPED:
            what = "embeddings" if name == "clipped_share" else "model updates"
            warnings.warn(
                f"more than {MOST_CLIPPED:.0%} of the values of {what} lie outside ±{self.clip:g} and are clipped "
                f"(aggregator/{name} in the log); use a larger clip, or a bounded bottom (output_activation: "
                "torch.nn.Tanh)",
                stacklevel=2,
            )

    def _is_there(self, members: tuple[int, ...], roll: Roll) -> bool:
        return self.layout == "sum" or all(m in roll.included_parties for m in members)

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


@lru_cache(maxsize=64)
def _codec(clip: float, levels: int | Literal["auto"], n: int) -> Shift:
    """For sums of n."""
    fitting = fitting_levels(n, RING_BITS)
    if levels == "auto":
        return Shift(clip, fitting)
    if n * levels > 2**RING_BITS:
        raise ConfigurationError(
            f"the sum of {n} parties' integers below levels = {levels} does not fit the ring of 2^{RING_BITS}; use "
            f"levels: {fitting}, or auto"
        )
    return Shift(clip, levels)
