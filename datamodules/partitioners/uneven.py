"""Parts of uneven width, with shares from a Dirichlet distribution."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import Name, permutation, stream

from ..records.layout import Layout, Part, flat_parts
from .partition import Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DirichletColumns(Partitioner):
    """Random columns, in parts whose widths follow a draw from Dirichlet(α). Every column goes to exactly one party.

    An image is divided into strips of uneven height, top to bottom; party m then sees (C, h_m, W).

    Args:
        parties: M.
        alpha: α > 0 for every party: with 0.1 few parties get most columns, with 1 all shares are equally likely, with
            100 shares are nearly equal. Or M numbers: the mean shares are proportional to them, and the larger they
            are, the less shares vary.
        seed: names the draw of the shares and the order of the columns.

    Guarantee: every party has at least one column (one row of pixels of an image). A width is at most one above its
        share of all columns, and at most one below, unless parties with a share of less than one column take columns
        from others. The parts depend on the seed, α, and the numbers of parties and columns only.

    Raises:
        ConfigurationError: for α that is not positive, or not one number for each party; in ``split``, for more parties
            than columns.

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
        self.alpha = check_alpha(alpha, parties)
        self.seed = seed

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        image = len(layout.shape) == 3
        things = layout.shape[1] if image else layout.size
        refuse_too_many(self.parties, things, "rows of pixels" if image else "columns")
        shares = draw_shares(self.alpha, self.parties, self.seed, "dirichlet columns")
        heights = np.bincount(share_out(np.ones(things), shares))
        if not image:
            order = permutation(things, self.seed, "dirichlet columns", "order")
            runs = np.split(order, np.cumsum(heights)[:-1])
            return flat_parts(np.sort(run) for run in runs)
        pixels = np.arange(layout.size, dtype=np.int64).reshape(layout.shape)
        strips = np.split(pixels, np.cumsum(heights)[:-1], axis=1)
        return tuple(Part(strip.reshape(-1), strip.shape) for strip in strips)


def check_alpha(alpha: float | Sequence[float], parties: int) -> float | tuple[float, ...]:
    """The checked α of a Dirichlet distribution: one number for all parties or one for each.

    Raises:
        ConfigurationError: for another number of values, and for values that are not positive and finite.
    """
    numbers = tuple(float(a) for a in alpha) if isinstance(alpha, Sequence) else (float(alpha),)
    if isinstance(alpha, Sequence) and len(numbers) != parties:
        raise ConfigurationError(
            f"alpha must be one number, or one for each of the {parties} parties; got {len(numbers)} numbers"
        )
    if wrong := [a for a in numbers if not 0 < a < np.inf]:
        raise ConfigurationError(
            f"alpha must be above 0 and finite, such as 1, or 1000 for even shares; got {wrong[0]:g}"
        )
    return numbers if isinstance(alpha, Sequence) else numbers[0]


def refuse_too_many(parties: int, things: int, what: str) -> None:
    """Accept a number of parties that can have at least one thing each.

    Raises:
        ConfigurationError: for more parties than things, and for no party.
    """
    if not 1 <= parties <= things:
        raise ConfigurationError(f"{parties} parties cannot share {things} {what}; use 1 to {things} parties")


def draw_shares(alpha: float | Sequence[float], parties: int, seed: int, *names: Name) -> "NDArray[np.float64]":
    """(M,) shares that add up to 1, drawn from Dirichlet(α) by a named stream.

    They are normalised Gamma variables, drawn as logarithms: with α = 0.001 nearly all of them would otherwise be 0.

    Examples:
        >>> [round(float(share), 3) for share in draw_shares(0.5, 3, 0, "doctest")]
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
    """(n,) the party that gets each of n weighted things; weights follow the shares, and every party gets a thing.

    Things are assigned one by one. Each goes to the party whose weight is furthest below its share; a thing of weight 0
    goes to the party whose number of things is furthest below its share of their number. When as many things are left
    as there are parties without one, each of these parties gets one.

    Args:
        weights: (n,) numbers from 0, in the order in which things are assigned; best from the heaviest on.
        shares: (M,) numbers that add up to 1.

    Guarantee: the weight of a party is above its share by at most the heaviest thing, and below its share by at most
        the heaviest thing and the last M - 1 things together.

    Examples:
        >>> share_out(np.array([5.0, 3.0, 2.0, 1.0, 0.0]), np.array([0.5, 0.5])).tolist()
        [0, 1, 1, 0, 0]
    """
    owners = np.empty(len(weights), dtype=np.int64)
    lack = shares * weights.sum()
    fewer = shares * len(weights)
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
