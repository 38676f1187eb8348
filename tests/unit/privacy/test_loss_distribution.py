"""Against games with every choice of every party, in exact fractions, and products of the worst pair."""

from fractions import Fraction
from itertools import product
from math import comb, exp, fsum, inf, log

import numpy as np
import pytest
import torch
from scipy.stats import binom

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import (
    Account,
    GaussianEvent,
    PoissonBinomialEvent,
    PrivacyAccountant,
    composed_epsilon,
    loss_epsilon,
    poisson_binomial_profiles,
    worst_figure,
)
from tests.further import further

QUARTER = Fraction(1, 4)


def of_sum(levels, values, beta):
    """The exact distribution of the sum of all parties' draws, each Binomial(b, 1/2 + β x)."""
    total = [Fraction(1)]
    for x in values:
        p = Fraction(1, 2) + beta * x
        for _ in range(levels):
            total = [a * (1 - p) + b * p for a, b in zip([*total, 0], [0, *total], strict=True)]
    return total


def trials(levels, k, beta, parties, own):
    """The sum with k of the other parties' trials at +1 and the others at -1."""
    each = of_sum(1, [1] * k + [-1] * (levels * (parties - 1) - k), beta)
    mine = of_sum(levels, [own], beta)
    total = [Fraction(0)] * (len(each) + len(mine) - 1)
    for (i, p), (j, q) in product(enumerate(each), enumerate(mine)):
        total[i + j] += p * q
    return total


def pairs(levels, beta, parties, steps):
    """Every pair of neighbouring sums with values on a grid: the changing party's two values, and the others'."""
    grid = [Fraction(2 * i, steps) - 1 for i in range(steps + 1)]
    for own, other, *rest in product(grid, repeat=parties + 1):
        yield of_sum(levels, (own, *rest), beta), of_sum(levels, (other, *rest), beta)


def game(every, numbers, gamma):
    """The largest E_γ of numbers in turn if all values may depend on all numbers before: by trying everything."""
    if numbers == 0:
        return max(Fraction(0), 1 - gamma)
    return max(
        sum(p * game(every, numbers - 1, gamma * q / p) for p, q in zip(above, below, strict=True))
        for above, below in every
    )


def product_delta(above, below, numbers, epsilon):
    """δ(ε) of the product of one pair, by the number of times that each outcome occurs."""
    gamma, joint = exp(epsilon), {(0,) * len(above): (1.0, 1.0)}
    for _ in range(numbers):
        longer = {}
        for seen, (p, q) in joint.items():
            for j in range(len(above)):
                name = tuple(n + (i == j) for i, n in enumerate(seen))
                a, b = longer.get(name, (0.0, 0.0))
                longer[name] = (a + p * float(above[j]), b + q * float(below[j]))
        joint = longer
    return sum(max(0.0, p - gamma * q) for p, q in joint.values())


@pytest.mark.parametrize(("levels", "parties", "steps"), [(1, 2, 4), (1, 3, 2), (2, 2, 4), (3, 2, 2)])
@pytest.mark.parametrize("beta", [QUARTER, Fraction(1, 20)])
def test_no_values_exceed_the_profile_of_one_number(levels, parties, steps, beta):
    every = list(pairs(levels, beta, parties, steps))
    gammas = [Fraction(k, 10) for k in (1, 5, 8, 10, 11, 13, 20, 60)]
    found = poisson_binomial_profiles(levels, float(beta), parties, np.log([float(g) for g in gammas])).max(axis=0)
    corners = [
        tuple(trials(levels, k, beta, parties, own) for own in (-1, 1)) for k in range(levels * (parties - 1) + 1)
    ]
    for gamma, delta in zip(gammas, found, strict=True):
        assert game(every, 1, gamma) <= delta <= float(game(corners, 1, gamma)) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    ("levels", "parties", "numbers"), [(1, 2, 1), (1, 2, 2), (1, 3, 2), (2, 2, 2), further(1, 2, 3)]
)
@pytest.mark.parametrize("delta", [0.05, 0.005])
def test_a_game_of_every_choice_is_never_above_and_close(levels, parties, numbers, delta):
    """Other parties choose their values after each number; δ of the whole game, in fractions, at the reported ε."""
    every = list(pairs(levels, QUARTER, parties, 1))
    event = PoissonBinomialEvent(levels, 0.25, parties, coordinates=1)
    epsilon = loss_epsilon([([event], numbers)], delta)
    assert game(every, numbers, Fraction(exp(epsilon))) <= delta
    assert game(every, numbers, Fraction(exp(0.995 * epsilon - 1e-3))) > delta


@pytest.mark.parametrize(
    ("levels", "beta", "parties", "numbers"),
    [(1, 0.25, 2, 24), further(1, 0.1, 3, 16), (2, 0.05, 1, 24), further(1, 0.05, 2, 32)],
)
def test_long_products_are_never_above_and_close(levels, beta, parties, numbers):
    """All other parties at -1, the party from -1 to +1: a product that an adversary can choose, so a lower bound."""
    event = PoissonBinomialEvent(levels, beta, parties, coordinates=4)
    low, high = (of_sum(levels, (x, *[-1] * (parties - 1)), Fraction(beta)) for x in (-1, 1))
    for delta in (1e-2, 1e-5, 1e-8):
        epsilon = loss_epsilon([([event], numbers // 4)], delta)
        assert product_delta(low, high, numbers, epsilon) <= delta
        assert product_delta(low, high, numbers, 0.93 * epsilon - 1e-3) > delta


def of_coins(count, high, epsilon):
    """δ(ε) of coins that all change from probability 1 - h to h, exactly."""
    gamma = Fraction(exp(epsilon))
    chances = (
        comb(count, j) * (high**j * (1 - high) ** (count - j) - gamma * (1 - high) ** j * high ** (count - j))
        for j in range(count + 1)
    )
    return sum(max(Fraction(0), chance) for chance in chances)


def test_a_record_is_exactly_a_number_of_coins():
    event = PoissonBinomialEvent(levels=2, beta=0.125, parties=3, coordinates=2)
    for delta in (1e-3, 1e-6):
        epsilon = loss_epsilon([([event], 2)], delta, "record")
        assert of_coins(24, Fraction(5, 8), epsilon) <= delta < of_coins(24, Fraction(5, 8), epsilon * (1 - 1e-4))


def test_many_numbers_of_a_lone_party_are_coins():
    """One party with one trial: 100 numbers, composed by a transform."""
    event = PoissonBinomialEvent(levels=1, beta=0.25, parties=1, coordinates=10)
    for delta in (1e-3, 1e-6):
        epsilon = loss_epsilon([([event], 10)], delta)
        true = Fraction(3, 4)
        assert of_coins(100, true, epsilon) <= delta < of_coins(100, true, epsilon * (1 - 1e-3))


def test_the_allowance_for_rounding_covers_a_million_trials():
    """Against the terms of the binomial distribution, added up."""
    count, high = 2**20, 0.501
    event = PoissonBinomialEvent(levels=count, beta=0.001, parties=1, coordinates=1)
    ones = np.arange(count + 1)
    chances, losses = binom.pmf(ones, count, high), (2 * ones - count) * log(high / (1 - high))
    for delta in (1e-3, 1e-6, 2e-10):
        epsilon = loss_epsilon([([event], 1)], delta, "record")
        more = losses > epsilon
        assert fsum(chances[more] * -np.expm1(epsilon - losses[more])) <= delta


def test_the_known_example():
    """b = 2, β = .05, five parties, 16 numbers: Rényi 2.23, by a game of every choice 2.05."""
    event = PoissonBinomialEvent(levels=2, beta=0.05, parties=5, coordinates=16)
    figure = worst_figure([event], most=1, total=1, delta=1e-5)
    assert str(figure) == "2.075 (PLD)"
    assert composed_epsilon({event: 1}, 1e-5) == pytest.approx(2.230, abs=5e-4)


@pytest.mark.parametrize("unit", ["party-record", "record"])
def test_more_releases_fewer_parties_more_levels_and_smaller_deltas_cost_more(unit):
    event = PoissonBinomialEvent(levels=2, beta=0.1, parties=4, coordinates=4)

    def cost(delta=1e-5, times=3, **changed):
        return loss_epsilon([([PoissonBinomialEvent(**{**vars(event), **changed})], times)], delta, unit)

    rising = [cost(times=n) for n in (1, 2, 3, 10, 11)]
    assert rising == sorted(rising)
    assert cost(1e-7) > cost(1e-5) > cost(1e-2)
    assert cost(beta=0.11) > cost(beta=0.1) > cost(beta=0.09)
    assert cost(coordinates=5) > cost(coordinates=4)
    assert cost(levels=3) > cost(levels=2)
    assert (cost(parties=3) > cost(parties=4)) == (unit == "party-record")


def test_events_together_cost_more_than_each_and_less_than_the_worst():
    five, four = (PoissonBinomialEvent(2, 0.1, parties, 4) for parties in (5, 4))
    both = loss_epsilon([([five], 6), ([four], 4)], 1e-5)
    assert loss_epsilon([([five], 10)], 1e-5) < both < loss_epsilon([([four], 10)], 1e-5)
    worst = loss_epsilon([([five, four], 10)], 1e-5)
    assert worst == pytest.approx(loss_epsilon([([four], 10)], 1e-5), rel=1e-3)


def test_where_it_does_not_apply_the_figure_is_that_of_renyi():
    large = PoissonBinomialEvent(levels=64, beta=0.1, parties=17, coordinates=1)
    noise = GaussianEvent(sigma=3.0, sensitivity=1.0, parties=5)
    small = PoissonBinomialEvent(levels=1, beta=0.1, parties=2, coordinates=1)
    other = PoissonBinomialEvent(levels=1, beta=0.2, parties=2, coordinates=1)
    assert loss_epsilon([([large], 1)], 1e-5) == loss_epsilon([([small], 1), ([noise], 1)], 1e-5) == inf
    assert loss_epsilon([([small], 1), ([other], 1)], 1e-5, "record") == inf
    assert loss_epsilon([([small], 1)], 1e-5, "record (paper)") == loss_epsilon([([small], 1)], 0.0) == inf
    assert worst_figure([large], 1, 1, 1e-5) == (composed_epsilon({large: 1}, 1e-5), Account.RENYI)
    assert worst_figure([noise], 1, 1, 1e-5).account is Account.GAUSSIAN
    assert worst_figure([], 1, 1, 1e-5).epsilon == 0.0
    assert loss_epsilon([([PoissonBinomialEvent(1, 0.0, 2, 1)], 5), ([small], 0)], 1e-5) == 0.0
    with pytest.raises(ConfigurationError, match="from 1 to 1,024"):
        poisson_binomial_profiles(64, 0.1, 17, np.zeros(1))


def test_the_account_of_a_run_takes_the_record_that_costs_most():
    five, four = (PoissonBinomialEvent(2, 0.1, parties, 4) for parties in (5, 4))
    accountant = PrivacyAccountant(4)
    assert accountant.tightest(1e-5).epsilon == 0.0
    for event, ids in ((five, [0, 1, 2]), (five, [0, 1]), (four, [1]), (four, [3])):
        accountant.spend(event, torch.tensor(ids))
    figure = accountant.tightest(1e-5)
    assert figure == (loss_epsilon([([five], 2), ([four], 1)], 1e-5), Account.LOSS)
    assert figure.epsilon < accountant.epsilon(1e-5)
    assert accountant.tightest(1e-5, "party (paper)") == figure
    party = accountant.tightest(1e-5, "party")
    assert party.epsilon == loss_epsilon([([five], 5), ([four], 2)], 1e-5)
    paper = accountant.tightest(1e-5, "record (paper)")
    assert paper == (accountant.epsilon(1e-5, "record (paper)"), Account.RENYI)
    accountant.spend(GaussianEvent(3.0, 1.0, 5), torch.tensor([1]))
    assert accountant.tightest(1e-5) == (accountant.epsilon(1e-5), Account.RENYI)


def test_many_different_records_keep_a_bound(monkeypatch):
    """Beyond some columns the Rényi figure stands in: never below the figure of all columns."""
    kinds = [PoissonBinomialEvent(1, 0.2, parties, 1) for parties in (2, 3, 4)]
    accountant = PrivacyAccountant(20)
    for record in range(20):
        for i, event in enumerate(kinds):
            accountant.spend(event, torch.tensor([record] * (1 + (record * (i + 3)) % 5)))
    whole = accountant.tightest(1e-5)
    monkeypatch.setattr("lightning_vfl.privacy.accountant._COLUMNS", 1)
    assert whole.epsilon <= accountant.tightest(1e-5).epsilon <= accountant.epsilon(1e-5)
