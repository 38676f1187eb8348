"""vFedSec's quantisation in one pass over the numbers. Imported on first use: numba takes 0.5 s to load."""

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
def shift(
    h: "NDArray[Any]", words: "NDArray[np.uint16]", out: "NDArray[np.int32]", clip: float, levels: int
) -> tuple[int, int]:
    """Set out ← ⌊h R / 2t + R/2 + words / 2^16⌋ within 0..R - 1; how many lie outside [-t, t], how many are NaN or inf.

    Whatever lies outside ends at 0 or R - 1; clipped first, it would do the same. All in float64, which holds the 27
    bits of an integer and 16 behind the point.
    """
    scale = levels / (2.0 * clip)
    half = np.float64(levels // 2)
    top = np.float64(levels - 1)
    outside = 0
    wrong = 0
    for i in range(len(h)):
        x = np.float64(h[i])
        value = np.floor(x * scale + half + np.float64(words[i]) * 2.0**-16)
        outside += np.abs(x) > clip
        wrong += not (np.abs(x) < np.inf)
        out[i] = np.int32(min(max(value, 0.0), top))
    return outside, wrong
