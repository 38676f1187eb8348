r"""The Poisson binomial mechanism: the exact privacy cost of a sum of M binomial numbers.

Each of M parties draws Binomial(b, 1/2 + β x) for its x in [-1, 1], and only the sum is disclosed. With l = 1/2 - β and
h = 1/2 + β, a sum in which k of the n = bM trials succeed with probability h and the others with l has the generating
function

.. math:: g_k(z) = (h + l z)^{n - k} (l + h z)^k .

Its logarithmic derivative gives a recurrence for the probabilities c, upwards from j = 0,

.. math::
    h l (j + 1) \, c_{j+1} = (l^2 (n - k - j) + h^2 (k - j)) \, c_j + h l (n - j + 1) \, c_{j-1},

without negative terms as long as :math:`(l^2 + h^2) j \le l^2 (n - k) + h^2 k`; from there on, the same recurrence
downwards from j = n has no negative terms. Every probability therefore has a relative error of at most n small rounding
errors, from 1 down to the smallest of 10⁻⁴⁰⁰⁰ and less, of which the logarithm is stored.

The worst inputs are found as follows. Sums of independent trials are log-concave, so sums with more success are larger
in the likelihood-ratio order. By the lemma of Neyman and Pearson, every Rényi divergence grows with the change of the
party's value, so the worst change is from -1 to +1. For the other parties' values: a Rényi divergence is jointly
quasi-convex, and both sums are linear in the probability of each single trial, so at the maximum every trial is at l or
at h. The code tries all counts of parties at +1, for moderate b M all counts of trials, in both directions (the mirror
image exchanges them). In all tried cases, the maximum is at: all other parties at -1, the party at -1 in P and at +1 in
Q.

Privacy figures are rounded up.
"""

from collections.abc import Iterator, Sequence
from math import atanh, ceil, expm1, inf, isinf, log1p, nextafter
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.checks import one_of, positive, within

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

UNITS = ("party-record", "record", "record (paper)")
_LARGEST = 2**16  # b M; with one trial a party that takes minutes
MOST_TRIALS = 1024
"""Up to this b M, all counts of trials are tried; above it, only counts of whole parties."""
_TABLE = 2**20  # probabilities computed at a time: 8 MiB, and a few times as much for intermediate results
# Orders closer to 1 need more digits than floats have: they use the figure of this order, which is above theirs. Orders
# above the highest use the figure of order ∞, which is above theirs by less than 2 b M / α.
_LEAST_ORDER = 1.0001
_HIGHEST_ORDER = 2.0**50
_GRID = 2.0**53  # β is rounded up to its multiples, so that l and h are floats and l + h = 1
_ULP = 2.0**-53
# Rounding errors in the logarithm of a probability. For each trial: 16 for a step of the recurrence (the two subtracted
# products are at most twice the result), times two for both directions from the middle, times two because the total is
# 1, then the summation. In proportion to the logarithm: the errors of ln, of the sum, and of later operations.
_TRIAL = 80
_SHARE = 16


def poisson_binomial_rdp(levels: int, beta: float, num_parties: int, order: float, unit: str = "party-record") -> float:
    r"""Rényi ε of ONE coordinate of one record whose sum is disclosed once, the maximum over all values of all parties.

    Units of protection, each with its own figure:

    - ``party-record``: one party's value. D coordinates that change together cost D times as much. The costs of several
      uploads of a record are added.
    - ``record``: the values of all parties, :math:`b M \, D_α(\mathrm{Bern}(1/2 + β) \,\|\, \mathrm{Bern}(1/2 - β))`.
    - ``record (paper)``: Theorem 6.2 of PBM-VFL, a bound on ``record`` by
      :math:`D_{k+1}(α) = \frac{2α - 1}{2(α - 1)} ε(2α) + D_k(2α - 1)` from the figures ε = D_1 of ``party-record``.

    The cost of a whole party (its columns of all records) is the sum of ``party-record`` over all its records and
    coordinates.

    Shapes: plain numbers.
    Units: ε in nats; ``beta`` is that of values in [-1, 1], the parties' values divided by their clip.
    Guarantee: never below the true ε with every party at one of the extremes; above it by at most
        2e-14 (b M + 1) (2α - 1) / (α - 1) for orders of 1.0001 or more. For b M ≤ 1024 and for b = 1, never below the
        true ε for ANY values in [-1, 1]. For larger b M, parties between the extremes are not searched; no case is
        known in which these cost more. Rounding probabilities towards 1/2 only lowers the true ε.
    Not guaranteed: protection against parties that disclose their draws: M counts only parties that keep their draws
        secret. A sum that leaves out parties must be charged with the number of included parties.

    Args:
        levels: b ≥ 1, trials of each party, and the largest number that it sends.
        beta: 0 ≤ β ≤ 1/4.
        num_parties: M ≥ 1, parties in the sum, with b M at most 65,536 for the units that need the sum's distribution.
        order: α > 1; ``inf`` is pure differential privacy.
        unit: the difference between neighbouring data.

    Raises:
        ConfigurationError: for invalid numbers, an unknown unit, and b M above 65,536.

    Examples:
        >>> f"{poisson_binomial_rdp(levels=4, beta=0.25, num_parties=3, order=2):.5f}"
        '2.04352'
        >>> f"{poisson_binomial_rdp(levels=8, beta=0.2, num_parties=3, order=3, unit='record'):.4f}"
        '16.2273'

    References:
        Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with Secure Aggregation",
        ICML 2022, https://arxiv.org/abs/2207.09916.
        Tran, Castiglia, Patterson, Milanova, PBM-VFL, Theorems 2.3 and 6.2.
        van Erven, Harremoës, "Rényi Divergence and Kullback-Leibler Divergence", 2014,
        https://arxiv.org/abs/1206.2459, Theorems 3 (growing with the order) and 13 (joint quasi-convexity).
    """
    return poisson_binomial_curve(levels, beta, num_parties, (order,), unit)[0]


def poisson_binomial_curve(
    levels: int, beta: float, num_parties: int, orders: Sequence[float], unit: str = "party-record"
) -> tuple[float, ...]:
    """``poisson_binomial_rdp`` for several orders at once; the distributions of the sums are computed only once.

    Examples:
        >>> [f"{epsilon:.4f}" for epsilon in poisson_binomial_curve(16, 0.15, 10, (1.5, 2, 16, float("inf")))]
        ['0.4863', '0.6560', '5.5345', '9.9046']
    """
    positive("levels", levels, whole=True)
    positive("num_parties", num_parties, whole=True)
    within("beta", beta, 0, 0.25)
    for order in orders:
        within("an order of a Rényi divergence", order, above=1, most=inf)
    advice = "for all columns of a party, use the sum of 'party-record' over its records and coordinates"
    one_of("unit", unit, UNITS, advice=advice)
    levels = int(levels)
    num_parties = int(num_parties)
    beta = ceil(beta * _GRID) / _GRID
    if unit == "record":
        return tuple(_trials(levels * num_parties, beta, order) for order in orders)
    advice = "lower levels, or use unit 'record', which has a closed form"
    within("levels * num_parties", levels * num_parties, 1, _LARGEST, whole=True, advice=advice)
    step = 1 if levels * num_parties <= MOST_TRIALS else levels
    if unit == "record (paper)":
        return tuple(_group(levels, beta, num_parties, order, step) for order in orders)
    return _curve(levels, beta, num_parties, orders, step)


def poisson_binomial_profiles(levels: int, beta: float, num_parties: int, epsilons: "Floats") -> "Floats":
    r"""δ(ε) of ONE coordinate whose sum is disclosed once, by groups of the values of the other parties.

    With k of the other parties' trials at h (see the top of this file), δ(ε) is the hockey-stick divergence
    :math:`E_γ(P_k \| Q_k)` at γ = exp(ε). A best set of outcomes is {sum ≤ t}, as the sums are ordered by their
    likelihood ratio. A row is the largest δ of a group of k: 0, 1, 2 to 3, 4 to 7, ..., and the same
    from the other end.

    Shapes: ``epsilons`` (G,) in any order, also negative; δ (groups, G).
    Units: ε in nats.
    Guarantee: the largest δ of all rows is never below the true δ for any values in [-1, 1]; a row is above the largest
        δ of its group by a relative error of at most 1e-10.

    Raises:
        ConfigurationError: for invalid numbers, and b M above 1024.

    Examples:
        >>> rows = poisson_binomial_profiles(1, 0.25, 2, np.log([0.5, 1.0, 2.0, 4.0]))
        >>> [f"{delta:.6f}" for delta in rows.max(axis=0)]
        ['0.593750', '0.375000', '0.187500', '0.000000']

    References:
        Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", AISTATS 2022,
        https://arxiv.org/abs/2106.08567, Definition 7.
    """
    most = poisson_binomial_rdp(levels, beta, 1, inf, "record")  # also checks the numbers
    within("levels * num_parties", levels * num_parties, 1, MOST_TRIALS, whole=True, advice="lower levels")
    beta = ceil(beta * _GRID) / _GRID
    last = levels * (num_parties - 1)
    gamma = np.exp(epsilons)
    groups: dict[tuple[bool, int], Floats] = {}
    k = 0
    for above, below in _pairs(levels, beta, num_parties, 1):
        ratios = np.minimum.accumulate(above - below, axis=0)
        sums = np.exp(above).cumsum(axis=0), np.exp(below).cumsum(axis=0)
        for ratio, p, q in zip(ratios.T, sums[0].T, sums[1].T, strict=True):
            upto = np.searchsorted(-ratio, -epsilons)  # outcomes with a larger ratio than γ
            inside = np.maximum(upto - 1, 0)
            delta = np.where(upto > 0, p[inside] - gamma * q[inside] + 64 * _ULP * p[inside], 0.0)
            name = (2 * k <= last, min(k, last - k).bit_length())
            groups[name] = np.maximum(groups.get(name, np.maximum(0.0, 1.0 - gamma)), delta)
            k += 1
    inflated = np.minimum(np.array(list(groups.values())) * (1 + 1e-12), 1.0)
    return np.where(epsilons >= most * (1 + 8 * _ULP), 0.0, inflated)


def _trials(trials: int, beta: float, order: float) -> float:
    """D_α of ``trials`` independent trials with probability h from the same number with l, rounded up.

    For each trial: ρ + log(1 - l (1 - exp(-2 (α - 1) ρ))) / (α - 1), ρ = log(h / l); two terms of opposite sign and
    size ρ.
    """
    ratio = 2 * atanh(2 * beta)
    apart = max(order, _LEAST_ORDER) - 1
    back = 0.0 if isinf(order) else log1p((0.5 - beta) * expm1(-2 * apart * ratio)) / apart
    return nextafter(trials * (ratio + back + 32 * _ULP * ratio), inf) if beta else 0.0


def chain(order: float, parties: int) -> tuple[list[float], list[float]]:
    r"""The orders at which Theorem 6.2 of PBM-VFL takes the figures of a party, rounded up, and their factors.

    .. math:: D_1(α) = ε(α), \qquad D_{k+1}(α) = \frac{2α - 1}{2(α - 1)} ε(2α) + D_k(2α - 1) .

    With the distance a = α - 1, which doubles at every party, D_M is a sum of (1 + 1/(2a)) ε(2 (1 + a)), plus ε(1 + a)
    for the last party.

    References:
        Tran, Castiglia, Patterson, Milanova, PBM-VFL, Theorem 6.2; Mironov, "Rényi Differential Privacy", 2017,
        Corollary 4 (the step).
    """
    if parties == 1 or isinf(order):
        return [order], [float(parties)]
    apart = max(order, _LEAST_ORDER) - 1
    away = [apart * 2.0 ** min(k, 1000) for k in range(parties)]
    orders = [2 * (1 + a) * (1 + 4 * _ULP) for a in away[:-1]] + [(1 + away[-1]) * (1 + 4 * _ULP)]
    factors = [1 + 1 / (2 * a) for a in away[:-1]] + [1.0]
    return orders, factors


def _group(levels: int, beta: float, parties: int, order: float, step: int) -> float:
    """Theorem 6.2 for the figures of a party."""
    orders, factors = chain(order, parties)
    curve = _curve(levels, beta, parties, orders, step)
    return sum(f * e for f, e in zip(factors, curve, strict=True)) * (1 + (parties + 8) * _ULP)


def _curve(levels: int, beta: float, parties: int, orders: Sequence[float], step: int) -> tuple[float, ...]:
    """The largest divergence of every order, if 0, step, 2 step, ... trials of the other parties are at h."""
    most = _trials(levels, beta, inf)  # order ∞: the ratio of the probabilities of j = 0, for all values of the others
    figures = [most if order >= _HIGHEST_ORDER else 0.0 for order in orders]
    low = [i for i, order in enumerate(orders) if order < _HIGHEST_ORDER]
    if low and beta:
        for above, below in _pairs(levels, beta, parties, step):
            for i in low:
                figures[i] = max(figures[i], _divergence(above, below, max(orders[i], _LEAST_ORDER)))
    return tuple(min(most, figure) for figure in figures)


def _divergence(above: "Floats", below: "Floats", order: float) -> float:
    """The largest D_α(P || Q) of a column, from logarithms above those of P and below those of Q, (bM + 1, columns)."""
    terms = order * above - (order - 1) * below
    peak = terms.max(axis=0)
    largest = float((np.log(np.exp(terms - peak).sum(axis=0)) + peak).max())
    return max(0.0, largest / (order - 1) * (1 + 8 * _ULP))


def _pairs(levels: int, beta: float, parties: int, step: int) -> Iterator[tuple["Floats", "Floats"]]:
    """Bounds on the logarithms of P and of Q, (bM + 1, columns): a column is a count of the others' trials at h.

    In P the changing party is at -1. In Q it is at +1, so that its b trials are at h too. The mirror image of a column
    (all values with the other sign) is the other direction for the mirrored count.
    """
    n = levels * parties
    others = (n - levels) // step + 1
    moved = levels // step
    at_once = max(16, _TABLE // (n + 1))
    slack = (_TRIAL * n + 100) * _ULP
    for first in range(0, others, at_once):
        last = min(others, first + at_once)
        logs = _logarithms(n, beta, step * np.arange(first, last + moved, dtype=np.float64))
        p, q = logs[:, : last - first], logs[:, moved:]
        yield p * (1 - _SHARE * _ULP) + slack, q * (1 + _SHARE * _ULP) - slack


def _logarithms(n: int, beta: float, counts: "Floats") -> "Floats":
    """Logarithms of the probabilities of 0 to n successes, (n + 1, columns), with ``counts`` of the n trials at h."""
    low, high = (0.5 - beta) ** 2, (0.5 + beta) ** 2
    below_middle = np.arange(n)[:, None] <= (low * (n - counts) + high * counts) / (low + high)
    up, down = _ratios(n, beta, counts), _ratios(n, beta, n - counts)[::-1]  # the downward ratios are the mirror image
    logs = np.log(np.where(below_middle, up, 1 / down))
    coarse = np.rint(logs * 2.0**32) * 2.0**-32  # their sums are exact: below 2^20, in steps of 2^-32
    parts = np.zeros((2, n + 1, counts.size))
    np.cumsum(coarse, axis=0, out=parts[0, 1:])
    np.cumsum(logs - coarse, axis=0, out=parts[1, 1:])
    peak = parts[0].argmax(axis=0)
    exact, rest = (part - part[peak, np.arange(counts.size)] for part in parts)
    total: Floats = exact + rest
    total -= np.log(np.exp(total).sum(axis=0))
    return total


def _ratios(n: int, beta: float, counts: "Floats") -> "Floats":
    """Ratios c_(j+1) / c_j for j = 0 to n - 1, (n, columns); correct as long as the first summand is not negative."""
    low, high, cross = (0.5 - beta) ** 2, (0.5 + beta) ** 2, (0.5 - beta) * (0.5 + beta)
    j = np.arange(n, dtype=np.float64)[:, None]
    ratios = np.maximum(low * (n - counts - j) + high * (counts - j), 0.0) / (cross * (j + 1))
    before = (n - j + 1) / (j + 1)
    for i in range(1, n):
        ratios[i] += before[i] / ratios[i - 1]
    return ratios
