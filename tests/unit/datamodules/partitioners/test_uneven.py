"""Uneven widths: shares are Dirichlet's, parts follow the shares, and everybody has something."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_vfl.datamodules import DirichletColumns, Layout
from lightning_vfl.datamodules.partitioners.uneven import draw_shares, share_out
from lightning_vfl.errors import ConfigurationError
from tests.examples import examples
from tests.further import further


def widths(parties, alpha, seed, columns):
    return [len(part.positions) for part in DirichletColumns(parties, alpha, seed).split(Layout((columns,)))]


# ---- the draw


@pytest.mark.parametrize(
    "alpha",
    [further(0.05), further(1.0), further(20.0), (0.5, 1.0, 3.0)],
)
def test_each_share_is_distributed_as_a_dirichlet_has_it(alpha):
    """The share of one party is Beta(a, A - a), A the sum of all: scipy's, which draws nothing here."""
    draws = np.stack([draw_shares(alpha, 3, seed, "test") for seed in range(2000)])
    assert np.allclose(draws.sum(1), 1.0)
    each = np.broadcast_to(alpha, 3)
    for party in range(3):
        beta = stats.beta(each[party], each.sum() - each[party])
        at = np.array([1e-9, 1e-6, 1e-3, 0.02, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 0.95, 0.999])
        below = (draws[:, party, None] <= at).mean(0)
        assert np.abs(below - beta.cdf(at)).max() < 0.045  # 4 deviations
    assert np.corrcoef(draws.T)[0, 1] < 0


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1e6, 1e12])
def test_extreme_concentrations_are_drawn_too(alpha):
    draws = np.stack([draw_shares(alpha, 5, seed, "test") for seed in range(200)])
    assert np.isfinite(draws).all()
    assert np.allclose(draws.sum(1), 1.0)
    if alpha < 1:  # one has all, and each of them sometimes
        assert (draws.max(1) > 0.99).mean() > 0.9
        assert len(set(draws.argmax(1))) == 5
    else:
        assert np.abs(draws - 0.2).max() < 10 / alpha**0.5


# ---- what is shared out by it


@given(st.data(), st.integers(1, 8), st.integers(0, 30))
@examples(120)
def test_weights_follow_the_shares_and_nobody_is_left_out(data, parties, spare):
    things = parties + spare
    weights = np.array(data.draw(st.lists(st.integers(0, 50), min_size=things, max_size=things)), dtype=float)
    parts = data.draw(st.lists(st.integers(0, 20), min_size=parties, max_size=parties).filter(sum))
    shares = np.array(parts) / sum(parts)
    owners = share_out(weights, shares)
    assert sorted(set(owners.tolist())) == list(range(parties))
    got = np.array([weights[owners == party].sum() for party in range(parties)])
    excess = got - shares * weights.sum()
    assert excess.max() <= weights.max() + 1e-9
    assert excess.min() >= -weights.max() - weights[things - (parties - 1) :].sum() - 1e-9


def test_weightless_things_are_shared_out_by_number():
    owners = share_out(np.zeros(100), np.array([0.7, 0.2, 0.1]))
    assert np.bincount(owners).tolist() == [70, 20, 10]
    owners = share_out(np.array([8.0, *[0.0] * 99]), np.array([0.2, 0.8]))
    assert np.bincount(owners).tolist() == [20, 80]


# ---- the partitioner


@given(st.integers(1, 9), st.integers(0, 60), st.sampled_from([1e-3, 0.3, 1.0, 50.0]), st.integers(0, 2**40))
@examples(100)
def test_widths_are_the_shares_rounded(parties, spare, alpha, seed):
    columns = parties + spare
    shares = draw_shares(alpha, parties, seed, "dirichlet columns")
    got = np.array(widths(parties, alpha, seed, columns))
    assert got.sum() == columns
    assert got.min() >= 1
    excess = got - shares * columns
    assert excess.max() <= 1 + 1e-9
    made_up = (1 - shares * columns).clip(min=0).sum()  # shares of less than one column
    assert excess.min() >= -1 - made_up - 1e-9


def test_large_concentrations_are_even_and_small_ones_are_not():
    for seed in range(20):
        assert widths(4, 1e9, seed, 40) == [10] * 4
    assert np.mean([max(widths(4, 0.05, seed, 40)) for seed in range(50)]) > 30
    assert np.mean([max(widths(4, 5.0, seed, 40)) for seed in range(50)]) < 20


def test_one_party_may_be_expected_to_have_most():
    mean = np.mean([widths(3, (8.0, 1.0, 1.0), seed, 50) for seed in range(200)], axis=0)
    assert np.abs(mean - [40, 5, 5]).max() < 1.5


def test_the_seed_decides_alone():
    def cut(seed):
        return [part.positions.tolist() for part in DirichletColumns(3, 1.0, seed).split(Layout((20,)))]

    assert cut(5) == cut(5)
    assert len({str(cut(seed)) for seed in range(10)}) == 10
    assert all(own == sorted(own) for own in cut(5))
    assert sorted(c for own in cut(5) for c in own) == list(range(20))
    assert cut(5)[0] != list(range(len(cut(5)[0])))  # not in the order of the data


def test_images_are_dealt_out_in_strips():
    image = np.arange(2 * 30 * 4).reshape(2, 30, 4)
    parts = DirichletColumns(4, 0.7, seed=2).split(Layout(image.shape))
    assert len({part.shape[1] for part in parts}) > 1
    assert all((part.shape[0], part.shape[2]) == (2, 4) for part in parts)
    tiles = [image.reshape(-1)[part.positions].reshape(part.shape) for part in parts]
    assert np.array_equal(np.concatenate(tiles, axis=1), image)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DirichletColumns(3, 0), "alpha must be above 0 and finite, such as 1, or 1000 for even shares; got 0"),
        (lambda: DirichletColumns(3, [1.0, -2.0, 1.0]), "0 and finite, such as 1, or 1000 for even shares; got -2"),
        (lambda: DirichletColumns(3, float("inf")), "above 0 and finite, such as 1, or 1000 for even shares; got inf"),
        (lambda: DirichletColumns(3, float("nan")), "above 0 and finite, such as 1, or 1000 for even shares; got nan"),
        (lambda: DirichletColumns(3, [1, 1]), "alpha must be one number, or one for each of the 3 parties; got 2"),
        (lambda: DirichletColumns(4).split(Layout((3,))), "4 parties cannot share 3 columns; use 1 to 3 parties"),
        (lambda: DirichletColumns(0).split(Layout((3,))), "0 parties cannot share 3 columns; use 1 to 3 parties"),
        (lambda: DirichletColumns(5).split(Layout((9, 4, 9))), "5 parties cannot share 4 rows of pixels; use 1 to 4"),
    ],
)
def test_an_impossible_cut_is_refused(make, message):
    with pytest.raises(ConfigurationError) as error:
        make()
    assert message in str(error.value)
