"""vFedSec's Secure Layer on integers: keys of pairs, masks that cancel in a sum, sealed record ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.messages import check_message, refuse_lacking
from lightning_vfl.aggregators.secure.consent import SIGNED, Survivors
from lightning_vfl.aggregators.secure.messages import check_opening, file_once, unsealed
from lightning_vfl.aggregators.secure.period_keys import (
    KEYS,
    NONCES,
    KeyExchange,
    Keys,
    bytes_of,
    content_of,
    to_everybody,
)
from lightning_vfl.aggregators.secure.recovery import LIMBS, MASKS, SELF, WORD, Recovery, Vault, reconstruct, unmask
from lightning_vfl.aggregators.secure.segments import Segments, segments
from lightning_vfl.crypto import Identities, MaskNames, PairKeys, PairMasks, Sealed, Use, key_period
from lightning_vfl.crypto.identities import SIGNATURE
from lightning_vfl.crypto.keys import SIZE
from lightning_vfl.crypto.sealed import OVERHEAD
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Roster, RoundNames, Rows
from lightning_vfl.wire import Gate, Leg, Message, PartyView, ServerView

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    UInts = NDArray[np.unsignedinteger[Any]]

ID_BYTES = 8  # a record's position
NOT_HELD = -1  # in the place of a record that the receiver does not hold
IDS = "record ids"  # kinds of messages
ROUND_KEYS, SHARES, REVEALED = "round keys", "seed shares", "revealed shares"  # with recovery


@dataclass(frozen=True)
class SecureLayer:
    r"""Sums of integers in Z_{2^bits} over sets of parties, of which the server learns the sums alone.

    Args:
        layout: which sums there are.
        bits: of the ring, at most 32.
        rekey_every: K, rounds after which all keys are renewed.
        allow_single: let a sum of a single group's embeddings pass, which hides nothing, and groups of two parties.
        recovery: let parties vanish between masking and upload; None: then the round is lost.
        insecure_seeded_secrets: keys from a named stream instead of the operating system; for tests only.
        identities: long-lived signing keys of the parties, with which they sign their public keys; None: nobody does.
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
    identities: Identities | None = None
    ledger: "Callable[[Use], object] | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.layout not in ("sum", "segments"):
            raise ConfigurationError(f"layout '{self.layout}' is unknown; use sum or segments")
        key_period(0, self.rekey_every)
        if self.recovery is not None and self.layout == "segments":
            raise ConfigurationError(
                "recovery is for layout: sum; in layout: segments a lost party's group vanishes without the others"
            )

    @property
    def exchange(self) -> KeyExchange:
        """How parties learn each other's public keys."""
        return KeyExchange(self.recovery is not None, self.identities, self.insecure_seeded_secrets)

    # ---- which sums there are, and of whom

    def segments(self, roster: Roster) -> Segments:
        """The sums among these parties."""
        return segments(self.layout, roster)

    def check(self, roster: Roster) -> None:
        """Refuse sets whose sum would be somebody's embedding, and groups whose sum of updates is somebody's.

        Members of one group hold different records, so a row has one contributor a GROUP; only others hide it. In a
        group of two, each member subtracts its own model update from the sum and has the other's.

        Raises:
            ConfigurationError: before training.
        """
        if self.layout == "segments" and not roster.passive:
            raise ConfigurationError("layout: segments has a segment for each passive group, and there is none")
        if self.recovery is not None:
            self.recovery.needed(roster.parties)
        if self.identities is not None:
            self.identities.signers(range(roster.parties), roster.parties)
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
        pairs = [group for group in roster.shared if len(group) == 2]
        if pairs and not self.allow_single:
            raise ConfigurationError(
                f"group {pairs[0]} has two parties, and each of them can subtract its own model update from their sum; "
                "use groups of three or more, or accept it with allow_single: true"
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
        keys = (self.exchange.size, self.identities is not None)
        return _opening_legs(rows, roster, others, self.rekey_every if due else 0, self.recovery is not None, keys)

    def open(self, memory: Keys, view: PartyView) -> Iterator[Message]:
        """Fresh keys at the beginning of a period; the batch's record ids from the active party."""
        period = key_period(view.names.round, self.rekey_every)
        if (memory.stage, memory.period) != (view.names.stage, period):
            self.exchange.begin(memory, view, period)
            yield from self.exchange.messages(memory, view)
            if self.recovery is not None:
                yield from self._share_secrets(self.recovery.needed(view.roster.parties), memory, view)
        memory.ids.clear()
        if view.roster.active is not None and view.roster.active in view.parties:
            yield self._selection(view.roster.active, memory, view)

    def accept(self, memory: Keys, message: Message, view: PartyView) -> Keys:
        """File what has arrived."""
        check_opening(message, self._lengths(view), IDS, view)
        if message.kind in (NONCES, KEYS):
            if self.exchange.file(memory, message, view):
                for party in view.parties:
                    keys = PairKeys(party, memory.pairs[party], memory.publics, memory.session)
                    memory.masks[party] = PairMasks(keys, self.bits, self.ledger)
            return memory
        if message.kind == ROUND_KEYS:
            for sender, piece in zip(message.senders, message.pieces, strict=True):
                file_once(memory.vault.publics, sender, content_of(piece), ROUND_KEYS)
            return memory
        number = view.names.round if message.kind == IDS else memory.period
        for sender, piece in zip(message.senders, message.pieces, strict=True):
            sealed = piece.numpy()
            for party in view.parties:
                if party == sender or (message.kind == IDS and not view.called[party]):
                    continue
                seal = self._seal(party, sender, sender, message.kind, memory, view)
                if message.kind == IDS:
                    memory.ids[party] = unsealed(seal, sealed[party].tobytes(), number, sender, IDS)
                else:
                    memory.vault.keep(party, sender, self._opened_shares(seal, sealed[party], sender, memory))
        return memory

    def _opened_shares(self, seal: Sealed, sealed: "NDArray[Any]", owner: int, memory: Keys) -> bytes:
        """A party's shares of its secrets, which it has bound to its round keys under the key of the pair."""
        try:
            return seal.open(sealed.tobytes(), memory.period, memory.vault.publics.get(owner, b""))
        except ValueError as error:
            raise ValueError(
                f"the round keys of party {owner} are refused: they are not those to which it has bound its seed "
                f"shares, or its shares were changed on the way ({error})"
            ) from error

    def _lengths(self, view: PartyView) -> dict[str, int]:
        """Bytes of a message to one receiver, by kind."""
        lengths = {KEYS: self.exchange.size, IDS: len(view.rows.ids) * ID_BYTES + OVERHEAD}
        if self.identities is not None:
            lengths |= {NONCES: SIZE}
        if self.recovery is not None:
            lengths |= {ROUND_KEYS: self.rekey_every * SIZE, SHARES: self.rekey_every * 2 * LIMBS * 4 + OVERHEAD}
        return lengths

    def _share_secrets(self, needed: int, memory: Keys, view: PartyView) -> Iterator[Message]:
        """Recovery: keys of the period's rounds, and everybody's shares of what belongs to them."""
        first, parties, names = memory.period * self.rekey_every, view.roster.parties, view.names
        vault = memory.vault = Vault(range(first, first + self.rekey_every), needed)
        vault.draw(view.parties, names, self.insecure_seeded_secrets)
        yield to_everybody(ROUND_KEYS, vault.publics, view)
        pieces = []
        for party in view.parties:
            seeded = (names.seed, names.stage, memory.period, party) if self.insecure_seeded_secrets else None
            contents, bound = vault.shares_of(party, needed, parties, seeded), vault.publics[party]
            piece = np.zeros((parties, len(contents[0]) + OVERHEAD), np.uint8)
            for other in range(parties):
                if other != party:
                    seal = self._seal(party, other, party, SHARES, memory, view)
                    piece[other] = np.frombuffer(seal.seal(contents[other], memory.period, bound), np.uint8)
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

    def consent(self, included: Tensor, view: PartyView) -> Message:
        """Each hosted party's signature of who is in the sum; the server hands them on to everybody who answers.

        Raises:
            RuntimeError: for a set that a party does not sign.
        """
        survivors, memory = self._survivors(included, view), view.memory
        signed = (memory.vault.sign(party, survivors, memory.signers[party]) for party in view.parties)
        signatures = tuple(bytes_of(signature) for signature in signed)
        return Message(SIGNED, "server", view.parties, signatures, round=view.names)

    def reveal(self, included: Tensor, view: PartyView, signed: Message | None) -> Message:
        """Of everybody who was called: a share of what undoes its masks, if it is lost, else of its self-mask.

        Raises:
            RuntimeError: unless the party and t - 1 others have signed this set of survivors.
        """
        vault, survivors = view.memory.vault, self._survivors(included, view)
        if signed is not None:
            shapes = dict.fromkeys(survivors.called, (SIGNATURE,))
            check_message(signed, SIGNED, "server", shapes, torch.uint8, view.names)
        pieces = []
        for holder in view.parties:
            if vault.signed.get((holder, survivors.round)) != survivors:
                raise RuntimeError(
                    f"party {holder} reveals nothing in round {survivors.round}: it has not signed the set "
                    f"{survivors.included}"
                )
            survivors.refuse_unsigned(holder, signed, view.memory.verify, vault.needed)
            piece = torch.zeros(view.roster.parties, LIMBS, dtype=torch.int64)
            refuse_lacking({m for m in survivors.called if (holder, m) in vault.shares}, survivors.called, SHARES)
            for owner in survivors.called:
                kind = SELF if owner in survivors.included else MASKS
                piece[owner] = vault.reveal(holder, owner, survivors.round, kind)
            pieces.append(piece)
        return Message(REVEALED, "server", view.parties, tuple(pieces), round=view.names)

    def _survivors(self, included: Tensor, view: PartyView) -> Survivors:
        """What the hosted parties are told of a round; nobody stays in it whom nothing would hide."""
        called, left = (tuple(who.nonzero().flatten().tolist()) for who in (view.called, included))
        self.refuse_alone(left, view.roster)
        return Survivors(view.memory.session, view.names.stage, view.names.round, called, left)

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
def _opening_legs(
    rows: int, roster: Roster, others: int, rounds: int, recovery: bool, keys: tuple[int, bool]
) -> tuple[Leg, ...]:
    """Keys for so many rounds, and the ids of these rows for so many others; ``keys``: bytes of one, after nonces."""
    m, nothing = roster.parties, torch.zeros(roster.parties, dtype=torch.float64)
    sent = {}
    if rounds:
        size, nonces = keys
        if nonces:
            sent[NONCES] = torch.full((m,), (m - 1) * SIZE)
        sent[KEYS] = torch.full((m,), (m - 1) * size)
        if recovery:
            sent[ROUND_KEYS] = torch.full((m,), (m - 1) * SIZE * rounds)
            sent[SHARES] = torch.full((m,), (m - 1) * (2 * rounds * LIMBS * 4 + OVERHEAD))
    if roster.active is not None:
        sent[IDS] = torch.zeros(m, dtype=torch.int64)
        sent[IDS][roster.active] = others * (rows * ID_BYTES + OVERHEAD)
    return tuple(Leg(kind, "peers", size, 8, nothing, gate=Gate.ALL) for kind, size in sent.items())


def round_masks(names: RoundNames, rows: Rows) -> MaskNames:
    """The names of masks whose keys are those of a round."""
    return MaskNames("embeddings", names.stage, 0, rows.start, names.round)
