r"""Rényi differential privacy: what several releases cost together, and what that is in ε and δ.

A release costs a curve, an ε(α) for every order α of a grid. Curves add up, also where a release is chosen in the light
of the earlier ones. Afterwards any order of the grid gives an (ε, δ), and the least ε is the one to publish: a finer
grid finds a smaller one, no grid a wrong one.

Privacy figures are rounded up, and what is unknown is infinite.
"""

from collections.abc import Sequence
from math import fsum, inf, isnan, log, nextafter
from typing import NamedTuple

from lightning_vfl.errors import ConfigurationError

_ULP = 2.0**-53

_LEAST_ORDER = 1.01  # dp-accounting takes its formula for unstable up to here

ORDERS: tuple[float, ...] = (*(1 + 2.0 ** (i / 6) for i in range(-39, 73)), inf)
"""112 orders from 1.011 to 4097 whose distance from 1 grows by 12 % a step, and ∞: for totals ε(2) of 1e-6 to 1e5. At
δ = 1e-5 the ε that the grid gives is above that of the best order by less than half a percent."""


class Converted(NamedTuple):
    """The ε of an (ε, δ) guarantee, and the order that gave it."""

    epsilon: float
    order: float


def compose_rdp(releases: Sequence[tuple[Sequence[float], float]]) -> tuple[float, ...]:
    """The curve of several releases together: the sum of their curves, each so many times.

    Shapes: every curve over the same orders.
    Units: ε in nats.
    Guarantee: never below the true sum; above it by at most 1e-15 of it.
    Not guaranteed: the cost of a number of releases that is itself chosen in the light of them; use the largest number
        that can come about.

    Args:
        releases: pairs of a curve and a count, 0 or more. What happens 0 times costs nothing, even if it is unknown.

    Raises:
        ConfigurationError: for an ε that is negative or NaN, a broken count, curves of different length, no release.

    Examples:
        >>> [f"{epsilon:.4f}" for epsilon in compose_rdp([((0.5, 1.0), 3), ((0.25, float("inf")), 1)])]
        ['1.7500', 'inf']
    """
    if len({len(curve) for curve, _ in releases}) != 1:
        raise ConfigurationError("curves of different length, or none, do not add up; use one grid of orders for all")
    for curve, count in releases:
        for epsilon in curve:
            _refuse(epsilon=epsilon)
        if not 0 <= count < inf or count != int(count):
            raise ConfigurationError(f"count {count} is no number of releases; use 0, 1, 2, ...")
    some = [(curve, count) for curve, count in releases if count]
    orders = range(len(releases[0][0]))
    return tuple(up(fsum(up(curve[i] * count) for curve, count in some)) for i in orders)


def rdp_epsilon(orders: Sequence[float], curve: Sequence[float], delta: float) -> Converted:
    r"""The smallest ε that a curve gives for a δ, and its order, as dp-accounting converts it.

    .. math:: ε = \min_α \; ε(α) + \log\frac{α - 1}{α} - \frac{\log δ + \log α}{α - 1},

    and 0 where :math:`δ^2 > 1 - e^{-ε(α)}`: the distance in total variation is then below δ. Order ∞ is pure
    differential privacy, which needs no conversion.

    Shapes: as many ε as orders.
    Units: ε in nats.
    Guarantee: never below the ε of the best order of the grid; above it by at most 1e-14 of the terms above.
        Infinite where the whole curve is.
    Not guaranteed: the least ε that the release itself gives; a Rényi curve does not know it.

    Args:
        orders: each above 1.01, ``inf`` among them if the curve says what pure differential privacy there is.
        curve: ε(α) for every order.
        delta: 0 ≤ δ ≤ 1; with 0 only order ∞ counts.

    Raises:
        ConfigurationError: for numbers that have no meaning and lists that do not fit.

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
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon  # a second to import, for those who account

    _fits(orders, curve)
    _refuse(delta=delta)
    if delta > 1:
        raise ConfigurationError(f"delta {delta} is no probability; use at most 1")
    pure = min((e for a, e in zip(orders, curve, strict=True) if a == inf), default=inf)
    finite = [(a, e) for a, e in zip(orders, curve, strict=True) if a < inf] + [(2.0, pure)]  # no order is above ∞
    if delta in (0, 1):
        return Converted(0.0 if delta == 1 else pure, inf)
    epsilon, order = compute_epsilon(*zip(*finite, strict=True), delta)
    if 0 < epsilon < inf:  # the sum of terms that are off by a few roundings each
        apart, renyi = order - 1, min(e for a, e in finite if a == order)  # order 2 stands for order ∞ too
        terms = (renyi, log(order / apart), log(delta) / apart, log(order) / apart)
        epsilon = fsum((epsilon, 8 * _ULP * fsum(map(abs, terms)), 5e-324))
    return Converted(float(epsilon), float(order)) if epsilon <= pure else Converted(pure, inf)


def up(number: float) -> float:
    """The next float, as the result of one rounded operation; 0 is exact here, and so is ∞."""
    return nextafter(number, inf) if number else 0.0


def _fits(orders: Sequence[float], curve: Sequence[float]) -> None:
    """Check that every order has its ε."""
    if len(orders) != len(curve) or not orders:
        raise ConfigurationError(
            f"{len(curve)} figures for {len(orders)} orders are no curve; use one for each, and at least one"
        )
    for order, epsilon in zip(orders, curve, strict=True):
        if not order > _LEAST_ORDER:
            raise ConfigurationError(f"order {order} is none that can be converted; use orders above {_LEAST_ORDER}")
        _refuse(epsilon=epsilon)


def _refuse(**numbers: float) -> None:
    """Nothing here may be negative or NaN."""
    for name, number in numbers.items():
        if isnan(number) or number < 0:
            raise ConfigurationError(f"{name} {number} has no meaning; use 0 or more")
