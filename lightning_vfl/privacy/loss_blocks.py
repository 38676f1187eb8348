r"""The largest δ(ε) of several numbers of the Poisson binomial mechanism, if other parties' values depend on outcomes.

``loss_distribution`` states the recursion and why it is right. Here, every group of k is one pair on a grid of losses
(connect the dots, from above), so that a step of the recursion is a convolution for every group, and their maximum.
"""

from functools import lru_cache
from math import ceil, inf, log, log2, sqrt
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.privacy.poisson_binomial import (
    poisson_binomial_curve,
    poisson_binomial_profiles,
    poisson_binomial_rdp,
)
from lightning_vfl.privacy.rdp import ORDERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Kinds = tuple[tuple[int, float, int], ...]
"""b, β and M of every kind of release that is possible."""

_TAIL = 1e-14  # δ at the end of the grid of a block, about
_ULP = 2.0**-53


class Blocks:
    """δ(ε) of blocks of 1, 2, ... numbers, each released by any of some kinds, for any values in [-1, 1].

    Shapes: ``losses`` (G,) rising integers; ε is a loss times ``spacing``.
    Guarantee: never below the true δ, also for values that depend on earlier numbers.

    Args:
        kinds: b, β and M of every kind.
        spacing: the distance of two losses of the grid.
        longest: the grid is for blocks of up to this many numbers.
    """

    def __init__(self, kinds: Kinds, spacing: float, longest: int) -> None:
        from scipy.fft import next_fast_len, rfft

        most = max(poisson_binomial_rdp(b, beta, 1, inf, "record") for b, beta, _ in kinds)
        self._half = ceil(most * (1 + 1e-12) / spacing)  # above the largest loss of one number
        edge = max(_reach(kinds, longest, spacing), self._half)
        self.losses = np.arange(-edge, edge + 1)
        self._gamma = np.exp(self.losses * spacing)
        self._before = np.exp(np.arange(-self._half, 0) * spacing)  # γ left of the grid, relative to its first
        pairs = _pairs(kinds, spacing, self._half)
        self._size = next_fast_len(self.losses.size + 2 * self._half, real=True)
        self._pairs = rfft(pairs, self._size)
        # The transforms of a pair p and of V err by 16 u log2(N) of their norms, the inverse by that of its result. The
        # norms of V and of the result are at most sqrt(N).
        largest = float(np.linalg.norm(pairs, axis=1).max())
        one = 16 * _ULP * log2(2 * self._size) * sqrt(self._size)
        self._error = one * (2 * largest + 1) + 8 * _ULP * pairs.shape[1]
        self._deltas: list[Floats] = [np.maximum(0.0, 1.0 - self._gamma)]

    def deltas(self, numbers: int) -> "Floats":
        """(G,) δ of a block of m numbers at ``losses``, falling."""
        while len(self._deltas) <= numbers:
            self._deltas.append(self._next(self._deltas[-1]))
        return self._deltas[numbers]

    def _next(self, last: "Floats") -> "Floats":
        """δ of a block with one more number in front."""
        from scipy.fft import irfft, rfft

        left = 1.0 - self._before * (1.0 - last[0])  # convex in γ, and 1 at γ = 0
        known = np.concatenate((left, last, np.full(self._half, last[-1])))
        every = irfft(self._pairs * rfft(known, self._size), self._size)
        largest = every[:, 2 * self._half : 2 * self._half + last.size].max(axis=0) + self._error
        largest = np.minimum(np.maximum(largest, 1.0 - self._gamma), 1.0)
        falling: Floats = np.maximum.accumulate(largest[::-1])[::-1]
        return falling


@lru_cache(maxsize=8)
def blocks(kinds: Kinds, spacing: float, longest: int) -> Blocks:
    """The cached blocks of some kinds."""
    return Blocks(kinds, spacing, longest)


def _pairs(kinds: Kinds, spacing: float, half: int) -> "Floats":
    """(groups, 2 half + 1), the probabilities of losses of one number for every group of k."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots

    grid, pairs = np.arange(-half, half + 1), []
    for kind in kinds:
        for row in poisson_binomial_profiles(*kind, np.asarray(grid * spacing, np.float64)):
            falling = np.maximum.accumulate(row[::-1])[::-1]  # rounding can make it rise
            pairs.append(create_pmf_pessimistic_connect_dots(spacing, grid, falling).to_dense_pmf()._probs)
    return np.array(pairs)


def _reach(kinds: Kinds, numbers: int, spacing: float) -> int:
    """The loss at which δ of the block is about ``_TAIL``, by the Rényi curve."""
    curve = np.max([poisson_binomial_curve(*kind, ORDERS) for kind in kinds], axis=0)
    ends = [numbers * e - (log(_TAIL) / (a - 1) if a < inf else 0.0) for a, e in zip(ORDERS, curve, strict=True)]
    return ceil(float(min(ends)) / spacing) + 1
