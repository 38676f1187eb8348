r"""Normal numbers rounded to integers, with exactly the probabilities of the rounded normal distribution.

Noise that is computed in floating point is not normal: only some floats can come out, and which ones depends on the
value that the noise is added to. Mironov reads the value from the last bits of the sum. The remedy here is to round the
ideal noise to a grid *before* it is added to a value on the same grid. Let g be an integer (the value in steps of the
grid) and X a real number with the distribution N(0, s²). Then

.. math:: g + \mathrm{round}(X) = \mathrm{round}(g + X),

so what is released is a function (rounding) of the ideal Gaussian mechanism g + X, and every privacy figure of the
ideal mechanism holds. This needs integers round(X) with *exactly* the right probabilities. They are drawn in two steps.

1. Box and Muller's transform of two uniform numbers U and V is exact in real numbers. U and V have infinitely many
   random bits, of which the first 64 are drawn. From these, floating point gives a candidate s Z' and a bound of its
   error (``candidates``). If no boundary between two integers lies within the bound, the remaining bits of U and V
   cannot change the rounded number: it is accepted.
2. Otherwise (about one pair in 10⁵) the number is computed again in high precision, as an interval that contains s Z
   for every continuation of the bits (``settled``). While the interval contains a boundary, 64 further random bits of
   U and of V are drawn. This ends with probability 1.

The error bound assumes that numpy's ``log``, ``cos`` and ``sin`` are within 64 units in the last place (the libraries
behind them state 4 or fewer; the tests compare with 60 digits) and that ``sqrt``, sums and products are rounded
correctly, as IEEE 754 has it.

References:
    Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012.
    Karney, "Sampling Exactly from the Normal Distribution", ACM Transactions on Mathematical Software 42(1), 2016 (the
    principle: decide on prefixes of infinitely many bits and draw more bits where these do not decide).
    Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020 (the alternative: noise
    that is discrete from the beginning, with figures of its own).
    Box, Muller, "A Note on the Generation of Random Normal Deviates", Annals of Mathematical Statistics 29, 1958.
"""

from collections.abc import Callable
from math import frexp, pi
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.checks import within

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightning_vfl.crypto.keystream import Words

WORD = 64  # bits that are drawn of U and of V at a time
LARGEST_SCALE = 2.0**40  # beyond, the error bound is above 1/2 and every number would be computed in high precision
# Where step 1 does not apply: U below 2⁻²⁰, of which 64 bits say too little, and R below 2⁻¹⁰, where U is near 1.
_LEAST_WORD = np.uint64(2**44)
_LEAST_RADIUS = 2.0**-10
_ERROR = 2.0**-42
# A norm in float64 is off by (D / 2 + 2) 2⁻⁵³ of itself: up to D = 16,000 this keeps it from passing the clip.
INSIDE = 1 - 2.0**-40
# The grid: steps of at most σ 2⁻²⁰, so that rounding to it is small beside the noise, and of at least C 2⁻⁶⁰, so that a
# clipped value and its noise fit 64 bits.
_FINE = 20
_COARSE = 60
_SMALLEST = -1022


def with_noise(clipped: "NDArray[np.float64]", sigma: float, clip: float, words: "Words") -> "NDArray[np.float64]":
    """The rounded sum of clipped embeddings and secret noise N(0, σ² I), without the gaps of floating point.

    Shapes: (B, D). Units: those of the embeddings.
    Guarantee: a function of the ideal Gaussian mechanism at a point of the grid that is not longer than ``clipped``.

    Args:
        clipped: embeddings of which no row, or no value, is longer than the clip; ``INSIDE`` times the clip is safe.
        sigma: σ.
        clip: C.
        words: returns the next n uniform 64-bit words for n.
    """
    step = grid(sigma, clip)
    # exact: a step is a power of two; and towards zero, so that nothing becomes longer than the clip
    whole = np.trunc(clipped / step).astype(np.int64)
    whole += rounded_normal(clipped.size, sigma / step, words).reshape(clipped.shape)
    return whole.astype(np.float64) * step


def grid(sigma: float, clip: float) -> float:
    """The step γ of the grid that clipped embeddings and their noise are rounded to: a power of two.

    Examples:
        >>> grid(sigma=1.5, clip=1.0) == 2.0**-20
        True
    """
    return 2.0 ** max(frexp(sigma)[1] - 1 - _FINE, frexp(clip)[1] - _COARSE, _SMALLEST)


def rounded_normal(count: int, scale: float, words: "Words") -> "NDArray[np.int64]":
    """Independent integers round(s Z), where Z has the standard normal distribution.

    Shapes: (count,). Units: integers.
    Guarantee: if the words are uniform and independent, the probability of every integer k is exactly that of
        k - 1/2 < s Z < k + 1/2, for all k, however large.
    Not guaranteed: constant time; a number that needs high precision takes about 0.2 ms longer. Equal results for equal
        words on different processors are guaranteed, because every accepted number is the true one.

    Args:
        count: how many numbers.
        scale: s, the standard deviation in steps of the grid; above 0 and at most 2⁴⁰.
        words: returns the next n uniform 64-bit words for n. ``count`` words are used (one more if it is odd), and two
            for every continuation.

    Raises:
        ConfigurationError: for a scale outside this range.

    Examples:
        >>> from lightning_vfl.streams import stream
        >>> rounded_normal(6, 1000.0, stream(0, "example").random_raw).tolist()
        [502, 105, -2129, -400, -911, 58]
    """
    within("scale", scale, above=0, most=LARGEST_SCALE, advice="use a coarser grid")
    pairs = (count + 1) // 2
    prefixes = words(2 * pairs).reshape(pairs, 2)
    real, error = candidates(prefixes, scale)
    nearest = np.rint(real)
    unsure = np.abs(real - nearest) + error[:, None] >= 0.5
    drawn = nearest.astype(np.int64)
    for pair in (unsure[:, 0] | unsure[:, 1]).nonzero()[0]:
        first, second = (int(word) for word in prefixes[pair])
        drawn[pair] = decide(first, second, scale, lambda: int(words(1)[0]))
    return drawn.reshape(-1)[:count]


def candidates(prefixes: "NDArray[np.uint64]", scale: float) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    r"""The numbers s Z in floats for the first 64 bits of U and V, and a bound of the error for their continuations.

    With R = √(-2 ln U), the pair is s R cos 2πV and s R sin 2πV. For a prefix a ≥ 2⁴⁴ of U, the float of U and the
    unknown bits change ln U by at most 2⁻⁵³ + 2⁻⁴⁴, and ``log`` adds 64 units in the last place (2⁻⁴⁶ of the number).
    So R² is off by at most 2^{-42.9} + 2⁻⁴⁶ R², and R by that over R. The angle is off by less than 2⁻⁴⁸, the cosine by
    2⁻⁴⁸ + 2⁻⁴⁶. Together s Z is off by less than s (2^{-42.9} / R + 2^{-44.5} R); 2⁻⁴² s (R + 1 / R) is returned.

    Shapes: ``prefixes`` (pairs, 2); the numbers (pairs, 2); the bound (pairs,), of both numbers of a pair.
    Units: steps of the grid. The error is infinite where it is not known.
    """
    first, second = prefixes[:, 0], prefixes[:, 1]
    log = np.log(np.maximum(first, _LEAST_WORD).astype(np.float64) * 2.0**-WORD)
    radius = np.sqrt(-2.0 * log)
    angle = second.astype(np.float64) * (2.0 * pi * 2.0**-WORD)
    known = (first >= _LEAST_WORD) & (radius >= _LEAST_RADIUS)
    safe = np.maximum(radius, _LEAST_RADIUS)
    error = np.where(known, (_ERROR * scale) * (safe + 1.0 / safe), np.inf)
    scaled = radius * scale
    real = np.empty(prefixes.shape)
    np.multiply(scaled, np.cos(angle), out=real[:, 0])
    np.multiply(scaled, np.sin(angle), out=real[:, 1])
    return real, error


def decide(first: int, second: int, scale: float, more: Callable[[], int]) -> tuple[int, int]:
    """The two integers of a pair, with as many further bits of U and V as they need.

    Args:
        first, second: the first 64 bits of U and of V, as integers.
        scale: s.
        more: the next 64 random bits.
    """
    bits = WORD
    while (pair := settled(first, second, bits, scale)) is None:
        first, second, bits = (first << WORD) + more(), (second << WORD) + more(), bits + WORD
    return pair


def settled(first: int, second: int, bits: int, scale: float) -> tuple[int, int] | None:
    """The two integers that these bits of U and V determine; None if a continuation could change one of them.

    Shapes: plain numbers. U lies in [first, first + 1] 2^-bits, V in [second, second + 1] 2^-bits.
    Guarantee: no continuation of the bits gives another pair, if mpmath's functions are accurate to 2⁻⁶⁰ of the least
        bit that is known.
    """
    import mpmath  # imported here, because it is rarely needed

    if first == 0:  # U could be as small as any number
        return None
    with mpmath.workprec(bits + 64):  # the numbers below have rounding errors of some 2^-(bits + 62) of themselves
        unit = mpmath.ldexp(1, -bits)
        longest = mpmath.sqrt(-2 * mpmath.log(first * unit))
        shortest = mpmath.sqrt(-2 * mpmath.log((first + 1) * unit))
        radius = (longest + shortest) / 2
        angle = 2 * mpmath.pi * (second + mpmath.mpf(0.5)) * unit
        # The cosine changes by at most π 2^-bits over half the interval; 4 covers the rounding errors too.
        error = scale * ((longest - shortest) / 2 + 4 * longest * unit)
        pair = []
        for part in (mpmath.cos(angle), mpmath.sin(angle)):
            shifted = scale * radius * part + mpmath.mpf(0.5)
            low, high = mpmath.floor(shifted - error), mpmath.floor(shifted + error)
            if low != high:
                return None
            pair.append(int(low))
    return pair[0], pair[1]
