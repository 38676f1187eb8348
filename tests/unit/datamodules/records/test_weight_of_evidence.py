"""Weight of evidence: a plain computation on the joined table, and counts with the noise that is claimed."""

from bisect import bisect_left
from fractions import Fraction
from functools import partial
from math import exp, log

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare
from sklearn.isotonic import IsotonicRegression

from lightning_vfl.datamodules.records.column_encoders import encoder_of
from lightning_vfl.datamodules.records.step_chain import fit_chain
from lightning_vfl.datamodules.records.step_settings import read_steps
from lightning_vfl.datamodules.records.weight_of_evidence import PUBLIC, LabelCounts, discrete_laplace
from lightning_vfl.errors import ConfigurationError

RNG = np.random.default_rng(0)
N = 400
VALUES = np.where(RNG.random(N) < 0.1, np.nan, RNG.normal(50, 20, N).round(1))
LABELS = (RNG.random(N) < 1 / (1 + np.exp(-(np.nan_to_num(VALUES, nan=70) - 50) / 15))).astype(int)
COUNTS = LabelCounts("bank", None, 0)


def fitted(steps, values=VALUES, labels=LABELS, counts=COUNTS, party="bank"):
    column = pd.Series(values, name="x")
    of_column = partial(counts.of, party, "x", labels)
    return fit_chain(read_steps(steps, "column 'x'"), column, party, counts=of_column)


def plain(values, labels, edges, smoothing):
    """Value -> weight of evidence, and the information value; None is the bin of missing values."""

    def bin_of(value):
        return None if np.isnan(value) else min(bisect_left(edges, value), len(edges) - 1)

    bins = [bin_of(value) for value in values]
    present = set(bins)
    weights = {}
    information = 0.0
    for one in present:
        second = sum(1 for b, label in zip(bins, labels, strict=True) if b == one and label == 1)
        first = sum(1 for b, label in zip(bins, labels, strict=True) if b == one and label == 0)
        of_second = (second + smoothing) / (sum(labels) + smoothing * len(present))
        of_first = (first + smoothing) / (len(labels) - sum(labels) + smoothing * len(present))
        weights[one] = log(of_second / of_first)
        information += (of_second - of_first) * weights[one]
    return [weights[one] for one in bins], information


@pytest.mark.parametrize("bins", [2, 5, 10])
@pytest.mark.parametrize("smoothing", [0.5, 2.0])
def test_it_is_a_plain_computation_over_bins_of_quantiles(bins, smoothing):
    chain = fitted({"woe": bins, "smoothing": smoothing})
    there = sorted(value for value in VALUES if not np.isnan(value))
    edges = [there[-(-len(there) * (i + 1) // bins) - 1] for i in range(bins)]
    weights, information = plain(VALUES, LABELS, edges, smoothing)
    np.testing.assert_allclose(chain.encode(pd.Series(VALUES, name="x"), "bank")[:, 0], weights, rtol=1e-12)
    assert chain.describe() == f"numbers, woe ({bins} bins, information value {information:.3f})"


def test_values_that_repeat_are_bins_of_their_own_and_missing_ones_without_training_rows_say_nothing():
    values = np.repeat([1.0, 2.0, 3.0], [200, 120, 80])
    chain = fitted("woe", values)
    weights, _ = plain(values, LABELS, [1.0, 2.0, 3.0], 0.5)
    new = pd.Series([1.0, 2.5, 99.0, np.nan], name="x")
    np.testing.assert_allclose(chain.encode(new, "bank")[:, 0], [weights[0], weights[-1], weights[-1], 0.0])
    assert fitted("woe", np.full(N, np.nan)).encode(new[3:], "bank").tolist() == [[0.0]]


@pytest.mark.parametrize("sign", [1, -1])
def test_monotone_bins_are_those_of_isotonic_regression(sign):
    values = np.where(np.isnan(VALUES), np.nan, sign * VALUES)
    free = fitted({"woe": 12}, values)
    chain = fitted({"woe": 12, "monotone": True}, values)
    (step,), (before,) = chain.after, free.after
    order = np.argsort(step.edges)
    weights = np.array(step.weights[:-1])[order]
    assert (np.diff(sign * weights) > 0).all()
    assert len(step.edges) < len(before.edges)
    there = ~np.isnan(values)
    bins = np.searchsorted(before.edges, values[there])
    shares = np.array([LABELS[there][bins == b].mean() for b in range(12)])
    sizes = np.bincount(bins)
    fits = [IsotonicRegression(increasing=up).fit(range(12), shares, sizes).predict(range(12)) for up in (True, False)]
    best = min(fits, key=lambda fit: (sizes * (fit - shares) ** 2).sum())
    assert len(np.unique(best.round(12))) == len(step.edges)


def test_a_fitted_step_is_read_back_from_plain_values():
    chain = fitted({"woe": {"bins": 4, "monotone": True}})
    assert encoder_of(chain.state()) == chain


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        ({"woe": 1}, "bins must be at least 2"),
        ({"woe": {"smoothing": 0}}, "smoothing must be above 0"),
        ({"woe": {"bin": 3}}, "woe has no setting 'bin'; did you mean bins"),
    ],
)
def test_settings_are_refused(steps, line):
    with pytest.raises(ConfigurationError, match=line):
        fitted(steps)


def test_several_numbers_of_a_record_and_labels_elsewhere_are_refused():
    column = pd.Series(["2024-01-01", "2024-02-01"], name="x")
    with pytest.raises(ConfigurationError, match="woe takes one number of a record, and the steps before it make 2"):
        fit_chain(
            read_steps([{"date": ["year", "month"]}, "woe"], "x"), column, "bank", counts=partial(COUNTS.of, "bank")
        )
    with pytest.raises(ConfigurationError, match="woe needs the labels, which are not here"):
        fit_chain(read_steps("woe", "x"), pd.Series(VALUES, name="x"), "bank")


def test_noise_of_counts_has_the_probabilities_of_the_discrete_laplace_distribution():
    generator = np.random.default_rng(1)
    for epsilon in (Fraction(3, 10), Fraction(2)):
        draws = discrete_laplace(epsilon, 4000, lambda n: int(generator.integers(n)))
        ends = 4
        counts = [(draws <= -ends).sum(), *((draws == k).sum() for k in range(1 - ends, ends)), (draws >= ends).sum()]
        q = exp(-epsilon)
        tail = q**ends / (1 + q)
        probabilities = [tail, *((1 - q) / (1 + q) * q ** abs(k) for k in range(1 - ends, ends)), tail]
        assert chisquare(counts, np.array(probabilities) * len(draws)).pvalue > 0.001


def test_other_parties_are_told_noisy_counts_once_and_the_holder_true_ones():
    bins = np.arange(N) % 4
    true = np.bincount(bins, weights=LABELS)
    counts = LabelCounts("bank", 0.01, 2)
    np.testing.assert_array_equal(counts.of("bank", "x", LABELS, bins, 4), true)
    np.testing.assert_array_equal(LabelCounts("bank", PUBLIC, 1).of("telco", "x", LABELS, bins, 4), true)
    noisy = counts.of("telco", "x", LABELS, bins, 4)
    assert np.abs(noisy - true).max() > 5  # each is smaller with probability 0.03
    np.testing.assert_array_equal(counts.of("telco", "x", LABELS, bins, 4), noisy)
    with pytest.raises(ConfigurationError, match="is spent; counts for other bins of column 'x' of party 'telco'"):
        counts.of("telco", "x", LABELS, bins[::-1].copy(), 4)
    counts.of("telco", "y", LABELS, bins, 4)
    with pytest.raises(ConfigurationError, match="is spent"):
        counts.of("telco", "z", LABELS, bins, 4)
