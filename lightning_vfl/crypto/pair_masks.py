"""Masks that cancel in a sum: every pair of parties has a keystream that one party adds and the other subtracts."""

import operator
from hashlib import sha256
from threading import local
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from lightning_vfl.checks import within
from lightning_vfl.crypto.keys import Confined, PairKeys
from lightning_vfl.crypto.keystream import BLOCK, PLAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Words = NDArray[np.uint32]
    Graph = Mapping[int, Sequence[int]]

ROUNDS = 2**64  # the upper half of the counter block is the round, the lower half counts blocks
CHUNK = len(PLAIN)  # bytes encrypted in one call: keystream and sum fit into the second-level cache


class MaskNames(NamedTuple):
    """The purpose of a pair's key; one key serves all rounds of its period.

    Args:
        purpose: the kind of the sum, for example ``"embeddings"`` or ``"updates"``.
        stage: fit, validation, ...; each stage counts its own rounds.
        segment: the number of the sum in the round.
        rank: the rank of the process; every rank masks its own rows.
        period: the number of the key pairs, which are renewed every few rounds.
    """

    purpose: str
    stage: str
    segment: int
    rank: int
    period: int


class _Scratch(local):
    """A thread's buffer for the keystream before it is added; as little-endian words of 4 bytes."""

    def __init__(self) -> None:
        buffer = np.empty(CHUNK + BLOCK, np.uint8)  # older versions of ``update_into`` need a block after the output
        self.target = buffer.data
        self.words = buffer[:CHUNK].view("<u4")


class _Progress:
    """An encryptor and its last round, in one object, so that shallow copies share the state."""

    __slots__ = ("encryptor", "last")

    def __init__(self, key: bytes) -> None:
        self.encryptor = Cipher(AES(key), CTR(bytes(BLOCK))).encryptor()
        self.last = -1


_scratch = _Scratch()
_combine = {1: np.add, -1: np.subtract}


class PairKeystream:
    """The keystream of a pair: AES-256 in counter mode with one key, and a separate part of the keystream every round.

    The counter block is round (64 bits, big endian) ‖ number of the block (64 bits, big endian). The parts of different
    rounds therefore never overlap: 2^64 blocks are more than any address space.

    Shapes: ``values`` (n,) uint32, any stride.
    Units: words of 32 bits, little-endian in the keystream: the same on every machine.
    Guarantee: computationally indistinguishable from uniform words without the key. Every word is returned once,
        because rounds must increase. Equal keys and rounds give equal words; a smaller n gives the first words.
        Pickles, deep copies and forked processes are refused; a shallow copy is the same stream.
    Not guaranteed: safety of a second object with the same key, which gives the same words; calls from two threads at
        once; erasure from memory.

    Args:
        key: 32 bytes, used only for this keystream.

    Raises:
        ValueError: for another size of the key.

    References:
        NIST SP 800-38A, Section 6.5 (CTR) and Appendix B.2: the nonce of a message in the upper bits of the counter.

    Examples:
        >>> one, other = PairKeystream(bytes(32)), PairKeystream(bytes(32))
        >>> bool((one.words(7, 100) == other.words(7, 100)).all()), bool((one.words(8, 9) == other.words(9, 9)).any())
        (True, False)
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError(f"a key of AES-256 must have 32 bytes; got {len(key)}")
        self._progress = Confined(_Progress(key))
        self._digest = sha256(b"pair keystream" + key).digest()  # tells whether another object has the same key

    def words(self, round: int, n: int) -> "Words":
        """The n words of a round, (n,).

        Raises:
            ValueError: for a round that is not above the last one, or does not fit 64 bits.
            RuntimeError: in a deep copy or a forked process.
        """
        values: Words = np.zeros(n, np.uint32)
        self.add_to(values, round)
        return values

    def add_to(self, values: "Words", round: int, sign: int = 1) -> None:
        """Add the words of a round to values (n,), in place and modulo 2^32; sign -1: subtract them.

        Raises:
            ValueError: for a round that is not above the last one, or does not fit 64 bits; for values of another type.
            RuntimeError: in a deep copy or a forked process.
        """
        self._add_all(((values, _combine[sign]),), round, self._progress.open())

    def add_between(self, plus: "Words", minus: "Words", round: int, twin: "PairKeystream") -> None:
        """Add the words of a round to ``plus`` (n,) and subtract them from ``minus`` (n,), in place.

        For a process that hosts both parties: the keystream is computed once. The result is that of
        ``self.add_to(plus, round)`` and ``twin.add_to(minus, round, -1)``, and the round is used in both objects.

        Args:
            plus: the values of the party that adds.
            minus: the values of the other party, of the same size.
            round: as in ``add_to``.
            twin: the other party's object.

        Raises:
            ValueError, RuntimeError: as ``add_to``.
        """
        if twin._digest != self._digest or plus.shape != minus.shape:  # the parties have not agreed: nothing cancels
            self.add_to(plus, round)
            twin.add_to(minus, round, -1)
            return
        progress = self._progress.open()
        other = twin._progress.open()
        streams = (progress,) if other is progress else (progress, other)
        self._add_all(((plus, np.add), (minus, np.subtract)), round, *streams)

    def _add_all(self, sums: "Sequence[tuple[Words, np.ufunc]]", round: int, *streams: _Progress) -> None:
        """Combine the words of a round with several values of one size; the round is used in each of the streams."""
        round = operator.index(round)
        if not 0 <= round < ROUNDS:
            raise ValueError(f"round must fit 64 bits; got {round}")
        for progress in streams:
            if round <= progress.last:
                raise ValueError(
                    f"round {round} must be above the last round {progress.last}, because words must never be used "
                    "twice; use increasing rounds, or set up again with new keys"
                )
        for values, _ in sums:
            if values.dtype != np.uint32 or values.ndim != 1:
                raise ValueError(f"values must be (n,) uint32; got {values.shape} {values.dtype}")
        for progress in streams:
            progress.last = round
        encryptor = streams[0].encryptor
        encryptor.reset_nonce(round.to_bytes(8, "big") + bytes(8))  # the counter block at the start of the round
        target = _scratch.target
        words = _scratch.words
        size = len(sums[0][0])
        for begin in range(0, size, len(words)):
            drawn = words[: size - begin]
            encryptor.update_into(PLAIN[: drawn.nbytes], target)
            for values, combine in sums:
                piece = values[begin : begin + len(drawn)]
                combine(piece, drawn, out=piece)


class PairMasks:
    r"""One party's masks in the ring Z_{2^bits}: each mask is uniform, and the masks of all members sum to zero.

    .. math:: \mathrm{mask}_m = \sum_{j \in U, j > m} G(k_{mj}) - \sum_{j \in U, j < m} G(k_{mj}) \bmod 2^{bits}

    for party m and U, the other members or those that a graph names for it, with the keystream G of the pair's key. The
    party with the lower number adds, the other subtracts (as in Bonawitz et al.; in vFedSec the higher number adds,
    which gives the same masks with the opposite sign).

    Shapes: values and masks of any shape, uint32.
    Units: elements of the ring, 0 to 2^bits - 1.
    Guarantee: the masks of all members sum to zero, exactly. To the server, and to members that collude with it, the
        other members' messages are computationally indistinguishable from uniform messages with the same sum (vFedSec,
        Lemma 4.1; semi-honest); with a graph, with the same sum over each part into which the graph falls without
        the colluding members. A word masks only once, because rounds of equal names must increase. Elements are the
        low bits of words, never a biased remainder.
    Not guaranteed: protection of a single member, whose mask is zero (the caller refuses such a set); a correct sum
        without a member, because its masks do not cancel. Two objects with one ``PairKeys`` give the same masks, so
        make only one.

    Args:
        keys: the keys of this party for this period.
        bits: the bits of the ring, 1 to 32.

    Raises:
        ConfigurationError: for another number of bits.

    References:
        Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, Section 4,
        "Masking with One-Time Pads".
        Qiu et al., "Secure Vertical Federated Learning Under Unreliable Connectivity" (vFedSec), Section 3.4,
        Equation 5, and Lemma 4.1.

    Examples:
        >>> from lightning_vfl.crypto import KeyPair
        >>> pairs = [KeyPair() for _ in range(3)]
        >>> publics = {party: pair.public for party, pair in enumerate(pairs)}
        >>> masks = [PairMasks(PairKeys(m, pair, publics, session=b"salt")) for m, pair in enumerate(pairs)]
        >>> names = MaskNames("embeddings", "fit", segment=0, rank=0, period=0)
        >>> sum(mask.mask_of((0, 1, 2), names, round=0, shape=(2, 2)) for mask in masks).tolist()
        [[0, 0], [0, 0]]
    """

    def __init__(self, keys: PairKeys, bits: int = 32) -> None:
        within("bits of the ring", bits, 1, 32, whole=True)
        self.keys = keys
        self.bits = bits
        self._streams: dict[MaskNames, dict[int, PairKeystream]] = {}

    def keystreams(self, members: "Sequence[int]", names: MaskNames) -> "dict[int, PairKeystream]":
        """By other member, the keystream of these names that this party shares with it; each is made once.

        Raises:
            ValueError: for a party without a shared secret.
            RuntimeError: in a deep copy or a forked process.
        """
        made = self._streams.setdefault(names, {})
        shared = {}
        for other in members:
            if other == self.keys.party:
                continue
            if other not in made:
                made[other] = PairKeystream(self.keys.key(other, "mask", self.bits, *names))
            shared[other] = made[other]
        return shared

    def mask_of(
        self,
        members: "Sequence[int]",
        names: MaskNames,
        round: int,
        shape: "int | tuple[int, ...]",
        graph: "Graph | None" = None,
    ) -> "Words":
        """This party's mask among ``members``, which include this party; zeros if there is no other member.

        Raises:
            ValueError, RuntimeError: as ``add_to``.
        """
        values: Words = np.zeros(shape, np.uint32)
        self.add_to(values, members, names, round, graph)
        return values

    def add_to(
        self, values: "Words", members: "Sequence[int]", names: MaskNames, round: int, graph: "Graph | None" = None
    ) -> None:
        """Add this party's mask to values of the ring, in place; the party may send the result.

        Args:
            values: the values to hide, in C order.
            members: all parties whose messages are summed, including this party, in any order.
            names: the purpose of the key.
            round: above all earlier rounds with these names.
            graph: the other members with whom each member shares a mask; None: all of them.

        Raises:
            ValueError: for values of another type or order; for members without this party, with a party named twice,
                or with a party without a shared secret; for a graph of other members; for a round that is not above
                the last one, or does not fit 64 bits. Some masks may then have been added, so the values must not be
                sent.
            RuntimeError: in a deep copy or a forked process.
        """
        party = self.keys.party
        add_together({party: self}, {party: values}, members, names, round, graph)


def add_together(
    masks: "Mapping[int, PairMasks]",
    values: "Mapping[int, Words]",
    members: "Sequence[int]",
    names: MaskNames,
    round: int,
    graph: "Graph | None" = None,
) -> None:
    """Add the masks of all hosted parties to their values, in place: ``masks[m].add_to(values[m], ...)`` for each m.

    A pair whose two parties are both hosted here computes its keystream once, which one party adds and the other
    subtracts. On machines of their own, each party computes its own.

    Args:
        masks: of the hosted parties, at least of those that have values.
        values: by party, all of one size, in C order.
        members: as in ``PairMasks.add_to``.
        names: the purpose of the keys.
        round: above all earlier rounds with these names.
        graph: as in ``PairMasks.add_to``.

    Raises:
        ValueError, RuntimeError: as ``PairMasks.add_to``.
    """
    if len({*members}) != len(members):
        raise ValueError(f"the members must name every party once; got {sorted(members)}")
    if graph is not None and {*graph} != {*members}:
        raise ValueError(f"the members {sorted(members)} are not those of the ring, {sorted(graph)}")
    flat: dict[int, Words] = {}
    streams: dict[int, dict[int, PairKeystream]] = {}
    for party, own in values.items():
        if own.dtype != np.uint32 or not own.flags.c_contiguous:
            raise ValueError("values of a ring must be uint32 in C order")
        if members and party not in members:
            raise ValueError(f"the members must include party {party}; got {sorted(members)}")
        flat[party] = own.reshape(-1)
        streams[party] = masks[party].keystreams(members if graph is None else graph[party], names)
    for party, own in flat.items():
        for other, stream in streams[party].items():
            if other not in flat:
                stream.add_to(own, round, 1 if party < other else -1)
            elif party < other:
                stream.add_between(own, flat[other], round, streams[other][party])
    for party, own in flat.items():
        if masks[party].bits < 32:
            np.bitwise_and(own, np.uint32(2 ** masks[party].bits - 1), out=own)
