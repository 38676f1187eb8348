"""Importance: what is measured is mutual information, and what parties get follows the draw."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score

from lightning_vfl.datamodules import BreastCancer, ColumnsByImportance, Layout, Split
from lightning_vfl.datamodules.partitioners.importance import mutual_information
from lightning_vfl.datamodules.partitioners.uneven import draw_shares
from lightning_vfl.errors import ConfigurationError
from tests.examples import examples

NAMES = ("c0", "c1", "c2", "c3", "c4", "c5")


def records(columns=6, count=40, labels=True):
    draw = torch.Generator().manual_seed(3)
    y = torch.arange(count) % 3 if labels else None
    return Split(torch.randn(count, columns, generator=draw), y, np.arange(count))


def cut(partitioner, train=None, columns=()):
    train = train or records()
    parts = partitioner.informed_by(lambda: train).split(Layout(tuple(train.features.shape[1:]), columns))
    return [part.positions.tolist() for part in parts]


# ---- what is measured


def test_it_is_the_mutual_information_of_bins_and_labels():
    """Against scikit-learn's table of counts; the bins are made by sorting."""
    draw = np.random.Generator(np.random.PCG64(0))
    y = draw.integers(0, 4, 500)
    x = draw.normal(size=(500, 5)) + y[:, None] * np.array([0.0, 0.3, 1.0, 3.0, 100.0])
    bins = x.argsort(0).argsort(0) // 50  # 500 different values: 50 in a bin
    expected = [mutual_info_score(bins[:, column], y) - 9 * 3 / 1000 for column in range(5)]
    assert np.allclose(mutual_information(x, y), np.clip(expected, 0, None), atol=1e-8)
    assert (np.diff(mutual_information(x, y))[1:] > 0).all()


def test_columns_of_few_values_are_their_own_bins():
    draw = np.random.Generator(np.random.PCG64(1))
    y = draw.integers(0, 2, 400)
    x = np.stack([draw.integers(0, 3, 400) + 5 * y, (draw.random(400) < 0.3) * 1.0, np.full(400, 7.0)], axis=1)
    x[:, 1] = np.where(draw.random(400) < 0.5, y, x[:, 1])
    values = [len(np.unique(column)) for column in x.T]
    expected = [mutual_info_score(x[:, c], y) - (values[c] - 1) / 800 for c in range(3)]
    assert np.allclose(mutual_information(x, y), np.clip(expected, 0, None), atol=1e-8)
    assert mutual_information(x, y)[2] == 0.0


def test_real_valued_labels_are_sorted_into_bins():
    draw = np.random.Generator(np.random.PCG64(2))
    y = draw.normal(size=300)
    x = np.stack([draw.normal(size=300), y + draw.normal(size=300), np.exp(y)], axis=1)
    told = mutual_information(x, y)
    bins = lambda v: v.argsort().argsort() // 30  # noqa: E731
    assert np.allclose(told[1], mutual_info_score(bins(x[:, 1]), bins(y)) - 81 / 600, atol=1e-8)
    assert told[0] < 0.1 < told[1] < told[2]
    assert np.array_equal(told, mutual_information(1000 * x + 5, 3 * y))  # ranks alone matter


def test_noise_says_nothing_on_average():
    draw = np.random.Generator(np.random.PCG64(3))
    told = mutual_information(draw.normal(size=(400, 300)), draw.integers(0, 2, 400))
    assert told.mean() < 0.004  # without the correction: 9 / 800 = 0.011
    assert told.min() == 0.0  # never below


# ---- what parties get


@given(st.data(), st.integers(1, 6), st.integers(0, 12), st.sampled_from([0.05, 1.0, 100.0]), st.integers(0, 2**40))
@examples(100)
def test_importance_follows_the_draw_within_a_column(data, parties, spare, alpha, seed):
    columns = parties + spare
    numbers = data.draw(st.lists(st.floats(0, 100), min_size=columns, max_size=columns))
    own = cut(ColumnsByImportance(parties, alpha, numbers, seed), records(columns))
    assert sorted(c for held in own for c in held) == list(range(columns))
    assert all(own)
    shares = draw_shares(alpha, parties, seed, "columns by importance")
    excess = np.array([sum(numbers[c] for c in held) for held in own]) - shares * sum(numbers)
    tiny = 1e-9 * sum(numbers)
    assert excess.max() <= max(numbers) + tiny
    assert excess.min() >= -max(numbers) - sum(sorted(numbers)[: parties - 1]) - tiny


def test_many_columns_follow_the_draw_closely():
    numbers = np.random.Generator(np.random.PCG64(4)).exponential(size=300)
    for seed in range(10):
        own = cut(ColumnsByImportance(4, 1.0, numbers.tolist(), seed), records(300, 5))
        shares = draw_shares(1.0, 4, seed, "columns by importance")
        got = np.array([numbers[held].sum() for held in own]) / numbers.sum()
        assert np.abs(got - shares).max() < 0.002


def test_large_concentrations_make_parties_alike_and_small_ones_do_not():
    data = BreastCancer()
    train = data.load(("train",))["train"]
    told = mutual_information(train.features.double().numpy(), train.labels.numpy())

    def spread(alpha):
        return (
            np.mean(
                [
                    np.std([told[held].sum() for held in cut(ColumnsByImportance(3, alpha, seed=s), train)])
                    for s in range(10)
                ]
            )
            / told.sum()
        )

    assert spread(1e8) < 0.01 < spread(10.0) < spread(1.0) < spread(0.05)


def test_the_seed_decides_alone():
    assert cut(ColumnsByImportance(2, seed=1)) == cut(ColumnsByImportance(2, seed=1))
    assert len({str(cut(ColumnsByImportance(3, seed=seed), records(12))) for seed in range(12)}) > 8


def test_columns_of_equal_importance_are_drawn():
    assert len({str(cut(ColumnsByImportance(2, 1e9, [1.0] * 6, seed))) for seed in range(12)}) > 6


def test_columns_without_importance_are_shared_out_by_number():
    own = cut(ColumnsByImportance(2, [1e9, 3e9], [5.0, 5.0, 5.0, 5.0] + [0.0] * 96), records(100))
    assert [sum(c < 4 for c in held) for held in own] == [1, 3]
    assert [len(held) for held in own] == [25, 75]
    assert [len(held) for held in cut(ColumnsByImportance(2, [1e9, 3e9], [0.0] * 100), records(100))] == [25, 75]


def test_numbers_by_name_and_of_one_hot_columns():
    columns = ("age", "job=clerk", "job=farmer", "jobless")
    named = ColumnsByImportance(2, [1.0, 1.0], {"job": 6.0, "age": 5.0, "jobless": 1.0}, seed=3)
    listed = ColumnsByImportance(2, [1.0, 1.0], [5.0, 3.0, 3.0, 1.0], seed=3)
    assert cut(named, records(4), columns) == cut(listed, records(4), columns)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ColumnsByImportance(2, 0.0),
            "alpha must be above 0 and finite, such as 1, or 1000 for even shares; got 0",
        ),
        (
            lambda: ColumnsByImportance(2, importance=[1.0, -0.5]),
            "importance must be finite numbers from 0; got -0.5",
        ),
        (lambda: ColumnsByImportance(2, importance={"a": float("inf")}), "must be finite numbers from 0; got inf"),
        (lambda: cut(ColumnsByImportance(2, importance=[1.0] * 5)), "have one number for each of the 6 columns; got 5"),
        (
            lambda: cut(ColumnsByImportance(2, importance={"c0": 1.0, "d": 2.0}), None, NAMES),
            "importance names column 'd', which the data do not have; they have c0, c1, c2, c3, c4, c5",
        ),
        (
            lambda: cut(ColumnsByImportance(2, importance={"c0": 1.0, "c5": 2.0}), None, NAMES),
            "importance has no number for 4 columns, first 'c1'; give one, such as 0",
        ),
        (lambda: cut(ColumnsByImportance(7)), "7 parties cannot share 6 columns; use 1 to 6 parties"),
        (
            lambda: cut(ColumnsByImportance(2), records(labels=False)),
            "mutual information needs labels, and these data have none; give importance as one number for each column",
        ),
    ],
)
def test_an_impossible_cut_is_refused(make, message):
    with pytest.raises(ConfigurationError) as error:
        make()
    assert message in str(error.value)
