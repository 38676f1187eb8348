r"""Binomial numbers, exact in distribution and fast. Imported on first use: numba takes 0.5 s to load.

A trial with probability p = k / 2⁴⁰ succeeds if a uniform integer of 40 bits is below k. Its top 8 bits usually decide:
the other 32 bits are needed only if the top bits equal those of k (a tie), one time in 256. A trial therefore needs one
random byte, half of what 16 bit planes of p need, at a precision of 40 bits; drawing random words is most of the work.

Layout of the drawn words: the first word is the key of the ties. Then, for every ``BLOCK`` elements, there is a row of
``BLOCK`` bytes for each trial, so that the innermost loop is one comparison of whole registers. The 32 bits of a tie
come from Philox for the number of the element and of its tie. An element depends only on its number, its p and the
source of words, not on other elements' p: several processes with some rows each draw the same numbers as one process
with all rows. Secret draws take the bits of ties from a secret source instead, in the order in which ties occur.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from lightning_vfl.crypto.keystream import Words

BITS = 40  # bits of p: 8 to compare with a random byte, 32 for ties
BLOCK = 64  # elements side by side: two registers of 32 bytes, 8 words a trial
_AT_ONCE = 2**15  # words drawn at a time: 256 KiB stay in the second-level cache
_NONE = np.empty(0, np.uint32)


class Line(NamedTuple):
    """p = slope * x + shift, of an x that is clipped to [low, high] before."""

    slope: float
    shift: float
    low: float
    high: float


def binomial_of(
    values: "Tensor | NDArray[Any]",
    line: Line,
    trials: int,
    words: "Words",
    out: "Tensor | NDArray[Any]",
    start: int = 0,
    ties: "Words | None" = None,
) -> None:
    r"""Set ``out`` to independent draws of Binomial(b, p), one for every value x; p = slope * clip(x) + shift.

    p is computed in float64 and rounded TOWARDS 1/2, to :math:`k / 2^{40}`: a p in [1/2 - β, 1/2 + β] stays in this
    interval, so a privacy figure for β holds for the draws without a correction for the rounding.

    Shapes: ``values`` (*S), a tensor of floating point on any device, or an array of float32 or float64; ``out`` (*S)
        int32 or int64, contiguous, an array or a tensor on the CPU.
    Units: plain counts, 0 to b.
    Guarantee: exactly Binomial(b, k / 2⁴⁰) if the words are uniform and independent. |p - k / 2⁴⁰| is below 2⁻⁴⁰ and
        the bias of a draw below b 2⁻⁴⁰; p = 0, 1/4, 1/2, 3/4 and 1 are exact. Equal words and p give equal draws on
        every machine. The element with number ``start + i`` does not depend on other elements' p or on their number.
        With ``ties``, draws are as secret as both sources; each draw then depends on all words.
    Not guaranteed: secrecy without ``ties``: Philox is not a cryptographic generator, and its key has 64 bits. Constant
        time: a tie is slower.

    Args:
        values: x.
        line: how p follows from x.
        trials: b ≥ 1.
        words: returns the next n uniform 64-bit words for n, for example ``stream(...).random_raw``. Use a new source
            for every call: it uses one word, and b words for every 8 elements.
        out: the draws.
        start: the number of the first element in the source's order, for a process with later rows of a joint batch.
        ties: returns uniform 64-bit words for the 32 bits of ties, for example ``Keystream().words``; may be the same
            source as ``words``. None: ties use Philox with a key from ``words``, so that draws depend only on ``words``
            and on an element's number. With ``ties``, the words contain no such key.

    Raises:
        ConfigurationError: if a p is outside [0, 1] or NaN.

    Examples:
        >>> from lightning_vfl.streams import stream
        >>> p, drawn = np.array([0.0, 0.25, 0.5, 0.75, 1.0]), np.empty(5, np.int64)
        >>> binomial_of(p, Line(1.0, 0.0, 0.0, 1.0), 16, stream(0, "quantise", 3).random_raw, drawn)
        >>> drawn.tolist()[0], drawn.tolist()[-1]
        (0, 16)

    References:
        Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with Secure Aggregation",
        ICML 2022, https://arxiv.org/abs/2207.09916, Algorithm 1 (what the draws are for).
        Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011 (Philox4x32-10).
    """
    x = _floats(values)
    if x.size and not _fill(np.asarray(out).reshape(-1), x, line, trials, words, start, ties):
        raise ConfigurationError("probabilities outside [0, 1] or NaN have no draws; clip the embeddings before")


def beyond(x: "Tensor", bound: float) -> tuple[int, int]:
    """How many values are outside [-bound, bound] or NaN, and how many are infinite or NaN; compared in float64."""
    outside, infinite = _beyond(_floats(x), float(bound))
    return int(outside), int(infinite)


def _floats(x: "Tensor | NDArray[Any]") -> "NDArray[Any]":
    if isinstance(x, np.ndarray):
        return x.reshape(-1)
    import torch

    real = torch.float32 if x.dtype in (torch.float32, torch.float16, torch.bfloat16) else torch.float64
    flat: NDArray[Any] = x.detach().reshape(-1).to("cpu", real).numpy()
    return flat


def _fill(
    drawn: "NDArray[Any]", x: "NDArray[Any]", line: Line, trials: int, words: "Words", start: int, ties: "Words | None"
) -> bool:
    """Draw elements start, start + 1, ... of the source, some blocks at a time; returns whether all p are in [0, 1]."""
    key = words(1)[0] if ties is None else np.uint64(0)
    block = trials * BLOCK // 8  # words
    at_once = max(1, _AT_ONCE // block)
    skipped, inside = divmod(start, BLOCK)
    for left in range(skipped, 0, -at_once):
        words(min(left, at_once) * block)
    end = inside + x.size
    right = True
    for first in range(0, -(-end // BLOCK), at_once):
        begin = first * BLOCK
        stop = min(end, (first + at_once) * BLOCK)
        raw = words(-(-(stop - begin) // BLOCK) * block).astype("<u8", copy=False).view(np.uint8)
        raw = raw.reshape(-1, BLOCK)
        here = slice(max(0, begin - inside), stop - inside)
        number = np.uint64(skipped * BLOCK + begin)
        rest = _NONE if ties is None else ties(_likely_ties(raw.size)).view(np.uint32)
        inner = (trials, number, max(0, inside - begin), key)
        within, needed = _draw(raw, x[here], *line, drawn[here], rest, *inner)
        while ties is not None and needed > rest.size:  # repeat the same draws with enough bits for ties
            rest = np.concatenate((rest, ties((needed - rest.size + 1) // 2).view(np.uint32)))
            within, needed = _draw(raw, x[here], *line, drawn[here], rest, *inner)
        right &= within
    return right


def _likely_ties(count: int) -> int:
    """Words of 64 bits (two ties each) that are enough for ``count`` trials, except with a probability below 1e-9."""
    expected = count / 256
    return int(expected + 7 * expected**0.5 + 16) // 2


# nogil, cache: as in field.kernels
_fused = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")


# The inner loops are separate functions: inside other loops, LLVM does not vectorise them.


@_fused
def _beyond(x: "NDArray[Any]", bound: float) -> tuple[int, int]:
    outside = 0
    infinite = 0
    for i in range(x.size):
        size = np.abs(np.float64(x[i]))
        outside += not (size <= bound)
        infinite += not (size < np.inf)
    return outside, infinite


@_fused
def _round(
    x: "NDArray[Any]",
    slope: float,
    shift: float,
    low: float,
    high: float,
    k: "NDArray[np.float64]",
    top: "NDArray[np.uint8]",
) -> tuple[bool, bool]:
    """Set k (n,) to 2^40 p, rounded towards 2^39, and top (n,) to its top byte.

    Returns whether all p are in [0, 1], and whether one of them is 1.
    """
    wrong = np.int64(0)
    ones = np.int64(0)
    for e in range(x.size):
        v = np.float64(x[e])
        v = np.float64(low) if v < low else v  # NaN stays NaN
        v = np.float64(high) if v > high else v
        v = (v * slope + shift) * 2.0**BITS  # the last product is exact
        good = (v >= 0.0) & (v <= 2.0**BITS)
        wrong += not good
        ones += v == 2.0**BITS
        v = v if good else np.float64(0.0)  # the conversion of NaN to an integer is undefined
        up, down = np.ceil(v), np.floor(v)
        k[e] = up if v < 2.0 ** (BITS - 1) else down
        top[e] = np.uint8(np.int32(k[e] * 2.0 ** (8 - BITS)))
    return bool(wrong == 0), bool(ones > 0)


@_fused
def _compare(
    raw: "NDArray[np.uint8]", top: "NDArray[np.uint8]", below: "NDArray[np.uint8]", equal: "NDArray[np.uint8]"
) -> None:
    """Count the bytes of raw (trials, BLOCK) below and equal to top, column by column; at most 255 trials."""
    for trial in range(raw.shape[0]):
        for e in range(BLOCK):
            below[e] += np.uint8(raw[trial, e] < top[e])
            equal[e] += np.uint8(raw[trial, e] == top[e])


@_fused
def _add(out: "NDArray[Any]", counts: "NDArray[np.uint8]") -> None:
    for e in range(out.size):
        out[e] += counts[e]


@_fused
def _places(equal: "NDArray[np.uint8]", eights: "NDArray[np.int64]", at: "NDArray[np.int64]") -> int:
    """Set ``at`` to the places where ``equal`` is not 0, and return their number; without branches to mispredict."""
    words = equal.view(np.uint64)
    some = 0
    count = 0
    for eight in range(words.size):  # six of ten groups of eight elements have no tie in 16 trials
        eights[some] = eight
        some += words[eight] != 0
    for eight in eights[:some]:
        for e in range(8 * eight, 8 * eight + 8):
            at[count] = e
            count += equal[e] != 0
    return count


@_fused
def _draw(
    raw: "NDArray[np.uint8]",
    x: "NDArray[Any]",
    slope: float,
    shift: float,
    low: float,
    high: float,
    out: "NDArray[Any]",
    rests: "NDArray[np.uint32]",
    trials: int,
    number: np.uint64,
    empty: int,
    key: np.uint64,
) -> tuple[bool, int]:
    """Set out (n,) to counts of successes from bytes raw (blocks * trials, BLOCK); returns whether all p are in [0, 1].

    The first ``empty`` places of the first block are not elements; ``number`` is the number of its first place. Ties
    take their bits from ``rests`` in turn. The number of ties is also returned: if it is larger than ``rests``, the
    draws are invalid. With empty ``rests``, ties take their bits from Philox with ``key``.
    """
    blocks = raw.shape[0] // trials
    end = empty + x.size
    k = np.zeros(blocks * BLOCK, np.float64)
    top = np.zeros(blocks * BLOCK, np.uint8)
    right, ones = _round(x, slope, shift, low, high, k[empty:end], top[empty:end])
    together = blocks if trials <= 255 else 1  # ties are settled block by block, and a byte counts 255 trials
    below = np.empty(together * BLOCK, np.uint8)
    equal = np.empty(together * BLOCK, np.uint8)
    eights = np.empty(equal.size // 8 + 1, np.int64)
    at = np.empty(equal.size + 1, np.int64)
    used = 0
    out[:] = 0
    for group in range(0, blocks, together):
        first = group * BLOCK  # place of the group's first byte; its elements are ``begin`` to ``stop``
        begin = max(empty, first)
        stop = min(end, first + equal.size)
        for trial in range(0, trials, 255):
            below[:] = 0
            equal[:] = 0
            for block in range(together):
                row = (group + block) * trials + trial
                here = slice(block * BLOCK, (block + 1) * BLOCK)
                rows = raw[row : row + min(255, trials - trial)]
                _compare(rows, top[first + here.start : first + here.stop], below[here], equal[here])
            _add(out[begin - empty : stop - empty], below[begin - first : stop - first])
            equal[: begin - first] = 0
            equal[stop - first :] = 0
            for e in at[: _places(equal, eights, at)]:
                place = first + e
                rest = np.uint32(np.int64(k[place]) & 0xFFFFFFFF)
                for tie in range(np.int64(equal[e])):
                    if rests.size == 0:
                        out[place - empty] += philox(number + np.uint64(place), np.uint64(trial + tie), key) < rest
                    elif used < rests.size:
                        out[place - empty] += rests[used] < rest
                    used += 1
    if ones:
        for e in range(empty, end):
            if k[e] == 2.0**BITS:  # its top 9 bits do not fit a byte
                out[e - empty] = trials
    return right, used


@_fused
def philox(low: np.uint64, high: np.uint64, key: np.uint64) -> np.uint32:
    """The first 32 bits of Philox4x32-10 for a counter of two 64-bit words."""
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0, c1, c2, c3 = low & mask, low >> half, high & mask, high >> half
    k0, k1 = key & mask, key >> half
    for _ in range(10):
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (right >> half) ^ c1 ^ k0, right & mask, (left >> half) ^ c3 ^ k1, left & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return np.uint32(c0)
