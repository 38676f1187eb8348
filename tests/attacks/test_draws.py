"""The attacks of ``tests.attacks.draws`` in small: they succeed against seeded draws and fail against the system's.

Attacks on secret draws have no seed; their thresholds are passed by chance less than once in 10⁶ runs.
"""

from math import exp

import pytest
import torch
from scipy import stats

from tests.attacks import draws
from tests.attacks.draws import Told

ROWS = 3000


def test_the_bound_is_refuted_by_no_mechanism_that_meets_it():
    """Randomised response of ε = 1, the exact probabilities in the place of counts; and the limits of the formula."""
    p, rows = exp(1) / (1 + exp(1)), 10**6
    told = Told(round(p * rows), round((1 - p) * rows), rows, p)
    assert 0.99 < told.epsilon_shown < 1.0
    assert Told(0, 0, 100, 0.5).epsilon_shown == 0.0
    assert Told(100, 100, 100, 0.5).epsilon_shown == 0.0
    assert 3 < Told(100, 0, 100, 1.0).epsilon_shown < 4  # ln(0.964 / 0.036)


def test_the_seed_gives_the_embeddings_only_where_draws_are_seeded():
    h, left = draws.subtract("seeded", ROWS)
    assert float((left - h).norm(dim=1).max()) < 1e-12
    h, left = draws.subtract("system", ROWS)
    correlation = float(torch.corrcoef(torch.stack((h.flatten(), left.flatten())))[0, 1])
    plain = 16**-0.5 / (2**0.5 * draws.gaussian("system").sigma(16, 1))  # signal over noise of two draws
    assert abs(correlation - plain) * (16 * ROWS) ** 0.5 < stats.norm.isf(5e-7)


def test_the_seed_tells_gaussian_records_apart_only_where_draws_are_seeded():
    epsilon = draws.reported(draws.gaussian_event())
    assert draws.subtract_and_tell("seeded", ROWS).right == 1.0
    assert draws.subtract_and_tell("seeded", ROWS).epsilon_shown > 4 * epsilon
    now = draws.subtract_and_tell("system", ROWS)
    assert abs(now.right - 0.5) < 0.1
    assert now.epsilon_shown < epsilon


@pytest.mark.parametrize("at", [0.0, 1.0, 2.0])
def test_the_best_test_stays_below_the_reported_epsilon(at):
    assert draws.best_test("system", 20_000, at).epsilon_shown < draws.reported(draws.gaussian_event())


def test_last_bits_rule_out_a_record_only_where_noise_is_floating_point():
    epsilon = draws.reported(draws.gaussian_event())
    before = draws.last_bits("seeded", ROWS)
    assert before.of_b == 0
    assert before.epsilon_shown > 3 * epsilon
    now = draws.last_bits("system", ROWS)
    assert (now.of_a, now.of_b) == (0, 0)
    assert now.epsilon_shown == 0.0


@pytest.mark.slow
def test_the_seed_tells_draws_apart_only_where_they_are_seeded():
    epsilon = draws.reported(draws.binomial_event())
    before = draws.draw_again("seeded", rows=ROWS)
    assert before.right > 0.97
    assert before.epsilon_shown > epsilon
    now, without = (draws.draw_again("system", with_seed, ROWS) for with_seed in (True, False))
    assert now.epsilon_shown < epsilon
    assert abs(now.right - without.right) < 0.07
