"""Parties of uneven width, as a Dirichlet distribution has it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import Name, permutation, stream

from .partition import Layout, Part, Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DirichletColumns(Partitioner):
    """Random columns, in parts whose widths follow a draw from Dirichlet(α). Covers every column exactly once.

    An image is dealt out in strips, top to bottom, of uneven height; party m then sees (C, h_m, W).

    Args:
        parties: M.
        alpha: α > 0 for every party: 0.1 gives most columns to few parties, 1 any shares alike, 100 nearly equal ones.
            Or M numbers: the mean shares are in proportion to them, and the larger they are, the less shares vary.
        seed: names the shares and the order of the columns.

    Guarantee: every party has a column (a row of pixels of an image). A width exceeds its share of all columns by one
        at most, and falls short of it by one at most, unless shares of less than one column have to be made up. Seed,
        α, and the numbers of parties and columns decide alone.

    Raises:
        ConfigurationError: for α that is not a positive number, or not one a party; in ``split``, for more parties than
            columns.

    Examples:
        >>> [len(part.positions) for part in DirichletColumns(4, alpha=0.5).split(Layout((20,)))]
        [1, 11, 1, 7]

    References:
        Shares of label classes are drawn like this in horizontal federated learning: Hsu, Qi, Brown, "Measuring the
        Effects of Non-Identical Data Distribution for Federated Visual Classification",
        https://arxiv.org/abs/1909.06335, section 2; shares of columns in VertiBench, see ``ColumnsByImportance``.
    """

    def __init__(self, parties: int, alpha: float | Sequence[float] = 1.0, seed: int = 0) -> None:
        self.parties = parties
        self.alpha = concentrations(alpha, parties)
        self.seed = seed

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        image = len(layout.shape) == 3
        things = layout.shape[1] if image else layout.size
        refuse_too_many(self.parties, things, "rows of pixels" if image else "columns")
        shares = dirichlet(self.alpha, self.parties, self.seed, "dirichlet columns")
        heights = np.bincount(share_out(np.ones(things), shares))
        if not image:
            order = permutation(things, self.seed, "dirichlet columns", "order")
            runs = np.split(order, np.cumsum(heights)[:-1])
            return tuple(Part(np.sort(run), (len(run),)) for run in runs)
        pixels = np.arange(layout.size, dtype=np.int64).reshape(layout.shape)
        strips = np.split(pixels, np.cumsum(heights)[:-1], axis=1)
        return tuple(Part(strip.reshape(-1), strip.shape) for strip in strips)


def concentrations(alpha: float | Sequence[float], parties: int) -> float | tuple[float, ...]:
    """The checked α of a Dirichlet distribution, one number for all parties or one for each.

    Raises:
        ConfigurationError: if they are not.
    """
    numbers = tuple(float(a) for a in alpha) if isinstance(alpha, Sequence) else (float(alpha),)
    if isinstance(alpha, Sequence) and len(numbers) != parties:
        raise ConfigurationError(
            f"alpha has {len(numbers)} numbers for {parties} parties; give one number, or {parties}"
        )
    if wrong := [a for a in numbers if not 0 < a < np.inf]:
        raise ConfigurationError(
            f"alpha {wrong[0]:g} is no concentration; use a number above 0, such as 1, or 1000 for even shares"
        )
    return numbers if isinstance(alpha, Sequence) else numbers[0]


def refuse_too_many(parties: int, things: int, what: str) -> None:
    """Refuse parties of whom some would have nothing.

    Raises:
        ConfigurationError: if there are more than things to share out, or none.
    """
    if not 1 <= parties <= things:
        raise ConfigurationError(f"{parties} parties cannot share {things} {what}; use 1 to {things} parties")


def dirichlet(alpha: float | Sequence[float], parties: int, seed: int, *names: Name) -> "NDArray[np.float64]":
    """(M,) shares that add up to 1, drawn from Dirichlet(α) by a named stream.

    Gamma variables, normalised. Their logarithms are drawn: with α = 0.001 nearly all of them would be 0 otherwise.

    Examples:
        >>> [round(float(share), 3) for share in dirichlet(0.5, 3, 0, "doctest")]
        [0.631, 0.231, 0.139]
    """
    from scipy.special import gammaincinv, logsumexp  # where it is used

    a = np.broadcast_to(np.asarray(alpha, dtype=np.float64), (parties,))
    words = stream(seed, *names).random_raw(2 * parties)
    u, v = ((words >> np.uint64(11)).astype(np.float64) + 0.5).reshape(2, parties) / 2**53
    logs = np.log(gammaincinv(a + 1, u)) + np.log(v) / a  # Gamma(α) is Gamma(α + 1) times a uniform to the power 1 / α
    shares: NDArray[np.float64] = np.exp(logs - logsumexp(logs))
    return shares


def share_out(weights: "NDArray[np.float64]", shares: "NDArray[np.float64]") -> "NDArray[np.int64]":
    """(n,) who gets each of n weighty things, so that everybody's weight follows the shares, and everybody has one.

    One after the other goes to whoever lacks most of his share; what weighs nothing, to whoever lacks most of his share
    of the number. When as many are left as there are parties without any, these get one each.

    Args:
        weights: (n,) from 0, in the order in which they are given out: best from the heaviest on.
        shares: (M,) that add up to 1.

    Guarantee: nobody gets more than the heaviest above the weight of his share; nobody lacks more than the heaviest
        and what the last M - 1 weigh.

    Examples:
        >>> share_out(np.array([5.0, 3.0, 2.0, 1.0, 0.0]), np.array([0.5, 0.5])).tolist()
        [0, 1, 1, 0, 0]
    """
    owners = np.empty(len(weights), dtype=np.int64)
    lack, fewer = shares * weights.sum(), shares * len(weights)
    idle = np.ones(len(shares), dtype=bool)
    for n, weight in enumerate(weights):
        wanting = lack if weight > 0 else fewer
        if len(weights) - n <= idle.sum():
            wanting = np.where(idle, wanting, -np.inf)
        owner = int(wanting.argmax())
        owners[n] = owner
        lack[owner] -= weight
        fewer[owner] -= 1
        idle[owner] = False
    return owners
