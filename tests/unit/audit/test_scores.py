import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import r2_score, roc_auc_score

from lightning_vfl.audit.scores import (
    auc,
    clopper_pearson,
    epsilon_of_one_run,
    epsilon_of_trials,
    one_run_p_value,
    r_squared,
    share,
)


def test_auc_is_that_of_sklearn_and_its_interval_is_that_of_hanley_and_mcneil():
    draw = np.random.default_rng(0)
    positive = draw.random(500) < 0.3
    values = np.round(draw.standard_normal(500) + positive, 1)  # with ties
    score = auc(values, positive)
    assert score.success == pytest.approx(roc_auc_score(positive, values))
    again = [roc_auc_score(positive[i], values[i]) for i in draw.integers(0, 500, (400, 500))]
    assert [score.low, score.high] == pytest.approx(np.quantile(again, [0.025, 0.975]), abs=0.015)


def test_share_has_the_exact_binomial_interval():
    for right, of in ((0, 7), (3, 7), (7, 7), (40, 100)):
        exact = stats.binomtest(right, of).proportion_ci(method="exact")
        assert clopper_pearson(right, of, 0.05) == pytest.approx((exact.low, exact.high))
    assert share(3, 4, 0.5).success == 0.75


def test_r_squared_is_that_of_sklearn_over_columns_that_vary():
    draw = np.random.default_rng(1)
    truth, guesses = draw.standard_normal((200, 3)), draw.standard_normal((200, 3))
    guesses[:, 0] += truth[:, 0]
    truth[:, 2] = 1.0
    score = r_squared(guesses, truth)
    expected = r2_score(truth[:, :2], guesses[:, :2], multioutput="variance_weighted")
    assert score.success == pytest.approx(expected)
    assert score.low < score.success < score.high


def test_p_value_of_one_run_is_the_binomial_tail_without_delta():
    for right in (5, 8, 10):
        exact = stats.binomtest(right, 10, np.e**0.7 / (1 + np.e**0.7), alternative="greater").pvalue
        assert one_run_p_value(20, 10, right, 0.7, 0.0) == pytest.approx(exact)


def test_p_value_of_one_run_with_delta_by_enumeration():
    m, guesses, right, delta = 12, 6, 5, 0.01
    q = np.e**1.0 / (1 + np.e**1.0)
    mass = [stats.binom.pmf(k, guesses, q) for k in range(guesses + 1)]
    tail = sum(mass[right:])
    alpha = max(sum(mass[right - i : right]) / i for i in range(1, right + 1))
    assert one_run_p_value(m, guesses, right, 1.0, delta) == pytest.approx(tail + 2 * m * delta * alpha)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_bounds_of_randomised_response_are_below_its_epsilon(epsilon):
    draw = np.random.default_rng(3)
    keep = np.e**epsilon / (1 + np.e**epsilon)
    bounds = []
    for _ in range(10):
        coins = draw.random(20_000) < 0.5
        values = np.where(draw.random(20_000) < keep, coins, ~coins) * 2.0 - 1.0
        bounds += [epsilon_of_trials(values, coins, 0.0).success, epsilon_of_one_run(values, coins, 0.0).success]
    assert min(bounds) > 0.6 * epsilon
    assert sum(bound > epsilon for bound in bounds) <= 2  # each may be wrong with probability 0.05


def test_an_order_the_other_way_round_is_a_success_with_the_other_sign():
    positive = np.arange(40) < 20
    for values in (positive * 1.0, -1.0 * positive):
        score = auc(values, positive)
        assert (score.success, score.high) == (1.0, 1.0)
        assert score.low == pytest.approx(1 - 3 / 20)
        assert score.measure == ("AUC" if values.any() and values.max() > 0 else "AUC (reversed)")
    noise = np.random.default_rng(0).standard_normal(40)
    assert auc(noise, positive).success == pytest.approx(roc_auc_score(positive, noise))
