"""Keys with typing errors: keyed Bloom filters of a record's texts, and pairs of similar filters of two parties.

A party shares a secret with the other party, and the comparer has none. What the filters tell is on the page about
alignment: less than the texts, and more than nothing.
"""

import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.align.ids import normalised
from lightning_vfl.align.session import PROTOCOL, Session
from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Filters = NDArray[np.uint8]

BITS = 1024
FILTER_BYTES = BITS // 8
HASHES = 10  # bits that a pair of letters sets; forty pairs then set a third of the filter
SHORTEST = 16  # bytes of the shared secret
MOST_PAIRS = 20_000_000  # above the threshold; each takes 24 bytes
_TILE = 2048  # filters of each party that are compared at a time

Texts = Sequence[str | None]


@dataclass(frozen=True, eq=False)
class Links:
    """Pairs of records, each record in one pair at most.

    Args:
        first: (n,) int64, places of the first party's filters.
        second: (n,) int64, places of the second party's filters.
        similarity: (n,) float64, the Dice coefficient of the two filters.
    """

    first: "NDArray[np.int64]"
    second: "NDArray[np.int64]"
    similarity: "NDArray[np.float64]"


def read_key(path: Path) -> bytes:
    """The secret that both parties share.

    Raises:
        ConfigurationError: for a file that is not there or too short.
    """
    try:
        key = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error.strerror}); make one secret for both parties: head -c 32 /dev/urandom > "
            f"{path}"
        ) from None
    if len(key) < SHORTEST:
        raise ConfigurationError(f"{path} has {len(key)} bytes; a shared secret needs {SHORTEST} or more random bytes")
    return key


def pairs_of_letters(text: str) -> set[str]:
    """The pairs of neighbouring letters, with a blank in front and behind.

    Examples:
        >>> sorted(pairs_of_letters("anna"))
        [' a', 'a ', 'an', 'na', 'nn']
    """
    padded = f" {text} "
    return {padded[place : place + 2] for place in range(len(padded) - 1)}


def filters_of(columns: Sequence[Texts], session: Session, key: bytes) -> "Filters":
    """(n, BITS / 8) uint8, the filter of each record.

    A pair of letters of a column sets ``HASHES`` bits, at the places in HMAC-SHA256 of session, column and pair.
    Filters of other sessions or other columns have unrelated bits.

    Args:
        columns: (n,) texts each; None: missing, which sets no bit.
        session: what the parties agree upon.
        key: their secret.

    References:
        Schnell, Bachteler, Reiher, "Privacy-preserving record linkage using Bloom filters", BMC Medical Informatics and
        Decision Making 9:41, 2009 (there double hashing, whose bits are easier to attack).
    """

    @cache
    def places(column: int, pair: str) -> list[int]:
        said = f"{PROTOCOL}-fuzzy\n{session.digest}\n{column}\n{pair}".encode("utf-8", "surrogatepass")
        words = np.frombuffer(hmac.digest(key, said, "sha256")[: 2 * HASHES], dtype="<u2")
        return [int(word) % BITS for word in words]

    bits = np.zeros((len(columns[0]), BITS), dtype=np.bool_)
    for number, texts in enumerate(columns):
        for record, text in enumerate(texts):
            if text:
                for pair in pairs_of_letters(normalised(text, session.normalise)):
                    bits[record, places(number, pair)] = True
    return np.packbits(bits, axis=1)


def refuse_unusable(filters: "Filters", party: str) -> None:
    """Refuse records without any text, and several records with equal texts.

    Raises:
        ConfigurationError: tells their number.
    """
    if empty := int((~filters.any(1)).sum()):
        raise ConfigurationError(f"records of {party} without any key: {empty}; add keys or remove the records")
    different = len(np.unique(filters, axis=0))
    if different < len(filters):
        raise ConfigurationError(
            f"records of {party} with the keys of another one: {len(filters) - different}; keep one record of each, or "
            "name more columns"
        )


def order_of(filters: "Filters") -> "NDArray[np.int64]":
    """(n,) the records in the order of their filters, which says nothing about the order of the table."""
    words = np.ascontiguousarray(filters).view(">u8")
    return np.lexsort(words.T[::-1])


def linked(first: "Filters", second: "Filters", threshold: float) -> Links:
    """The pairs whose similarity is at least the threshold, the most similar first, each record once.

    The rows are in an order that neither party knows: it follows from the filters of both.

    Args:
        first: (n, BITS / 8) uint8, of the first party.
        second: (m, BITS / 8) uint8, of the second party.
        threshold: the smallest Dice coefficient, above 0 and at most 1.

    Guarantee: of pairs that share a record, the more similar one is taken; of equal ones, that of the earlier places.
    Not guaranteed: that the pairs are the largest possible number (greedy).

    Raises:
        ConfigurationError: for so low a threshold that too many pairs are above it.
    """
    within("threshold", threshold, above=0, most=1)
    found = list(_similar(first, second, threshold))
    one = np.concatenate([pairs.first for pairs in found]) if found else np.empty(0, np.int64)
    other = np.concatenate([pairs.second for pairs in found]) if found else np.empty(0, np.int64)
    similarity = np.concatenate([pairs.similarity for pairs in found]) if found else np.empty(0)
    free_first = np.ones(len(first), np.bool_)
    free_second = np.ones(len(second), np.bool_)
    kept = []
    for pair in np.lexsort((other, one, -similarity)).tolist():
        if free_first[one[pair]] and free_second[other[pair]]:
            free_first[one[pair]] = free_second[other[pair]] = False
            kept.append(pair)
    seed = sha256(first.tobytes() + second.tobytes()).digest()
    rows = np.array(kept, np.int64)[np.random.default_rng(int.from_bytes(seed, "big")).permutation(len(kept))]
    return Links(one[rows], other[rows], similarity[rows])


def _similar(first: "Filters", second: "Filters", threshold: float) -> Iterator[Links]:
    """The pairs above the threshold, in pieces.

    The common bits of many pairs are one matrix product, exact in float32. Filters whose numbers of bits differ too
    much to reach the threshold are not compared.
    """
    orders = [np.argsort(np.unpackbits(filters, axis=1).sum(1), kind="stable") for filters in (first, second)]
    ones = [
        np.unpackbits(filters, axis=1).sum(1)[order] for filters, order in zip((first, second), orders, strict=True)
    ]
    ratio = threshold / (2 - threshold)  # of the smaller to the larger number of bits, at least
    total = 0
    for start in range(0, len(first), _TILE):
        rows = orders[0][start : start + _TILE]
        sizes = ones[0][start : start + _TILE]
        left = np.unpackbits(first[rows], axis=1).astype(np.float32)
        begin = int(np.searchsorted(ones[1], np.floor(sizes[0] * ratio), "left"))
        end = int(np.searchsorted(ones[1], np.ceil(sizes[-1] / ratio), "right"))
        for at in range(begin, end, _TILE):
            columns = orders[1][at : min(at + _TILE, end)]
            right = np.unpackbits(second[columns], axis=1).astype(np.float32)
            common = left @ right.T
            bits = sizes[:, None] + ones[1][None, at : at + len(columns)]
            near, far = np.nonzero(common > 0.5 * threshold * bits - 1)  # one bit of room for rounding
            similarity = 2.0 * common[near, far].astype(np.float64) / bits[near, far]
            enough = similarity >= threshold
            total += int(enough.sum())
            if total > MOST_PAIRS:
                raise ConfigurationError(
                    f"more than {MOST_PAIRS:,} pairs are as similar as --threshold {threshold:g}; raise it"
                )
            yield Links(rows[near[enough]], columns[far[enough]], similarity[enough])
