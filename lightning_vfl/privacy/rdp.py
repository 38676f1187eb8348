r"""Rényi differential privacy: the joint cost of several releases, and its conversion to ε and δ.

The cost of a release is a curve, an ε(α) for every order α of a grid. The curves of several releases are added, also if
a release depends on earlier releases. Every order of the grid then gives a valid (ε, δ), and the smallest ε is
reported. A finer grid may give a smaller ε, but every grid gives a valid ε.

Privacy figures are rounded up. Unknown costs are infinite.
"""

from collections.abc import Sequence
from math import fsum, inf, log, nextafter
from typing import NamedTuple

import numpy as np

from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError

_ULP = 2.0**-53

_LEAST_ORDER = 1.01  # dp-accounting treats its formula as unstable up to this order

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
    r"""The smallest ε of a curve for a δ, and its order, by the conversion of dp-accounting.

    .. math:: ε = \min_α \; ε(α) + \log\frac{α - 1}{α} - \frac{\log δ + \log α}{α - 1},

    and 0 if :math:`δ^2 > 1 - e^{-ε(α)}`: the total variation distance is then below δ. Order ∞ is pure differential
    privacy, which needs no conversion.

    Shapes: as many ε as orders.
    Units: ε in nats.
    Guarantee: never below the ε of the best order of the grid; above it by at most 1e-14 of the terms above. Infinite
        if the whole curve is infinite.
    Not guaranteed: the smallest possible ε of the release, which a Rényi curve does not determine.

    Args:
        orders: each above 1.01; with ``inf`` if the curve includes pure differential privacy.
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
        Google's differential privacy team, dp-accounting, https://github.com/google/differential-privacy (the code).
        Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020,
        https://arxiv.org/abs/2004.00010, Proposition 12 (the first line).
        Bretagnolle, Huber, "Estimation des densités: risque minimax", 1979; D_α is at least the Kullback-Leibler
        divergence (the second).
    """
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon  # here: the import takes a second

    if len(orders) != len(curve) or not orders:
        raise ConfigurationError(
            f"a curve must have one figure for each order, and at least one; got {len(curve)} for {len(orders)} orders"
        )
    within("an order of the conversion", float(np.min(orders)), above=_LEAST_ORDER, most=inf)
    _check(curve)
    within("delta", delta, 0, 1)
    pairs = list(zip(orders, curve, strict=True))
    pure = min((epsilon for order, epsilon in pairs if order == inf), default=inf)
    if delta in (0, 1):
        return Converted(0.0 if delta == 1 else pure, inf)
    finite = [pair for pair in pairs if pair[0] < inf]
    finite.append((2.0, pure))  # order ∞ bounds every order
    epsilon, order = compute_epsilon(*zip(*finite, strict=True), delta)
    if 0 < epsilon < inf:  # a sum of terms with a few rounding errors each
        apart = order - 1
        renyi = min(epsilon for of, epsilon in finite if of == order)  # order 2 also stands for order ∞
        terms = (renyi, log(order / apart), log(delta) / apart, log(order) / apart)
        epsilon = fsum((epsilon, 8 * _ULP * fsum(map(abs, terms)), 5e-324))
    return Converted(float(epsilon), float(order)) if epsilon <= pure else Converted(pure, inf)


def up(number: float) -> float:
    """The next float above the result of one rounded operation; 0 and ∞ are exact and do not change."""
    return nextafter(number, inf) if number else 0.0


def _check(curve: Sequence[float]) -> None:
    """Refuse a curve with an ε that is negative or NaN."""
    within("epsilon", float(np.min(curve, initial=0)), 0, most=inf)  # NaN if one of them is
