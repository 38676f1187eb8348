"""Fused rounding of real numbers to integers, and bounds of their products. Imported on first use: numba.

Each function reads its operands once; the same work in torch operations makes a temporary tensor for every step. The
results are those of the operations that the comments name, bit for bit.
"""

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.floating[Any]]

# nogil, cache: as in kernels
_fused = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")


@_fused
def neighbours(x: "Floats", words: "NDArray[np.uint64]", bits: int, most: float, out: "Ints") -> bool:
    """Set out (n,) to the integers next to 2^bits · x, the upper one if words · 2^-64 is below the fraction.

    Returns whether all |2^bits · x| are at most ``most``, which is below 2^62; if not, out means nothing.
    """
    scale, wrong = 2.0**bits, np.int64(0)
    for i in range(x.size):
        scaled = np.float64(x[i]) * scale
        good = np.abs(scaled) <= most
        wrong += not good  # also NaN
        scaled = scaled if good else np.float64(0.0)  # the conversion of large numbers to an integer is undefined
        below = np.floor(scaled)
        out[i] = np.int64(below) + (np.float64(words[i] >> np.uint64(11)) * 2.0**-53 < scaled - below)
    return bool(wrong == 0)


@_fused
def nearest(x: "Floats", scale: "Any", half: "Any", out: "Floats") -> None:
    """Set out (n,) to x rounded to multiples of 1 / scale, halves upwards, in the precision of x.

    ``scale`` is a power of two; both it and ``half`` (1/2) have the type of x.
    """
    inverse = half / scale + half / scale
    for i in range(x.size):
        scaled = x[i] * scale
        below = np.floor(scaled)
        up = below + (half + half)
        out[i] = (up if scaled - below >= half else below) * inverse


@_fused
def largest_in_columns(x: "Floats", out: "NDArray[np.float64]") -> None:
    """Set out (n,) to the largest absolute values of the columns of x (m, n); NaN is passed over."""
    out[:] = 0.0
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            size = np.float64(np.abs(x[r, i]))
            out[i] = size if size > out[i] else out[i]


@_fused
def reaches(sizes: "NDArray[np.float64]", x: "Ints", ends: "Ints", out: "NDArray[np.float64]") -> None:
    """Set out (parts,) to max_i Σ_k sizes_k |x_ki|, k over the rows of a part of x (k, n), which ends at ``ends``."""
    total = np.zeros(x.shape[1])
    begin = 0
    for part in range(ends.size):
        total[:] = 0.0
        for k in range(begin, ends[part]):
            for i in range(x.shape[1]):
                total[i] += sizes[k] * np.float64(np.abs(x[k, i]))
        begin = ends[part]
        out[part] = total.max()
