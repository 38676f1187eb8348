"""Against enumeration in exact fractions, convolution in mpmath, and the law of large numbers."""

from fractions import Fraction
from functools import cache
from itertools import product
from math import atanh, comb, inf, nan

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import poisson_binomial_curve, poisson_binomial_rdp
from tests.further import further

betas = st.one_of(st.sampled_from([0.0, 0.05, 0.15, 0.25]), st.floats(1e-6, 0.25))
orders = st.floats(-3, 4).map(lambda power: 1 + 10.0**power)
SMALL = [(1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (3, 2), (2, 3), (4, 3), (2, 5), (5, 2)]


def room(levels, parties, order):
    """What the figure may be above the true one."""
    return 2e-14 * (levels * parties + 1) * (2 * order - 1) / (order - 1)


def convolved(one, other):
    sums = [0 * one[0]] * (len(one) + len(other) - 1)
    for (i, x), (j, y) in product(enumerate(one), enumerate(other)):
        sums[i + j] += x * y
    return sums


def binomial(trials, p):
    return [comb(trials, j) * p**j * (1 - p) ** (trials - j) for j in range(trials + 1)]


def summed(levels, values, beta):
    """The distribution of the sum for parties with these values in [-1, 1], of whatever numbers beta is."""
    total = [beta * 0 + 1]
    for value in values:
        total = convolved(total, binomial(levels, beta * value + (beta * 0 + 1) / 2))
    return total


def renyi(p, q, order):
    with mpmath.workdps(60):
        order = mpmath.mpf(order)
        terms = (mpmath.mpf(x) ** order * mpmath.mpf(y) ** (1 - order) for x, y in zip(p, q, strict=True))
        return mpmath.log(mpmath.fsum(terms)) / (order - 1)


def quick(p, q, order):
    """The same in floats, up to 1e-9 or so."""
    return np.log(np.exp(order * np.log(p) + (1 - order) * np.log(q)).sum()) / (order - 1)


@cache
def enumerated(levels, beta, parties, order):
    """The largest divergence, an integer order, over all extremes of all other parties, both ways, in fractions."""
    beta = Fraction(beta)
    largest = Fraction(0)
    for others in product((-1, 1), repeat=parties - 1):
        for value in (-1, 1):
            p, q = summed(levels, (value, *others), beta), summed(levels, (-value, *others), beta)
            largest = max(largest, sum(x**order * y ** (1 - order) for x, y in zip(p, q, strict=True)))
    with mpmath.workdps(60):
        return mpmath.log(mpmath.mpf(largest.numerator) / largest.denominator) / (order - 1)


@pytest.mark.parametrize(("levels", "parties"), SMALL)
@pytest.mark.parametrize("beta", [0.01, 0.1, 0.2, 0.25])
@pytest.mark.parametrize("order", [2, 5])
def test_every_combination_of_extremes_in_exact_fractions(levels, parties, beta, order):
    true = enumerated(levels, beta, parties, order)
    figure = poisson_binomial_rdp(levels, beta, parties, order)
    assert true <= figure <= true + room(levels, parties, order)


@pytest.mark.parametrize(
    ("levels", "beta", "parties", "order"),
    [
        (16, 0.25, 5, 1.01),
        (16, 0.15, 5, 2.0),
        (8, 0.05, 10, 1.7),
        (64, 0.25, 2, 33.3),
        (4, 0.2, 20, 1000.0),
        (3, 0.25, 30, 1e8),
        further(16, 0.25, 128, 2.0),
        (16, 0.25, 32, 2.0),
        pytest.param(16, 0.25, 128, 500.0, marks=pytest.mark.slow),
        pytest.param(300, 0.1, 4, 16.0, marks=pytest.mark.slow),
    ],
)
def test_expected_maximiser_with_sixty_digits(levels, beta, parties, order):
    """All others at -1, P with the party at -1, Q with it at +1: never below it, and not above it either."""
    with mpmath.workdps(60):
        low, high = mpmath.mpf("0.5") - mpmath.mpf(beta), mpmath.mpf("0.5") + mpmath.mpf(beta)
        n = levels * parties
        p = [mpmath.binomial(n, j) * low**j * high ** (n - j) for j in range(n + 1)]
        rest = [mpmath.binomial(n - levels, j) * low**j * high ** (n - levels - j) for j in range(n - levels + 1)]
        true = renyi(p, convolved(rest, binomial(levels, high)), order)
    figure = poisson_binomial_rdp(levels, beta, parties, order)
    assert true <= figure <= true + room(levels, parties, order)


def test_figures_of_the_issue():
    assert poisson_binomial_rdp(4, 0.25, 3, 2) == pytest.approx(2.04352, abs=5e-6)
    for beta, ratio in ((0.05, 1.0104), (0.25, 1.3477)):
        assert poisson_binomial_rdp(16, beta, 128, 2) / (8 * 2 * 16 * beta**2 / 128) == pytest.approx(ratio, abs=5e-5)
    assert poisson_binomial_rdp(8, 0.2, 3, 3, unit="record") == pytest.approx(16.2273, abs=5e-5)


@pytest.mark.parametrize(
    ("beta", "order"),
    [
        (0.25, 8.0),
        *(further(*more) for more in ((0.05, 1.5), (0.05, 2.0), (0.05, 8.0), (0.25, 1.5), (0.25, 2.0))),
    ],
)
def test_many_parties_are_a_normal_distribution(order, beta):
    """ε M → 8 α b β² / (1 - 4β²): half the distance at twice the parties."""
    limit = 8 * order * 4 * beta**2 / (1 - 4 * beta**2)
    away = [poisson_binomial_rdp(4, beta, parties, order) * parties / limit - 1 for parties in (128, 256, 512)]
    assert 0 < away[2] < away[1] < away[0] < 0.06
    assert away[1] / away[2] == pytest.approx(2, rel=0.05)


@given(st.integers(1, 6), st.floats(0.01, 0.25), st.integers(1, 6), st.floats(1.05, 40), st.data())
def test_no_values_of_any_parties_cost_more(levels, beta, parties, order, data):
    """Values anywhere in [-1, 1]: what convexity and the likelihood-ratio order prove."""
    inside = st.floats(-1, 1)
    others = data.draw(st.lists(inside, min_size=parties - 1, max_size=parties - 1))
    p, q = (np.array(summed(levels, (data.draw(inside), *others), beta)) for _ in range(2))
    found = quick(p, q, order)
    assert found <= poisson_binomial_rdp(levels, beta, parties, order) + 1e-9


@pytest.mark.parametrize(("levels", "parties"), [(1, 60), (2, 25), (4, 12), (12, 4), (20, 3)])
@pytest.mark.parametrize("order", [1.1, 2.0, 30.0])
@pytest.mark.parametrize("beta", [0.02, 0.25])
def test_single_trials_at_either_extreme_cost_most_where_all_are_at_one(levels, parties, order, beta):
    """The largest of b M ≤ 1024 is over counts of trials; where it is justifies counts of parties beyond."""
    free = levels * (parties - 1)
    found = []
    for count in range(free + 1):
        rest = np.convolve(binomial(free - count, 0.5 - beta), binomial(count, 0.5 + beta))
        p, q = (np.convolve(rest, binomial(levels, 0.5 + side * beta)) for side in (-1, 1))
        found.append(quick(p, q, order))
    assert np.argmax(found) == 0
    assert poisson_binomial_rdp(levels, beta, parties, order) == pytest.approx(
        found[0], rel=1e-12, abs=room(levels, parties, order)
    )


@given(st.integers(1, 20), betas, st.integers(1, 30), orders)
def test_more_noise_and_more_parties_never_cost_more(levels, beta, parties, order):
    figure = poisson_binomial_rdp(levels, beta, parties, order)
    slack = room(levels + 1, parties + 1, max(order, 1.0001))
    assert 0 <= figure <= levels * 2 * atanh(2 * beta) * (1 + 1e-12)
    assert figure <= poisson_binomial_rdp(levels + 1, beta, parties, order) + slack
    assert figure <= poisson_binomial_rdp(levels, min(0.25, beta * 1.1), parties, order) + slack
    assert figure <= poisson_binomial_rdp(levels, beta, parties, 1 + (order - 1) * 1.5) + slack
    assert poisson_binomial_rdp(levels, beta, parties + 1, order) <= figure + slack


@given(st.integers(1, 8), st.floats(1e-3, 0.25), st.integers(1, 8), orders)
def test_one_record_costs_what_its_trials_cost(levels, beta, parties, order):
    """And no less than one party's value in it."""
    with mpmath.workdps(60):
        low, high = mpmath.mpf("0.5") - mpmath.mpf(beta), mpmath.mpf("0.5") + mpmath.mpf(beta)
        true = levels * parties * renyi((high, low), (low, high), order)
    figure = poisson_binomial_rdp(levels, beta, parties, order, unit="record")
    assert true <= figure <= true * (1 + 1e-12) + 1e-14 * levels * parties
    alone = poisson_binomial_rdp(levels, beta, parties, order)
    assert alone <= figure + room(levels, parties, max(order, 1.0001))
    if parties == 1:
        assert figure == pytest.approx(alone, abs=room(levels, parties, max(order, 1.0001)))


@pytest.mark.parametrize(
    ("levels", "beta", "parties", "order"), [(4, 0.25, 2, 2.0), (8, 0.2, 3, 3.0), (16, 0.05, 6, 1.5)]
)
def test_theorem_of_the_paper_by_its_recursion(levels, beta, parties, order):
    def recursion(k, a):
        if k == 1:
            return poisson_binomial_rdp(levels, beta, parties, a)
        return (2 * a - 1) / (2 * (a - 1)) * poisson_binomial_rdp(levels, beta, parties, 2 * a) + recursion(
            k - 1, 2 * a - 1
        )

    figure = poisson_binomial_rdp(levels, beta, parties, order, unit="record (paper)")
    assert figure == pytest.approx(recursion(parties, order), rel=1e-9)
    assert figure >= recursion(parties, order)
    assert figure >= poisson_binomial_rdp(levels, beta, parties, order, unit="record")


@pytest.mark.parametrize(("parties", "order"), [(2, 2.0), (4, 2.0), (5, 3.0)])
def test_theorem_of_the_paper_with_its_closed_form(parties, order):
    """S_M(α) for ε(α) = c α, which small β comes close to; S_4(2) = 33.75."""
    beta, power = 1e-3, 2.0**parties
    closed = (2 * power - power / 2 - 2) * order - (1.5 * power - 3 * parties)
    closed += (power / 2 - 1) / (power / 4 * (order - 1))
    assert (parties, order) != (4, 2.0) or closed == 33.75
    rate = poisson_binomial_rdp(8, beta, parties, 2.0) / 2
    figure = poisson_binomial_rdp(8, beta, parties, order, unit="record (paper)")
    assert figure / rate == pytest.approx(closed, rel=1e-4)


def test_ends():
    for unit in ("party-record", "record", "record (paper)"):
        assert poisson_binomial_rdp(4, 0.0, 3, 2, unit=unit) == 0.0
        assert poisson_binomial_rdp(4, 0.0, 3, inf, unit=unit) == 0.0
        assert poisson_binomial_rdp(4, 5e-324, 3, 2, unit=unit) > 0.0
    pure = 2 * atanh(0.5)  # the log of 3
    assert poisson_binomial_rdp(7, 0.25, 3, inf) == pytest.approx(7 * pure, rel=1e-13)
    assert poisson_binomial_rdp(7, 0.25, 3, 1e300) >= 7 * pure
    assert poisson_binomial_rdp(7, 0.25, 3, inf, unit="record") == pytest.approx(21 * pure, rel=1e-13)
    assert poisson_binomial_rdp(7, 0.25, 3, inf, unit="record (paper)") == pytest.approx(21 * pure, rel=1e-13)
    assert poisson_binomial_rdp(7, 0.25, 200, 1 + 1e-15, unit="record (paper)") < inf
    just_above = poisson_binomial_rdp(16, 0.2, 4, 1 + 1e-15)
    assert just_above == poisson_binomial_rdp(16, 0.2, 4, 1.0001)


def test_large_sums():
    """b M = 8192: the tails are of 10⁻⁴⁹⁰⁰; with α = 2^40 nothing but the last of them counts."""
    assert poisson_binomial_rdp(64, 0.25, 128, 2.0**40) == pytest.approx(64 * 2 * atanh(0.5), rel=1e-8)
    assert poisson_binomial_rdp(10**5, 0.25, 10**3, 2, unit="record") < inf


def test_curve_is_the_single_figures():
    grid = (1.5, 2.0, 64.0, inf)
    for unit in ("party-record", "record", "record (paper)"):
        curve = poisson_binomial_curve(8, 0.2, 5, grid, unit)
        assert curve == tuple(poisson_binomial_rdp(8, 0.2, 5, order, unit) for order in grid)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 0.2, 3, 2), "levels must be .*; got 0"),
        ((1.5, 0.2, 3, 2), "levels must be .*; got 1.5"),
        ((4, 0.2, 0, 2), "num_parties must be .*; got 0"),
        ((4, 0.2, inf, 2), "num_parties must be .*; got inf"),
        ((4, 0.2, nan, 2), "num_parties must be .*; got nan"),
        ((4, 0.26, 3, 2), "beta must be .*; got 0.26"),
        ((4, -0.1, 3, 2), "beta must be .*; got -0.1"),
        ((4, nan, 3, 2), "beta must be .*; got nan"),
        ((4, 0.2, 3, 1), "an order of a Rényi divergence must be a number above 1; got 1"),
        ((4, 0.2, 3, nan), "an order of a Rényi divergence must be a number above 1; got nan"),
        ((4, 0.2, 3, 2, "party"), "sum of 'party-record'"),
        ((4, 0.2, 3, 2, "sample"), "unit must be .*; got 'sample'"),
        ((2**10, 0.2, 2**7, 2), "131072"),
    ],
)
def test_what_has_no_meaning_is_refused(arguments, said):
    with pytest.raises(ConfigurationError, match=said):
        poisson_binomial_rdp(*arguments)


@pytest.mark.parametrize(("levels", "parties", "colluders"), [(1, 3, 1), (2, 3, 1), (2, 3, 2), (1, 4, 2), (3, 2, 1)])
@pytest.mark.parametrize("order", [2, 3])
def test_parties_that_tell_their_draws_leave_the_figure_of_the_others(levels, parties, colluders, order):
    """The view in fractions: the sum of all draws, and the colluders' draws one by one, whatever their values are."""
    beta, honest = Fraction(1, 5), parties - colluders

    def view(values, told):
        """The probability of every sum together with every draw of the colluders."""
        total = summed(levels, values, beta)
        seen = {}
        for draws in product(range(levels + 1), repeat=colluders):
            own = [
                binomial(levels, beta * value + Fraction(1, 2))[draw] for value, draw in zip(told, draws, strict=True)
            ]
            for honest_sum, chance in enumerate(total):
                seen[sum(draws) + honest_sum, draws] = chance * np.prod(own)
        return seen

    largest = 0
    for others in product((-1, 1), repeat=honest - 1):
        for told in product((-1, 0, 1), repeat=colluders):
            for value in (-1, 1):
                p, q = view((value, *others), told), view((-value, *others), told)
                largest = max(largest, sum(p[seen] ** order * q[seen] ** (1 - order) for seen in p))
    with mpmath.workdps(60):
        true = mpmath.log(mpmath.mpf(largest.numerator) / largest.denominator) / (order - 1)
    figure = poisson_binomial_rdp(levels, 0.2, honest, order)
    assert true <= figure <= true + room(levels, parties, order)
    assert figure > poisson_binomial_rdp(levels, 0.2, parties, order)
