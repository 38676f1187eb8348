"""Fused passes over elements modulo p on a CPU. Imported on first use: numba."""

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_COLUMNS = 1024  # whose differences stay in the first-level cache: 8 KiB

# nogil, cache: as in kernels
_fused = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")


@_fused
def pick(bits: "NDArray[np.unsignedinteger[Any]]", mask: int, p: int, out: "Ints", begin: int) -> int:
    """Write the low bits of each word that are below p to out[begin:]; returns the number of elements written so far.

    Without a branch: a word that is refused is overwritten by the next one.
    """
    place, last = begin, out.size - 1
    for word in bits:
        if place > last:
            break
        value = np.int64(word) & mask
        out[place] = value
        place += int(value < p)
    return place


@_fused
def embed(x: "Ints", p: int, out: "Ints") -> bool:
    """Set out (n,) to x, p + x for negative x; whether all |x| are at most (p - 1) / 2."""
    half, outside = (p - 1) // 2, np.int64(0)
    for i in range(x.size):
        c = x[i]
        outside |= (half - c) | (half + c)
        out[i] = c + ((c >> 63) & p)
    return bool(outside >= 0)


@_fused
def lift(x: "Ints", p: int, unit: float, out: "NDArray[np.float64]") -> bool:
    """Set out (n,) to the centred residues of x times ``unit``, a power of two; whether all elements are in [0, p)."""
    half, outside = (p - 1) // 2, np.int64(0)
    for i in range(x.size):
        c = x[i]
        outside |= c | (p - 1 - c)
        out[i] = np.float64(c - p if c > half else c) * unit
    return bool(outside >= 0)


@_fused
def along(start: "Ints", end: "Ints", times: "Ints", out: "Ints", p: int, first: int, last: int) -> bool:
    """Set out (m, n) to start + times · (end - start) modulo p < 2^31, for columns ``first`` to ``last``.

    In float64, with ``times`` in two limbs of 16 bits: every product is below 2^46 in absolute value, so nothing is
    rounded but the quotients, which are off by less than one. Returns whether all elements are in [0, p).
    """
    half, inverse, real, outside = (p - 1) // 2, 1.0 / p, np.float64(p), np.int64(0)
    step, base = np.empty(_COLUMNS, np.float64), np.empty(_COLUMNS, np.float64)
    for begin in range(first, last, _COLUMNS):
        width = min(_COLUMNS, last - begin)
        for i in range(width):
            a, b = start[begin + i], end[begin + i]
            outside |= a | (p - 1 - a) | b | (p - 1 - b)
            d = b - a  # in (-p, p); its centred residue is below 2^30 in absolute value
            d -= p if d > half else 0
            d += p if d < -half else 0
            step[i], base[i] = np.float64(d), np.float64(a)
        for j in range(times.size):
            f = times[j]
            outside |= f | (p - 1 - f)
            f = f - p if f > half else f
            digit = ((f + 2**15) & (2**16 - 1)) - 2**15
            low, high = np.float64(digit), np.float64((f - digit) >> 16)
            for i in range(width):
                t = high * step[i]
                t -= np.rint(t * inverse) * real
                t = t * 2.0**16 + low * step[i] + base[i]
                t -= np.floor(t * inverse) * real
                t = t + real if t < 0.0 else t
                out[j, begin + i] = np.int64(t - real if t >= real else t)
    return bool(outside >= 0)
