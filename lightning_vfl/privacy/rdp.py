r"""Rényi differential privacy: the joint cost of several releases, and its conversion to ε and δ.

The cost of a release is a curve, an ε(α) for every order α of a grid. The curves of several releases are added, also if
a release depends on earlier releases. Every order of the grid then gives a valid (ε, δ), and the smallest ε is
reported. A finer grid may give a smaller ε, but every grid gives a valid ε.

Privacy figures are rounded up. Unknown costs are infinite.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import fsum, inf, log, log1p, nextafter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_ROUNDING = 2.0**-50  # of a figure and of each term of its conversion: a few rounding errors

ORDERS: tuple[float, ...] = (*(1 + 2.0 ** (i / 6) for i in range(-39, 73)), inf)
"""112 orders from 1.011 to 4097 whose distance from 1 grows by 12 % a step, and ∞: for totals ε(2) of 1e-6 to 1e5. At
δ = 1e-5, the ε of the grid is above the ε of the best order by less than half a percent."""


class Converted(NamedTuple):
    """The ε of an (ε, δ) guarantee, and the order that gave it."""

    epsilon: float
    order: float


def compose_rdp(releases: Sequence[tuple[Sequence[float], float]]) -> tuple[float, ...]:
    """The joint curve of several releases: the sum of their curves, each times its count.

    Shapes: every curve over the same orders.
    Units: ε in nats.
    Guarantee: never below the true sum; above it by a relative error of at most 1e-15.
    Not guaranteed: the cost of a number of releases that depends on earlier releases; use the largest possible number.

    Args:
        releases: pairs of a curve and a count of 0 or more. A count of 0 costs nothing, even with an infinite curve.

    Raises:
        ConfigurationError: for an ε that is negative or NaN, a fractional count, curves of different length, and no
            release.

    Examples:
        >>> [f"{epsilon:.4f}" for epsilon in compose_rdp([((0.5, 1.0), 3), ((0.25, float("inf")), 1)])]
        ['1.7500', 'inf']
    """
    if len({len(curve) for curve, _ in releases}) != 1:
        raise ConfigurationError("there must be one or more curves of equal length; use one grid of orders for all")
    for curve, count in releases:
        _check(curve)
        within("count of releases", count, 0, whole=True)
    some = [(curve, count) for curve, count in releases if count]
    orders = range(len(releases[0][0]))
    return tuple(up(fsum(up(curve[i] * count) for curve, count in some)) for i in orders)


def rdp_epsilon(orders: Sequence[float], curve: Sequence[float], delta: float) -> Converted:
    r"""The smallest ε of a curve for a δ, and its order.

    .. math:: ε = \min_α \; ε(α) + \log\frac{α - 1}{α} - \frac{\log δ + \log α}{α - 1},

    and 0 if :math:`δ^2 > 1 - e^{-ε(α)}`: the total variation distance is then below δ. Order ∞ is pure differential
    privacy, which needs no conversion.

    Shapes: as many ε as orders.
    Units: ε in nats.
    Guarantee: never below the ε of the best order of the grid; above it by at most 1e-14 of the terms above. Infinite
        if the whole curve is infinite.
    Not guaranteed: the smallest possible ε of the release, which a Rényi curve does not determine.

    Args:
        orders: each above 1; with ``inf`` if the curve includes pure differential privacy.
        curve: ε(α) for every order.
        delta: 0 ≤ δ ≤ 1; with 0, only order ∞ counts.

    Raises:
        ConfigurationError: for invalid numbers, and for lists of different length.

    Examples:
        >>> noise = [order / 2 for order in ORDERS]  # of standard deviation 1 at sensitivity 1
        >>> found = rdp_epsilon(ORDERS, noise, delta=1e-5)
        >>> f"{found.epsilon:.3f} at order {found.order:.2f}"
        '4.729 at order 5.49'

    References:
        Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020,
        https://arxiv.org/abs/2004.00010, Proposition 12 (the first line).
        Bretagnolle, Huber, "Estimation des densités: risque minimax", 1979; D_α is at least the Kullback-Leibler
        divergence (the second).
    """
    if len(orders) != len(curve) or not orders:
        raise ConfigurationError(
            f"a curve must have one figure for each order, and at least one; got {len(curve)} for {len(orders)} orders"
        )
    within("an order of the conversion", float(np.min(orders)), above=1, most=inf)
    _check(curve)
    within("delta", delta, 0, 1)
    figures = converted(np.array(curve, np.float64), tuple(orders), delta)
    best = int(figures.argmin())
    return Converted(float(figures[best]), float(orders[best]))


def converted(curves: "Floats", orders: tuple[float, ...], delta: float) -> "Floats":
    """ε by each order of curves, (*, orders); the smallest of a curve is what ``rdp_epsilon`` returns."""
    factors, offsets, nothing = _conversion(orders, delta)
    return np.where(curves <= nothing, 0.0, np.maximum(curves * factors + offsets, 0.0))


@lru_cache(maxsize=64)
def _conversion(orders: tuple[float, ...], delta: float) -> "tuple[Floats, Floats, float]":
    """By order, the factor and the summand that make ε of ε(α), rounded up; and up to which ε(α) the ε is 0."""
    factors = np.ones(len(orders))
    offsets = np.zeros(len(orders))
    surprise = -log(delta) if delta else inf
    for i, order in enumerate(orders):
        if order < inf:  # by math: the last bits of numpy's logarithms depend on the processor
            apart = order - 1
            terms = log1p(-1 / order), surprise / apart, -log(order) / apart
            factors[i] = 1 + _ROUNDING
            offsets[i] = sum(terms) + _ROUNDING * (sum(map(abs, terms)) + 1 / apart)
    nothing = -log1p(-delta * delta) * (1 - _ROUNDING) if delta < 1 else inf
    return factors, offsets, nothing


def up(number: float) -> float:
    """The next float above the result of one rounded operation; 0 and ∞ are exact and do not change."""
    return nextafter(number, inf) if number else 0.0


def _check(curve: Sequence[float]) -> None:
    """Refuse a curve with an ε that is negative or NaN."""
    within("epsilon", float(np.min(curve, initial=0)), 0, most=inf)  # NaN if one of them is
