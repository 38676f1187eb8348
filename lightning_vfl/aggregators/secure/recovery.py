"""Recovery of a masked sum if a party is lost between masking and upload: round secrets that are shared t of n."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from lightning_vfl.aggregators.messages import refuse_outside
from lightning_vfl.aggregators.secure.consent import Survivors
from lightning_vfl.aggregators.secure.neighbours import Neighbours
from lightning_vfl.checks import positive
from lightning_vfl.crypto import (
    Confined,
    KeyPair,
    Keystream,
    MaskNames,
    PairKeys,
    PairKeystream,
    PairMasks,
    Signer,
    derive,
    insecure_words,
    ring,
)
from lightning_vfl.crypto.keys import SIZE
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.field import LagrangeCode, PrimeField
from lightning_vfl.types import Parties, RoundNames, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIELD = PrimeField()  # 2^31 - 1
WORD = np.uint32  # of ring elements
LIMB_BITS = 30
LIMBS = -(-8 * SIZE // LIMB_BITS)  # field elements of a secret of 32 bytes
LIMB_MASK = 2**LIMB_BITS - 1
SHIFTS = range(0, LIMBS * LIMB_BITS, LIMB_BITS)

MASKS = "mask seed"
SELF = "self-mask seed"
ROUND_KEYS = "round keys"  # kinds of messages
SHARES = "seed shares"
REVEALED = "revealed shares"


@dataclass(frozen=True)
class Recovery:
    """How many parties together can undo the masks of one that is lost.

    Any t of n parties give both secrets of another back, so at most t - 1 may collude with a server that says truly who
    is lost. Against a server that lies, at most 2t - n - 1 may: otherwise n - c honest parties and c colluders make two
    sets of t, one of which is told that a party is lost and the other that it is there. n - t parties may be lost.

    Args:
        threshold: t, more than half of the parties; ``auto``: ⌊2n/3⌋ + 1, so that at least ⌊n/3⌋ of them may collude
            with a server that lies.

    References:
        Bonawitz et al. 2017, section 6: against a server that lies, fewer than 2t - n colluders and t ≥ ⌊2n/3⌋ + 1.

    Examples:
        >>> [Recovery().needed(n) for n in (3, 4, 5, 6, 9)], [Recovery().tolerated(n) for n in (3, 4, 5, 6, 9)]
        ([3, 3, 4, 5, 7], [1, 1, 2, 3, 4])
    """

    threshold: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.threshold != "auto":
            positive("recovery threshold", self.threshold, whole=True, advice="or use auto")

    @classmethod
    def of(cls, given: "Recovery | Mapping[str, Any] | str | None") -> "Recovery | None":
        """The recovery that a recipe gives as ``{threshold: 3}``, ``auto`` or null.

        Raises:
            ConfigurationError: for anything else.
        """
        if given is None or isinstance(given, cls):
            return given
        if given == "auto":
            return cls()
        if isinstance(given, Mapping) and set(given) <= {"threshold"}:
            return cls(**given)
        raise ConfigurationError(f"recovery must be {{threshold: 3}}, auto or null; got {given!r}")

    def needed(self, parties: int) -> int:
        """The threshold t for so many parties.

        Raises:
            ConfigurationError: before training, for a threshold that two disjoint sets could reach, or nobody can.
        """
        if self.threshold == "auto":
            return 2 * parties // 3 + 1
        least = parties // 2 + 1
        if not least <= self.threshold <= parties:
            raise ConfigurationError(
                f"recovery threshold {self.threshold!r} cannot be for {parties} parties: below {least} two halves "
                f"could be told different things, and uncover a party together; use {least} to {parties}, or auto"
            )
        return self.threshold

    def tolerated(self, parties: int, lies: bool = True) -> int:
        """How many parties may collude with the server, at most, so that it cannot read another's embedding.

        ``lies``: the server may say anything about who is called and who is lost; else it tells the truth, and
        nobody is away: a sum over the colluders and one other party always tells the server that party's embedding.
        """
        needed = self.needed(parties)
        return max(0, min(2 * needed - parties if lies else needed, parties - 1) - 1)


@dataclass(frozen=True)
class Sharing:
    """Among whom the secrets of a round are shared, and how many of them give one back.

    Every party shares its secrets with a circle: itself and its neighbours in the ring of all parties, with whom alone
    it shares masks too. Without a ring, every circle is all parties.

    Args:
        recovery: the threshold among all parties.
        ring: how many neighbours there are; None: everybody. An explicit threshold counts all parties and needs them.

    Examples:
        >>> from lightning_vfl.aggregators.secure.neighbours import Neighbours
        >>> few = Sharing(Recovery(), Neighbours())
        >>> few.neighbours(64), few.threshold(64), few.answers(64), few.threshold(31), few.answers(31)
        (32, 29, 60, 21, 21)
    """

    recovery: Recovery
    ring: Neighbours | None = None

    def neighbours(self, parties: int) -> int | None:
        """With how many others each of M parties shares masks and secrets; None: with all of them."""
        return None if self.ring is None or self.recovery.threshold != "auto" else self.ring.sharing(parties)

    def threshold(self, parties: int) -> int:
        """T, how many members of a circle give back a secret that is shared in it."""
        neighbours = self.neighbours(parties)
        return self.recovery.needed(parties) if neighbours is None else 1 + neighbours - self._losing(parties)

    def answers(self, parties: int) -> int:
        """How many of M parties have to answer, whichever they are, so that t members of every circle do."""
        if self.neighbours(parties) is None:
            return self.recovery.needed(parties)
        return parties - self._losing(parties)

    def tolerated(self, parties: int, lies: bool = True) -> int:
        """As in ``Recovery``; in a ring, with the probability of ``Neighbours``, the same whether the server lies."""
        if self.neighbours(parties) is None or self.ring is None:
            return self.recovery.tolerated(parties, lies)
        return min(self.ring.colluding(parties), parties - 2)

    def circles(self, parties: int, session: bytes) -> Mapping[int, Parties]:
        """For each party the members of its circle, in order of their numbers: their places are those of shares."""
        return _circles(parties, self.neighbours(parties), session)

    def key_bytes(self, parties: int) -> int:
        """What a party sends beside its upload: its key of the round, and in a ring the session that orders it."""
        return SIZE if self.neighbours(parties) is None else 2 * SIZE

    def _losing(self, parties: int) -> int:
        return 0 if self.ring is None else self.ring.losing(parties)


@lru_cache(maxsize=64)
def _circles(parties: int, neighbours: int | None, session: bytes) -> Mapping[int, Parties]:
    everybody = tuple(range(parties))
    if neighbours is None:
        return dict.fromkeys(everybody, everybody)
    return {party: tuple(sorted((party, *others))) for party, others in ring(everybody, neighbours, session).items()}


class RoundSecrets:
    """A party's secrets of one round; no copy has them.

    Args:
        x: 32 bytes that the masks with others come from.
        b: 32 bytes that the mask of its own comes from.
    """

    def __init__(self, x: bytes, b: bytes) -> None:
        self._held = Confined((x, b))

    @property
    def seeds(self) -> tuple[bytes, bytes]:
        """X and b, to be shared."""
        return self._held.open()

    @cached_property
    def pair(self) -> KeyPair:
        """The key pair that the round's masks with others come from."""
        return KeyPair(X25519PrivateKey.from_private_bytes(self.seeds[0]))


def to_limbs(secrets: Sequence[bytes]) -> Tensor:
    """(n, LIMBS) field elements of n secrets of 32 bytes.

    Examples:
        >>> to_bytes(to_limbs([bytes(range(32))])) == [bytes(range(32))]
        True
    """
    numbers = [int.from_bytes(secret, "little") for secret in secrets]
    return torch.tensor([[number >> shift & LIMB_MASK for shift in SHIFTS] for number in numbers])


def to_bytes(limbs: Tensor) -> list[bytes]:
    """The secrets that these elements stand for; the inverse of ``to_limbs``.

    Raises:
        ValueError: for elements that stand for no secret, because the shares do not belong together.
    """
    numbers = [sum(limb << shift for limb, shift in zip(row, SHIFTS, strict=True)) for row in limbs.tolist()]
    if int(limbs.max()) > LIMB_MASK or max(numbers) >> 8 * SIZE:
        raise ValueError("the shares do not belong together: they do not decode to a secret")
    return [number.to_bytes(SIZE, "little") for number in numbers]


def share(secrets: Sequence[bytes], needed: int, parties: int, insecure_seed: Sequence[Any] | None = None) -> Tensor:
    """(M, n, LIMBS): Shamir's shares of n secrets, any ``needed`` of which give them back; fewer say nothing.

    References:
        Shamir, "How to Share a Secret", Communications of the ACM 22, 1979; as the Lagrange code with one block.
    """
    code = LagrangeCode(FIELD, 1, needed - 1, parties)
    limbs = to_limbs(secrets)
    if insecure_seed is None:
        masks = FIELD.random((needed - 1, *limbs.shape), Keystream().words)
    else:
        words = insecure_words(insecure_seed[0], "recovery shares", *insecure_seed[1:])
        masks = FIELD.random((needed - 1, *limbs.shape), words)
    return code.share(limbs.unsqueeze(0), masks)


def reconstruct(
    shares: Tensor, holders: Sequence[int], needed: int, parties: int, names: Sequence[Parties] | None = None
) -> list[bytes]:
    """The n secrets from the shares (holders, n, LIMBS) of at least ``needed`` holders.

    ``names``: by secret the parties at the places ``holders``; None: the holders themselves.

    Raises:
        ConfigurationError: from fewer.
        MalformedMessage: naming the holder of shares that are no field elements, or holders whose shares do not fit.
    """
    refuse_outside(shares.unbind(0), holders, "shares", FIELD.modulus)
    code = LagrangeCode(FIELD, 1, needed - 1, parties)
    values = code.decode(shares, holders, 1)[0]
    secrets = []
    for number, limbs in enumerate(values):
        who = holders if names is None else names[number]
        try:
            secrets += to_bytes(limbs.unsqueeze(0))
        except ValueError as error:
            raise MalformedMessage(f"what parties {list(who)[:needed]} have revealed is wrong: {error}") from error
    return secrets


def seeds_of(
    revealed: Sequence[Tensor], holders: Sequence[int], circles: Mapping[int, Parties], needed: int
) -> dict[int, bytes]:
    """By owner the secret of which these holders have revealed shares, each (circle, LIMBS) in order of its circle.

    The secret is 32 zero bytes for an owner that has shared none.

    Raises:
        ConfigurationError: if fewer than ``needed`` members of a circle are among the holders.
        MalformedMessage: as ``reconstruct``.
    """
    shares = torch.stack(list(revealed))  # (holders, circle, LIMBS)
    rows = {holder: row for row, holder in enumerate(holders)}
    alike: dict[Parties, list[int]] = {}  # owners by the places of the shares that there are
    for owner, circle in circles.items():
        places = tuple(place for place, member in enumerate(circle) if member in rows)
        alike.setdefault(places[:needed], []).append(owner)
    seeds: dict[int, bytes] = {}
    for places, owners in alike.items():
        members = [tuple(circles[owner][place] for place in places) for owner in owners]
        at_holder = torch.tensor([[rows[member] for member in some] for some in members])
        of_owner = [[circles[m].index(owner) for m in some] for owner, some in zip(owners, members, strict=True)]
        given = shares[at_holder, torch.tensor(of_owner)].transpose(0, 1)
        secrets = reconstruct(given, places, needed, len(circles[owners[0]]), members)
        seeds.update(zip(owners, secrets, strict=True))
    return seeds


@dataclass
class Vault:
    """The secrets and shares that the hosted parties keep for recovery in one key period.

    Args:
        rounds: of the period.
        secrets: by (party, round), of hosted parties.
        publics: by party, everybody's round keys, one after the other.
        shares: by (holder, owner), what a hosted party holds of another's secrets: (rounds, x and b, LIMBS).
        revealed: by (holder, owner, round), which of the two a hosted party has revealed.
        masked: by (party, round), the called parties with whom a hosted party has masked its upload.
        signed: by (party, round), the set of survivors that a hosted party has signed.
        needed: t.
        answers: how many parties have to be called and included.
        circles: for each party, among whom its secrets are shared.
        session: in a ring, the bytes that order it; empty: every two called parties share a mask.
        keyed: the parties that have keys of the period.
    """

    rounds: range = range(0)
    needed: int = 1
    answers: int = 1
    circles: Mapping[int, Parties] = field(default_factory=dict)
    session: bytes = b""
    keyed: frozenset[int] = frozenset()
    secrets: dict[tuple[int, int], RoundSecrets] = field(default_factory=dict, repr=False)
    publics: dict[int, bytes] = field(default_factory=dict, repr=False)
    shares: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)
    revealed: dict[tuple[int, int, int], str] = field(default_factory=dict)
    masked: dict[tuple[int, int], Parties] = field(default_factory=dict)
    signed: dict[tuple[int, int], Survivors] = field(default_factory=dict)

    def draw(self, parties: Sequence[int], names: RoundNames, insecure_seeded: bool) -> None:
        """Secrets of all rounds of the period, from the operating system; ``insecure_seeded``: from a named stream."""
        for party in parties:
            for round in self.rounds:
                drawn = os.urandom(2 * SIZE)
                if insecure_seeded:
                    words = insecure_words(names.seed, "recovery", names.stage, round, party)(2 * SIZE // 8)
                    drawn = words.astype("<u8").tobytes()
                self.secrets[party, round] = RoundSecrets(drawn[:SIZE], drawn[SIZE:])
            self.publics[party] = b"".join(self.secrets[party, round].pair.public for round in self.rounds)

    def shares_of(self, party: int, insecure_seed: Sequence[Any] | None) -> dict[int, bytes]:
        """The shares of a party's secrets by member of its circle; the party's own shares are kept."""
        seeds = [seed for round in self.rounds for seed in self.secrets[party, round].seeds]
        circle = self.circles[party]
        shares = share(seeds, self.needed, len(circle), insecure_seed)
        self.shares[party, party] = shares[circle.index(party)].view(len(self.rounds), 2, LIMBS)
        packed = shares.numpy().astype("<u4")
        return {member: piece.tobytes() for member, piece in zip(circle, packed, strict=True)}

    def keep(self, holder: int, owner: int, shares: bytes) -> None:
        """Keep the shares that a hosted party has received."""
        limbs = torch.from_numpy(np.frombuffer(shares, "<u4").astype(np.int64))
        self.shares[holder, owner] = limbs.view(len(self.rounds), 2, LIMBS)

    def public(self, party: int, round: int) -> bytes:
        """A party's public key of a round."""
        start = (round - self.rounds.start) * SIZE
        return self.publics[party][start : start + SIZE]

    def partners(self, party: int, called: Sequence[int]) -> Sequence[int]:
        """With whom a party masks its upload, itself included: with those that are called.

        In a ring these are all members of its circle that have keys. Masks with absent ones are removed as those with
        lost ones, so that a server gains nothing if it calls a party and tells its neighbours that it does not.
        """
        return [m for m in self.circles[party] if m in self.keyed] if self.session else called

    def sign(self, party: int, survivors: Survivors, signer: Signer) -> bytes:
        """A hosted party's signature of the survivors of a round; of one set a round.

        Raises:
            RuntimeError: for a set that the party refuses, and for another set than the one that it has signed.
        """
        round = survivors.round
        survivors.refuse(party, self.masked.get((party, round)), self.answers)
        first = self.signed.setdefault((party, round), survivors)
        if first != survivors:
            raise RuntimeError(
                f"party {party} signs no set of survivors of round {round}: it has signed {first.included} and is now "
                f"told {survivors.included}"
            )
        return survivors.signed_by(signer)

    def reveal(self, holder: int, owner: int, round: int, kind: str) -> Tensor:
        """(LIMBS,), a hosted party's share of the mask seed or of the self-mask seed of a round; never of both.

        Raises:
            RuntimeError: if it has revealed the other one: together they would uncover the owner's upload.
        """
        if self.revealed.setdefault((holder, owner, round), kind) != kind:
            raise RuntimeError(
                f"party {holder} was asked for the {kind} of party {owner} in round {round} and has revealed its "
                f"{self.revealed[holder, owner, round]}; with both the upload could be read"
            )
        return self.shares[holder, owner][round - self.rounds.start, 0 if kind == MASKS else 1]

    def mask(
        self, party: int, values: "NDArray[Any]", called: Sequence[int], names: MaskNames, round: int, bits: int
    ) -> None:
        """Hide a hosted party's values of the ring in a round in which these parties are called, in place; only once.

        Raises:
            ValueError: for a round that has been masked: its words must never be used again.
            RuntimeError: for too few called parties, whose secrets could all be uncovered; for a party to share masks
                with whose round keys are not authenticated yet.
        """
        if (party, round) in self.masked:
            raise ValueError(
                f"party {party} has masked round {round}, and the keystream of a round must never be used twice"
            )
        if len(called) < self.answers:
            raise RuntimeError(
                f"party {party} sends no upload in round {round}: {len(called)} parties are called, and at least "
                f"{self.answers} have to be"
            )
        if strangers := [other for other in called if self.session and other not in self.keyed]:
            raise RuntimeError(
                f"party {party} sends no upload in round {round}: party {strangers[0]} is called and has no keys of "
                "this period"
            )
        partners = self.partners(party, called)
        for other in partners:
            if (party, other) not in self.shares:  # they show whose the round keys are
                raise RuntimeError(
                    f"party {party} sends no upload in round {round}: the seed shares of party {other} have not "
                    "arrived, which authenticate its round keys"
                )
        self.masked[party, round] = tuple(called)
        secrets = self.secrets[party, round]
        masks = pair_masks(party, secrets, {m: self.public(m, round) for m in partners}, bits, self.session)
        masks.add_to(values, partners, names, round)
        own_mask(secrets.seeds[1], names).add_to(values.reshape(-1), round)
        if bits < 8 * values.itemsize:  # an upload has the bits of the ring, as its leg says
            values &= WORD(2**bits - 1)


def pair_masks(
    party: int, secrets: RoundSecrets, publics: Mapping[int, bytes], bits: int, session: bytes = b""
) -> PairMasks:
    """A party's masks of a round with others, whose round keys these are; in a ring, under its session."""
    session = session or sha256(b"".join(publics[m] for m in sorted(publics))).digest()
    return PairMasks(PairKeys(party, secrets.pair, publics, session), bits)


def own_mask(seed: bytes, names: MaskNames) -> PairKeystream:
    """The keystream of a party's mask of its own, under a key for these names alone."""
    return PairKeystream(derive(seed, "self mask", *names, session=b""))


def round_masks(names: RoundNames, rows: Rows) -> MaskNames:
    """The names of the masks whose keys serve one round alone."""
    return MaskNames("embeddings", names.stage, 0, rows.start, names.round)


def unmask(
    total: "NDArray[Any]",
    survivors: Mapping[int, bytes],
    lost: Mapping[int, bytes],
    publics: Mapping[int, bytes],
    bits: int,
    names: MaskNames,
    round: int,
    circles: Mapping[int, Parties] | None = None,
    session: bytes = b"",
) -> None:
    """Remove the masks that did not cancel from the survivors' sum, in place.

    Args:
        total: the sum of the survivors' uploads in the ring.
        survivors: their self-mask seeds b.
        lost: the secrets x of those who were called and whose uploads are not in the sum.
        publics: round keys of the survivors.
        bits: of the ring.
        names: of the masks.
        round: its number.
        circles: in a ring, with whom each party has shared masks; None: all with all.
        session: of the ring.

    References:
        Bonawitz et al. 2017, section 4, round 3.
    """
    flat = total.reshape(-1)
    for party in sorted(survivors):
        own_mask(survivors[party], names).add_to(flat, round, -1)
    secrets = {party: RoundSecrets(x, bytes(SIZE)) for party, x in lost.items()}
    everybody = {**publics, **{party: own.pair.public for party, own in secrets.items()}}
    for party, own in secrets.items():  # the lost party would have subtracted these masks
        circle = everybody.keys() if circles is None else {*circles[party]} & everybody.keys()
        masks = pair_masks(party, own, {m: everybody[m] for m in circle}, bits, session)
        total += masks.mask_of((party, *sorted(survivors.keys() & circle)), names, round, total.shape)
    if bits < 8 * total.itemsize:
        total &= WORD(2**bits - 1)
