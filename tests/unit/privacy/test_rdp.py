"""Against mpmath, the exact figures of the Gaussian mechanism and of randomised response, and the definition."""

from fractions import Fraction
from math import exp, inf, log, nan, sqrt

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binom

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import (
    compose_rdp,
    gaussian_epsilon,
    poisson_binomial_curve,
    rdp_epsilon,
)
from lightning_vfl.privacy.rdp import ORDERS

deltas = st.floats(-30, -0.3).map(lambda power: 10.0**power)
signals = st.floats(-3, 2).map(lambda power: 10.0**power)
figures = st.one_of(st.just(0.0), st.floats(1e-9, 1e6), st.just(inf))


def gaussian(mu):
    """The curve of the Gaussian mechanism, α μ² / 2."""
    return [order * mu * mu / 2 for order in ORDERS]


def converted(order, renyi, delta):
    """Canonne, Kamath, Steinke, Proposition 12, solved for ε, with 60 digits; 0 by Bretagnolle and Huber."""
    with mpmath.workdps(60):
        order, renyi, delta = mpmath.mpf(order), mpmath.mpf(renyi), mpmath.mpf(delta)
        if delta**2 >= 1 - mpmath.exp(-renyi):
            return mpmath.mpf(0)
        given_delta = renyi + mpmath.log((order - 1) / order) - (mpmath.log(delta) + mpmath.log(order)) / (order - 1)
        return max(mpmath.mpf(0), given_delta)


@given(st.floats(-6, 4), st.floats(1e-9, 1e6), deltas)
def test_epsilon_of_one_order_with_sixty_digits(power, renyi, delta):
    order = 1 + 10.0**power
    true = converted(order, renyi, delta)
    found = rdp_epsilon([order], [renyi], delta)
    assert true <= found.epsilon <= true + 1e-14 * (renyi + (log(order) - log(delta) + 1) / (order - 1) + 1)
    assert found.order == order


@given(st.floats(-2, 3).map(lambda power: 10.0**power), st.floats(-9, 18).map(lambda power: 10.0**power), deltas)
@example(1.0, 1e17, 1e-5)
def test_epsilon_of_order_two_beside_pure_privacy_with_sixty_digits(renyi, more, delta):
    """However large ε is at order ∞: the rounding is that of the terms of order 2."""
    true = min(converted(2.0, renyi, delta), mpmath.mpf(renyi + more))
    found = rdp_epsilon([2.0, inf], [renyi, renyi + more], delta)
    assert true <= found.epsilon <= true + 1e-14 * (renyi + log(2.0) - log(delta) + 2)


@given(signals, deltas)
def test_epsilon_of_gaussian_noise_is_above_the_exact_one(mu, delta):
    """And below the classical conversion ε(α) + log(1/δ) / (α - 1) of Mironov, Proposition 3, on the same grid."""
    found = rdp_epsilon(ORDERS, gaussian(mu), delta).epsilon
    assert found >= gaussian_epsilon(1.0, mu, delta) * (1 - 1e-10)
    finite = zip(ORDERS[:-1], gaussian(mu), strict=False)
    assert found <= min(renyi - log(delta) / (order - 1) for order, renyi in finite)


@pytest.mark.parametrize("mu", [0.003, 0.05, 1.0, 10.0, 300.0])
def test_grid_is_fine_enough(mu):
    """A grid ten times as fine and much wider finds no more than half a percent."""
    fine = [1 + 2 ** (i / 60) for i in range(-398, 1400)]
    best = rdp_epsilon(fine, [order * mu * mu / 2 for order in fine], 1e-5)
    found = rdp_epsilon(ORDERS, gaussian(mu), 1e-5)
    assert best.epsilon <= found.epsilon * (1 + 1e-12) <= best.epsilon * 1.005
    assert found.epsilon < gaussian_epsilon(1.0, mu, 1e-5) * 1.25


@given(st.floats(0.01, 0.49), st.floats(1e-6, 0.9))
def test_randomised_response(p, delta):
    """One bit that is told with probability 1 - p: δ = max(0, 1 - p - e^ε p) exactly, ε = log((1 - p) / p) at δ = 0."""
    pure = log((1 - p) / p)
    curve = [
        log((1 - p) ** a * p ** (1 - a) + p**a * (1 - p) ** (1 - a)) / (a - 1) if a < 100 else pure for a in ORDERS
    ]
    found = rdp_epsilon(ORDERS, curve, delta).epsilon
    exact = log((1 - p - delta) / p) if 1 - p - delta > p else 0.0
    assert exact * (1 - 1e-12) - 1e-12 <= found <= pure * (1 + 1e-12)
    assert rdp_epsilon(ORDERS, curve, 0.0).epsilon == curve[-1]


def test_exact_sums_of_the_poisson_binomial_mechanism():
    """δ(ε) = Σ max(0, P - e^ε Q) of the worst pair, b = 16 and three parties: ε is that of this δ."""
    curve = poisson_binomial_curve(16, 0.25, 3, ORDERS)
    p = binom.pmf(np.arange(49), 48, 0.25)
    q = np.convolve(binom.pmf(np.arange(33), 32, 0.25), binom.pmf(np.arange(17), 16, 0.75))
    for epsilon in (1.0, 4.0, 10.0):
        true = np.clip(p - exp(epsilon) * q, 0, None).sum()
        assert epsilon <= rdp_epsilon(ORDERS, curve, true).epsilon <= 1.25 * epsilon + 3


@given(st.lists(st.tuples(st.tuples(figures, figures), st.integers(0, 10**6)), min_size=1, max_size=6))
def test_curves_add_up(releases):
    """In exact integers of a fine unit: floats are dyadic fractions, which mpmath adds without rounding."""
    together = compose_rdp(releases)
    for i in range(2):
        some = [(curve[i], count) for curve, count in releases if count]
        if inf in [epsilon for epsilon, _ in some]:
            assert together[i] == inf
            continue
        with mpmath.workdps(60):
            true = mpmath.fsum(mpmath.mpf(epsilon) * count for epsilon, count in some)
        assert true <= together[i] <= true * (1 + mpmath.mpf(1e-15))


def test_every_product_of_a_sum_is_rounded_up_too():
    """Three products that are all rounded down: the float above their sum is below the true one."""
    releases = [((1 / 3,), 797), ((0.4856786437138306,), 340), ((0.23089399746102135,), 135)]
    assert compose_rdp(releases)[0] >= sum(Fraction(curve[0]) * count for curve, count in releases)


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon", "order"),
    [
        (0.01, 1e-6, 0.03711929919588763, 407.3746693038589),
        (0.3, 1e-3, 0.8506990070594642, 11.079368399158986),
        (1.0, 1e-6, 5.223340116846618, 6.039684199579493),
        (30.0, 1e-6, 604.8853778860786, 1.176776695296637),
    ],
)
def test_epsilon_is_that_of_another_library(mu, delta, epsilon, order):
    """dp-accounting 0.6.0 over all finite orders from 1.004 on: a release that converts otherwise shows here."""
    found = rdp_epsilon(ORDERS, gaussian(mu), delta)
    assert epsilon * (1 - 1e-15) <= found.epsilon <= epsilon * (1 + 1e-14)
    assert found.order == order


@given(signals, deltas, deltas, st.integers(1, 1000))
def test_more_releases_cost_more_and_a_larger_delta_less(mu, one, other, count):
    small, large = sorted((one, other))
    several = compose_rdp([(gaussian(mu), count)])
    assert rdp_epsilon(ORDERS, several, large).epsilon <= rdp_epsilon(ORDERS, several, small).epsilon
    assert rdp_epsilon(ORDERS, several, one).epsilon >= rdp_epsilon(ORDERS, gaussian(mu), one).epsilon
    joint = rdp_epsilon(ORDERS, gaussian(mu * sqrt(count)), one).epsilon
    assert rdp_epsilon(ORDERS, several, one).epsilon == pytest.approx(joint, rel=1e-9)


def test_unknown_is_infinite():
    assert rdp_epsilon([2.0, 3.0], [inf, inf], 1e-5).epsilon == inf
    assert rdp_epsilon([2.0, 3.0], [inf, 1.0], 1e-5).order == 3.0
    assert rdp_epsilon([2.0, 3.0], [1.0, 1.0], 0.0).epsilon == inf
    assert rdp_epsilon([2.0, inf], [1.0, 1.5], 0.0) == (1.5, inf)
    assert compose_rdp([((inf, 1.0), 0), ((0.5, inf), 1)]) == (pytest.approx(0.5), inf)
    assert compose_rdp([((inf, 1.0), 0)]) == (0.0, 0.0)


def test_nothing_costs_nothing():
    nothing = [0.0] * len(ORDERS)
    assert rdp_epsilon(ORDERS, nothing, 0.0).epsilon == 0.0
    assert rdp_epsilon(ORDERS, gaussian(5.0), 1.0).epsilon == 0.0
    assert rdp_epsilon(ORDERS, gaussian(1e-9), 1e-5).epsilon == 0.0  # in total variation they are 4e-10 apart
    assert rdp_epsilon([2.0], [1e-310], 5e-324).epsilon > 0.0


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (rdp_epsilon, ([], [], 1e-5), "at least one"),
        (rdp_epsilon, ([2.0], [1.0, 2.0], 1e-5), "got 2 for 1 orders"),
        (rdp_epsilon, ([1.0], [1.0], 1e-5), "an order of the conversion must be a number above 1; got 1.0"),
        (rdp_epsilon, ([nan], [1.0], 1e-5), "an order of the conversion must be a number above 1; got nan"),
        (rdp_epsilon, ([2.0], [nan], 1e-5), "epsilon must be .*; got nan"),
        (rdp_epsilon, ([2.0], [-1.0], 1e-5), "epsilon must be .*; got -1.0"),
        (rdp_epsilon, ([2.0], [1.0], 1.5), "delta must be a number from 0 to 1"),
        (rdp_epsilon, ([2.0], [1.0], nan), "delta must be .*; got nan"),
        (compose_rdp, ([],), "one grid"),
        (compose_rdp, ([((1.0,), 1), ((1.0, 2.0), 1)],), "one grid"),
        (compose_rdp, ([((1.0,), -1)],), "count of releases must be .*; got -1"),
        (compose_rdp, ([((1.0,), 1.5)],), "count of releases must be .*; got 1.5"),
        (compose_rdp, ([((1.0,), inf)],), "count of releases must be .*; got inf"),
        (compose_rdp, ([((nan,), 1)],), "epsilon must be .*; got nan"),
    ],
)
def test_what_has_no_meaning_is_refused(function, arguments, said):
    with pytest.raises(ConfigurationError, match=said):
        function(*arguments)
