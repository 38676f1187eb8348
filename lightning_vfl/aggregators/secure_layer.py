"""vFedSec's Secure Layer on integers: keys of pairs, masks that cancel in a sum, sealed record ids."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.masked_messages import check_opening, file_once, unsealed
from lightning_vfl.aggregators.messages import refuse_lacking
from lightning_vfl.aggregators.recovery import LIMBS, MASKS, SELF, WORD, Recovery, Vault, reconstruct, unmask
from lightning_vfl.crypto import KeyPair, MaskNames, PairKeys, PairMasks, Sealed, Use, key_period
from lightning_vfl.crypto.keys import SIZE
from lightning_vfl.crypto.sealed import OVERHEAD
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Leg, Message, PartyView, Roster, RoundNames, Rows, ServerView

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    UInts = NDArray[np.unsignedinteger[Any]]

ID_BYTES = 8  # a record's position
NOT_HELD = -1  # in the place of a record that the receiver does not hold
KEYS, IDS = "public keys", "record ids"  # kinds of messages
ROUND_KEYS, SHARES, REVEALED = "round keys", "seed shares", "revealed shares"  # with recovery


@dataclass
class Keys:
    """What the hosted parties hold in one key period; in no checkpoint, and useless in a copy.

    Args:
        stage: whose rounds these keys are for.
        period: of them; -1: there are none yet.
        pairs: a hosted party's key pair.
        publics: everybody's public key, as far as it has arrived.
        masks: a hosted party's masks, and with them its keys with the others.
        seals: channels for sealed messages, by (holder of this end, the other end, sender, purpose, stage, rank).
        ids: the record ids that a hosted party was sent for the round that is going on.
        vault: what recovery needs.
    """

    stage: str = ""
    period: int = -1
    pairs: dict[int, KeyPair] = field(default_factory=dict, repr=False)
    publics: dict[int, bytes] = field(default_factory=dict)
    masks: dict[int, PairMasks] = field(default_factory=dict, repr=False)
    seals: dict[tuple[int, int, int, str, str, int], Sealed] = field(default_factory=dict, repr=False)
    ids: dict[int, bytes] = field(default_factory=dict, repr=False)
    vault: Vault = field(default_factory=Vault, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins with nothing, and makes keys of its own."""
        return vars(Keys())


@dataclass(frozen=True)
class Segments:
    """The sums of a round: a segment is one sum, and its members' masks cancel in it.

    Args:
        members: of each segment, in order of party numbers.
        of: for each party the segments that it has a part in.
        slots: all (party, segment), in order of parties and then of segments.
        first: for each party the number of its first slot.
    """

    members: tuple[tuple[int, ...], ...]
    of: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, int], ...]
    first: tuple[int, ...]

    def part(self, h: Tensor, party: int, segment: int) -> Tensor:
        """(B, D), what a party's embedding (B, segments · D) has for one of its segments."""
        own = self.of[party]
        if len(own) == 1:
            return h
        width, place = h.shape[1] // len(own), own.index(segment)
        return h[:, place * width : (place + 1) * width]

    def whole(self, parts: Mapping[int, Tensor], party: int) -> Tensor:
        """The other way round: (B, segments · D) from the segments' (B, D)."""
        own = self.of[party]
        return parts[own[0]] if len(own) == 1 else torch.cat([parts[segment] for segment in own], 1)


@lru_cache(maxsize=64)
def segments(layout: str, roster: Roster) -> Segments:
    """Layout ``sum``: one segment, of everybody. ``segments``: one a passive group, with the active party C_0."""
    everybody = range(roster.parties)
    if layout == "sum":
        members: tuple[tuple[int, ...], ...] = (tuple(everybody),)
    else:
        first = () if roster.active is None else (roster.active,)
        members = tuple(tuple(sorted((*first, *group))) for group in roster.passive)
    of = tuple(tuple(number for number, others in enumerate(members) if m in others) for m in everybody)
    slots = tuple((m, number) for m in everybody for number in of[m])
    return Segments(members, of, slots, tuple(sum(len(own) for own in of[:m]) for m in everybody))


@dataclass(frozen=True)
class SecureLayer:
    r"""Sums of integers in Z_{2^bits} over sets of parties, of which the server learns the sums alone.

    Args:
        layout: which sums there are.
        bits: of the ring, at most 32.
        rekey_every: K, rounds after which all keys are renewed.
        allow_single: let a sum of a single group's embeddings pass, which hides nothing.
        recovery: let parties vanish between masking and upload; None: then the round is lost.
        insecure_seeded_secrets: keys from a named stream instead of the operating system; for tests only.
        ledger: is told every stretch of keystream that is used; None: nobody is.

    References:
        Qiu et al., "Secure Vertical Federated Learning Under Unreliable Connectivity" (vFedSec), sections 3.2 to 3.4.
    """

    layout: Literal["sum", "segments"] = "sum"
    bits: int = 32
    rekey_every: int = 5
    allow_single: bool = False
    recovery: Recovery | None = None
    insecure_seeded_secrets: bool = False
    ledger: "Callable[[Use], object] | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.layout not in ("sum", "segments"):
            raise ConfigurationError(f"layout '{self.layout}' is unknown; use sum or segments")
        key_period(0, self.rekey_every)
        if self.recovery is not None and self.layout == "segments":
            raise ConfigurationError(
                "recovery is for layout: sum; in layout: segments a lost party's group vanishes without the others"
            )

    # ---- which sums there are, and of whom

    def segments(self, roster: Roster) -> Segments:
        """The sums among these parties."""
        return segments(self.layout, roster)

    def check(self, roster: Roster) -> None:
        """Refuse sets whose sum would be somebody's embedding.

        Members of one group hold different records, so a row has one contributor a GROUP; only others hide it.

        Raises:
            ConfigurationError: before training.
        """
        if self.layout == "segments" and not roster.passive:
            raise ConfigurationError("layout: segments has a segment for each passive group, and there is none")
        if self.recovery is not None:
            self.recovery.needed(roster.parties)
        alone = self.exposed(roster)
        if alone and not self.allow_single:
            who = f"group {roster.groups[alone[0]]}"
            remedy = (
                "let an active party with features take part (model.active: its number), use layout: sum, or accept it "
                "with allow_single: true"
                if self.layout == "segments"
                else "use more parties, or accept it with allow_single: true"
            )
            raise ConfigurationError(
                f"the masked sum of {who} has no other contributor to a record: the sum IS its embedding, nothing "
                f"would be hidden; {remedy}"
            )

    def exposed(self, roster: Roster) -> tuple[int, ...]:
        """The groups whose embeddings stand alone in a sum."""
        alone = []
        for members in self.segments(roster).members:
            inside = [number for number, group in enumerate(roster.groups) if set(group) & set(members)]
            alone += inside if len(inside) < 2 else []
        return tuple(alone)

    def refuse_alone(self, members: tuple[int, ...], roster: Roster) -> None:
        """The last word before anything is sent: nobody uploads into a set that hides nothing."""
        if not self.allow_single and _groups_among(members, roster) < 2:
            raise ConfigurationError(
                f"parties {list(members)} alone would be summed, and the sum IS an embedding of theirs; let more take "
                "part, or accept it with allow_single: true"
            )

    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        """(M,) bool: of those whose uploads have arrived, whose the server can use. Nobody: the round is lost."""
        usable, nobody = roster.whole(arrived), torch.zeros_like(arrived)
        if self.layout == "sum":
            if self.recovery is None and not torch.equal(arrived, called):
                return nobody  # a mask is missing, and nothing cancels
        elif roster.active is not None and not usable[roster.active]:
            return nobody
        groups = sum(bool(usable[list(group)].all()) for group in roster.groups)
        return usable if groups >= (1 if self.allow_single else 2) else nobody

    # ---- what a round begins with: keys, if they are due, and the selection of records

    def opening_legs(self, rows: int, roster: Roster, called: Tensor, round: int, last: int) -> tuple[Leg, ...]:
        """What the parties send each other before they compute anything: keys with the first round of a period.

        Who is away then sends and hears keys when it is back; they are counted here.
        """
        due = last < 0 or key_period(last, self.rekey_every) != key_period(round, self.rekey_every)
        others = 0 if roster.active is None else int(called.sum()) - int(called[roster.active])
        return _opening_legs(rows, roster, others, self.rekey_every if due else 0, self.recovery is not None)

    def open(self, memory: Keys, view: PartyView) -> Iterator[Message]:
        """Fresh keys at the beginning of a period; the batch's record ids from the active party."""
        period = key_period(view.names.round, self.rekey_every)
        if (memory.stage, memory.period) != (view.names.stage, period):
            memory.stage, memory.period = view.names.stage, period
            memory.pairs = {party: self._key_pair(party, view.names, period) for party in view.parties}
            for held in (memory.publics, memory.masks, memory.seals):
                held.clear()
            yield self._to_everybody(KEYS, {party: pair.public for party, pair in memory.pairs.items()}, view)
            if self.recovery is not None:
                yield from self._share_secrets(self.recovery.needed(view.roster.parties), memory, view)
        memory.ids.clear()
        if view.roster.active is not None and view.roster.active in view.parties:
            yield self._selection(view.roster.active, memory, view)

    def accept(self, memory: Keys, message: Message, view: PartyView) -> Keys:
        """File what has arrived."""
        check_opening(message, self._lengths(view), IDS, view)
        if message.kind in (KEYS, ROUND_KEYS):
            filed = memory.publics if message.kind == KEYS else memory.vault.publics
            for sender, piece in zip(message.senders, message.pieces, strict=True):
                file_once(filed, sender, piece[0].numpy().tobytes(), message.kind)
            if message.kind == KEYS and len(filed) == view.roster.parties:
                session = sha256(b"".join(filed[party] for party in range(view.roster.parties))).digest()
                for party in view.parties:
                    keys = PairKeys(party, memory.pairs[party], filed, session)
                    memory.masks[party] = PairMasks(keys, self.bits, self.ledger)
            return memory
        number = view.names.round if message.kind == IDS else memory.period
        for sender, piece in zip(message.senders, message.pieces, strict=True):
            sealed = piece.numpy()
            for party in view.parties:
                if party == sender or (message.kind == IDS and not view.called[party]):
                    continue
                seal = self._seal(party, sender, sender, message.kind, memory, view)
                content = unsealed(seal, sealed[party].tobytes(), number, sender, message.kind)
                if message.kind == IDS:
                    memory.ids[party] = content
                else:
                    memory.vault.keep(party, sender, content)
        return memory

    def _lengths(self, view: PartyView) -> dict[str, int]:
        """Bytes of a message to one receiver, by kind."""
        lengths = {KEYS: SIZE, IDS: len(view.rows.ids) * ID_BYTES + OVERHEAD}
        if self.recovery is not None:
            lengths |= {ROUND_KEYS: self.rekey_every * SIZE, SHARES: self.rekey_every * 2 * LIMBS * 4 + OVERHEAD}
        return lengths

    def _to_everybody(self, kind: str, contents: Mapping[int, bytes], view: PartyView) -> Message:
        """The same for everybody, from each of the hosted parties."""
        pieces = []
        for party in view.parties:
            content = torch.from_numpy(np.frombuffer(contents[party], np.uint8).copy())
            pieces.append(content.expand(view.roster.parties, len(content)))
        return Message(kind, "peers", view.parties, tuple(pieces), round=view.names)

    def _share_secrets(self, needed: int, memory: Keys, view: PartyView) -> Iterator[Message]:
        """Recovery: keys of the period's rounds, and everybody's shares of what belongs to them."""
        first, parties, names = memory.period * self.rekey_every, view.roster.parties, view.names
        vault = memory.vault = Vault(range(first, first + self.rekey_every))
        vault.draw(view.parties, names, self.insecure_seeded_secrets)
        yield self._to_everybody(ROUND_KEYS, vault.publics, view)
        pieces = []
        for party in view.parties:
            seeded = (names.seed, names.stage, memory.period, party) if self.insecure_seeded_secrets else None
            contents = vault.shares_of(party, needed, parties, seeded)
            piece = np.zeros((parties, len(contents[0]) + OVERHEAD), np.uint8)
            for other in range(parties):
                if other != party:
                    seal = self._seal(party, other, party, SHARES, memory, view)
                    piece[other] = np.frombuffer(seal.seal(contents[other], memory.period), np.uint8)
            pieces.append(torch.from_numpy(piece))
        yield Message(SHARES, "peers", view.parties, tuple(pieces), round=view.names)

    def _selection(self, active: int, memory: Keys, view: PartyView) -> Message:
        """One sealed list for everybody, of one length: who holds which records cannot be told from outside."""
        selected = _lists(view.rows.ids, view.present, range(view.roster.parties))
        piece = np.zeros((view.roster.parties, len(selected[active]) + OVERHEAD), np.uint8)
        for party in view.called.nonzero().flatten().tolist():
            if party != active:
                sealed = self._seal(active, party, active, IDS, memory, view).seal(selected[party], view.names.round)
                piece[party] = np.frombuffer(sealed, np.uint8)
        return Message(IDS, "peers", (active,), (torch.from_numpy(piece),), round=view.names)

    def _seal(self, own: int, other: int, sender: int, purpose: str, memory: Keys, view: PartyView) -> Sealed:
        """One end of a one-way channel between two parties; a rank's rows have a channel of their own."""
        name = own, other, sender, purpose, view.names.stage, view.rows.start
        if name not in memory.seals:
            refuse_lacking(memory.publics, range(view.roster.parties), KEYS)
            memory.seals[name] = Sealed(memory.masks[own].keys.key(other, *name[2:]))
        return memory.seals[name]

    def check_selection(self, memory: Keys, view: PartyView) -> None:
        """Every hosted party computes the records it was asked for: a batch that differs is a mix-up."""
        if not memory.ids:
            return
        own = _lists(view.rows.ids, view.present, view.parties)
        for party, ids in memory.ids.items():
            if ids != own[party]:
                raise RuntimeError(f"party {party} computes other records than the active party has selected")

    def _key_pair(self, party: int, names: RoundNames, period: int) -> KeyPair:
        if self.insecure_seeded_secrets:
            return KeyPair.insecure_seeded(names.seed, "secure layer", names.stage, period, party)
        return KeyPair()

    # ---- masks

    def mask(
        self, values: "UInts", party: int, members: Sequence[int], purpose: str, segment: int, view: PartyView
    ) -> None:
        """Turn a party's integers into what it sends: uniform words, which cancel over the members. In place."""
        names, memory = view.names, view.memory
        refuse_lacking(memory.publics, members, KEYS)
        name = MaskNames(purpose, names.stage, segment, view.rows.start, memory.period)
        memory.masks[party].add_to(values, members, name, names.round)

    def mask_for_recovery(self, values: "UInts", party: int, members: Sequence[int], view: PartyView) -> bytes:
        """The same with masks that survivors can undo for this round; gives the party's key of the round."""
        round = view.names.round
        vault: Vault = view.memory.vault
        refuse_lacking(vault.publics, members, ROUND_KEYS)
        masks = vault.masks(party, members, round, self.bits, self.ledger)
        masks.add_to(values, round_masks(view.names, view.rows), round)
        return vault.public(party, round)

    def reveal(self, included: Tensor, view: PartyView) -> Message:
        """Of everybody who was called: a share of what undoes its masks, if it is lost, else of its self-mask."""
        vault, round = view.memory.vault, view.names.round
        pieces = []
        for holder in view.parties:
            piece = torch.zeros(view.roster.parties, LIMBS, dtype=torch.int64)
            called = view.called.nonzero().flatten().tolist()
            refuse_lacking({owner for owner in called if (holder, owner) in vault.shares}, called, SHARES)
            for owner in called:
                piece[owner] = vault.reveal(holder, owner, round, SELF if included[owner] else MASKS)
            pieces.append(piece)
        return Message(REVEALED, "server", view.parties, tuple(pieces), round=view.names)

    def recover(self, total: "UInts", keys: Message, revealed: Message, needed: int, view: ServerView) -> None:
        """Take what did not cancel out of the sum of the included parties' uploads, in place."""
        parties = view.roster.parties
        seeds = reconstruct(torch.stack(revealed.pieces), revealed.senders, needed, parties)
        included, called = view.roll.included, view.roll.called
        survivors = {m: seeds[m] for m in range(parties) if included[m]}
        lost = {m: seeds[m] for m in range(parties) if called[m] and not included[m]}
        publics = {m: piece.numpy().tobytes() for m, piece in zip(keys.senders, keys.pieces, strict=True)}
        unmask(total, survivors, lost, publics, self.bits, round_masks(view.names, view.rows), view.names.round)

    def ring_sum(self, pieces: "Sequence[UInts]") -> "UInts":
        """The sum of at least one, in the ring."""
        total = pieces[0].copy()
        for piece in pieces[1:]:
            total += piece
        if self.bits < 8 * total.itemsize:
            total &= WORD(2**self.bits - 1)
        return total


def _lists(ids: Tensor, present: Tensor | None, parties: Sequence[int]) -> dict[int, bytes]:
    """What each party is told of a batch: the ids (B,) that it holds, ``NOT_HELD`` in the place of others."""
    positions = ids.cpu().numpy().astype("<i8", copy=False)
    if present is None:
        return dict.fromkeys(parties, positions.tobytes())
    held = present.cpu().numpy()
    return {m: np.where(held[:, column], positions, NOT_HELD).tobytes() for column, m in enumerate(parties)}


@lru_cache(maxsize=1024)
def _groups_among(members: tuple[int, ...], roster: Roster) -> int:
    return sum(any(m in members for m in group) for group in roster.groups)


@lru_cache(maxsize=256)
def _opening_legs(rows: int, roster: Roster, others: int, rounds: int, recovery: bool) -> tuple[Leg, ...]:
    """Keys for so many rounds, and the ids of these rows for so many others."""
    m, nothing = roster.parties, torch.zeros(roster.parties, dtype=torch.float64)
    sent = {}
    if rounds:
        sent[KEYS] = torch.full((m,), (m - 1) * SIZE)
        if recovery:
            sent[ROUND_KEYS] = torch.full((m,), (m - 1) * SIZE * rounds)
            sent[SHARES] = torch.full((m,), (m - 1) * (2 * rounds * LIMBS * 4 + OVERHEAD))
    if roster.active is not None:
        sent[IDS] = torch.zeros(m, dtype=torch.int64)
        sent[IDS][roster.active] = others * (rows * ID_BYTES + OVERHEAD)
    return tuple(Leg(kind, "peers", size, 8, nothing, gate="all") for kind, size in sent.items())


def round_masks(names: RoundNames, rows: Rows) -> MaskNames:
    """The names of masks whose keys are those of a round."""
    return MaskNames("embeddings", names.stage, 0, rows.start, names.round)
