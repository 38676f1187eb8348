"""Correlation: the score is VertiBench's, and β goes from the lowest score to the highest and never back."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer, load_digits

from lightning_vfl.datamodules import ColumnsByCorrelation, Layout, Split
from lightning_vfl.datamodules.partitioners.correlation import inter_party_correlation, spearman
from lightning_vfl.errors import ConfigurationError
from tests.further import further


def cut(features, parties, beta, seed=0):
    train = Split(torch.from_numpy(features), None, np.arange(len(features)))
    parts = ColumnsByCorrelation(parties, beta, seed).informed_by(lambda: train).split(Layout((features.shape[1],)))
    return [part.positions for part in parts]


def mixed(columns, seed, records=60, sources=3):
    """Columns that are mixtures of a few independent sources."""
    draw = np.random.Generator(np.random.PCG64(seed))
    loads = draw.normal(size=(sources, columns)) * (draw.random((sources, columns)) < 0.6)
    return draw.normal(size=(records, sources)) @ loads + 0.3 * draw.normal(size=(records, columns))


def by_definition(correlation, parts):
    """Icor as the paper writes it: the mean over parties i of the mean over others j of Pcor(i, j) - Pcor(i, i)."""

    def pcor(i, j):
        block = correlation[parts[i]][:, parts[j]]
        d = min(block.shape)
        if d == 1:
            return 0.0
        gram = block @ block.T if block.shape[0] == d else block.T @ block
        sigma = np.sqrt(np.linalg.eigvalsh(gram).clip(0))
        return np.sqrt(((sigma - sigma.mean()) ** 2).sum() / (d - 1)) / np.sqrt(d)

    every = range(len(parts))
    return np.mean([np.mean([pcor(i, j) - pcor(i, i) for j in every if j != i]) for i in every])


def partitions(columns, widths):
    """All cuts of these columns into parts of these widths, one by one."""
    if not widths:
        yield []
        return
    for own in combinations(columns, widths[0]):
        rest = [c for c in columns if c not in own]
        for others in partitions(rest, widths[1:]):
            yield [list(own), *others]


# ---- the score


def test_rank_correlations_are_scipy_s():
    features = mixed(9, 0).round(1)  # rounded: with equal values
    assert np.allclose(spearman(features), spearmanr(features).statistic, atol=1e-12)
    assert (np.diag(spearman(features)) == 1.0).all()


def test_a_constant_column_correlates_with_nothing():
    features = mixed(4, 1)
    features[:, 2] = 3.5
    correlation = spearman(features)
    assert not correlation[2].any()
    assert not correlation[:, 2].any()
    kept = [0, 1, 3]
    assert np.allclose(correlation[np.ix_(kept, kept)], spearmanr(features[:, kept]).statistic)


@pytest.mark.parametrize("widths", [(2, 3), (1, 4), (1, 1, 3), (4, 4, 3), (5, 1, 2)])
def test_the_score_is_the_one_of_the_paper(widths):
    features = mixed(sum(widths), 2)
    order = np.random.Generator(np.random.PCG64(0)).permutation(sum(widths))
    parts = np.split(order, np.cumsum(widths)[:-1])
    correlation = spearman(features)
    assert np.isclose(inter_party_correlation(correlation, parts), by_definition(correlation, parts), atol=1e-7)


@pytest.mark.parametrize(
    ("features", "parties", "score"),
    [
        (load_breast_cancer().data, 3, -0.11040234606927572),
        (load_breast_cancer().data, 4, -0.0744147365070683),
        (load_digits().data, 4, -0.12094736648391886),  # with constant columns
    ],
)
def test_the_score_is_the_one_of_vertibench(features, parties, score):
    """CorrelationEvaluator().fit_evaluate(np.array_split(features, parties, axis=1)) of vertibench 0.1.2."""
    runs = np.array_split(np.arange(features.shape[1]), parties)
    assert np.isclose(inter_party_correlation(spearman(features), runs), score, rtol=1e-9)


# ---- the search


@pytest.mark.parametrize(
    ("columns", "parties", "seed"),
    [
        (4, 2, 0),
        (6, 3, 1),
        further(7, 2, 0),
        *(pytest.param(8, *more, marks=pytest.mark.slow) for more in ((2, 1), (3, 0), (3, 1))),
    ],
)
def test_small_tables_are_cut_as_well_as_by_trying_everything(columns, parties, seed):
    features = mixed(columns, seed)
    correlation = spearman(features)
    widths = [len(run) for run in np.array_split(np.arange(columns), parties)]
    scores = np.array([by_definition(correlation, cut) for cut in partitions(list(range(columns)), widths)])
    for beta in (0.0, 0.4, 1.0):
        wanted = scores.min() + beta * (scores.max() - scores.min())
        own = cut(features, parties, beta, seed)
        assert [len(positions) for positions in own] == widths
        missed = abs(by_definition(correlation, own) - wanted)
        spare = 0.0 if beta in (0.0, 1.0) else 0.01 * (scores.max() - scores.min())
        assert missed <= np.abs(scores - wanted).min() + spare + 1e-6


@pytest.mark.slow
def test_a_larger_beta_never_gives_a_lower_score():
    features = load_breast_cancer().data
    correlation = spearman(features)
    betas = np.array([0.0, 0.5, 0.51, 1.0])
    scores = np.array([by_definition(correlation, cut(features, 3, beta)) for beta in betas])
    assert (np.diff(scores) > 0).all()
    wanted = scores[0] + betas * (scores[-1] - scores[0])
    assert np.abs(scores - wanted).max() < 0.01 * (scores[-1] - scores[0])
    orders = [np.random.Generator(np.random.PCG64(seed)).permutation(30) for seed in range(60)]
    random = [by_definition(correlation, np.array_split(order, 3)) for order in orders]
    assert scores[0] < min(random)
    assert scores[-1] > max(random)


@pytest.mark.slow
def test_the_range_is_as_wide_as_the_genetic_algorithm_s():
    """vertibench 0.1.2, fit_min_max(seed=0) on these 3 x 10 columns, 200,000 scores: -0.27711 to 0.00236."""
    features = load_breast_cancer().data
    correlation = spearman(features)
    low, high = (by_definition(correlation, cut(features, 3, beta, seed=1)) for beta in (0.0, 1.0))
    assert low < -0.2771
    assert high > 0.0023


def test_seed_and_records_decide_alone():
    features = mixed(6, 6)

    def told(seed, features=features):
        return [own.tolist() for own in cut(features, 3, 0.5, seed)]

    once = told(1)
    assert once == told(1)
    assert once != told(2)
    assert once == told(1, features * 3 + 1)  # ranks alone matter
    assert once != told(1, mixed(6, 7))


def test_columns_that_are_copies_are_told_apart():
    source = np.random.Generator(np.random.PCG64(8)).normal(size=(50, 3))
    features = source[:, [0, 1, 2, 0, 1, 2]]
    apart = cut(features, 3, 0.0)
    assert sorted(own.tolist() for own in apart) == [[0, 3], [1, 4], [2, 5]]
    together = cut(features, 2, 1.0)
    assert [sorted(own % 3) for own in together] == [[0, 1, 2]] * 2


def test_pixels_are_columns_like_any_other():
    images = torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    train = Split(images, None, np.arange(30))
    parts = ColumnsByCorrelation(3).informed_by(lambda: train).split(Layout((1, 4, 4)))
    assert [part.shape for part in parts] == [(6,), (5,), (5,)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ColumnsByCorrelation(1), "parties must be at least 2; got 1"),
        (
            lambda: ColumnsByCorrelation(2, 1.5),
            "beta must be from 0 (parties with different columns) to 1 (parties with similar columns); got 1.5",
        ),
        (lambda: ColumnsByCorrelation(2, float("nan")), "to 1 (parties with similar columns); got nan"),
        (lambda: cut(mixed(3, 0), 4, 0.5), "4 parties cannot share 3 columns; use 1 to 3 parties"),
        (
            lambda: cut(mixed(4, 0), 4, 0.5),
            "all divisions of these 4 columns between 4 parties have the same correlation, so beta has no effect; use "
            "fewer parties, or RandomColumns",
        ),
        (lambda: cut(np.ones((9, 6)), 2, 0.5), "of these 6 columns between 2 parties have the same correlation"),
    ],
)
def test_an_impossible_cut_is_refused(make, message):
    with pytest.raises(ConfigurationError) as error:
        make()
    assert message in str(error.value)
