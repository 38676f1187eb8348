"""Shapley values against all orders of the parties, and permuted columns against a permutation by hand."""

from fractions import Fraction
from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_vfl import absence
from lightning_vfl.absence import contribution, shapley
from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import BreastCancer, Digits
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols import EnsembleVFL, LocalVFL
from lightning_vfl.streams import permutation
from tests.subjects import Blobs, Values, split


def ready(data, kind=None, **settings):
    module = split(Mean(), **settings) if kind is None else kind(width=5, seed=0)
    data.setup("fit")
    data.setup("test")
    module.build_for(data)
    return module.eval(), data


def every_order(value, players):
    """The mean over all orders of what each party adds when it joins, in exact arithmetic."""
    orders = list(permutations(players))
    shares = dict.fromkeys(players, Fraction(0))
    for order in orders:
        for place, party in enumerate(order):
            before = value[tuple(sorted(order[:place]))]
            after = value[tuple(sorted(order[: place + 1]))]
            shares[party] += (Fraction(after) - Fraction(before)) / len(orders)
    return [float(shares[party]) for party in players]


def measured_apart(module, data, players):
    """The first metric of each coalition that has a party, by ``test --absent``."""
    value = {}
    for size in range(len(players) + 1):
        for coalition in combinations(players, size):
            away = [m for m in players if m not in coalition]
            if len(away) == module.roster.parties:
                continue
            asked = absence.Asked((tuple(away),), ())
            value[coalition] = float(absence.measure(module, data.test_dataloader(), asked).table["value"].iloc[0])
    return value


def majority(data):
    """The accuracy of always naming the class that most training records have."""
    train, test = data.records("train").labels, data.records("test").labels
    return float((test == torch.bincount(train.long()).argmax()).float().mean())


@pytest.mark.parametrize(("kind", "active"), [(Blobs, None), (Digits, None), (BreastCancer, 1)])
def test_the_values_are_those_of_all_orders(kind, active):
    data = kind(batch_size=7) if kind is Blobs else kind()
    module, data = ready(data, active=active)
    found = contribution.by_absence(module, data.test_dataloader(), data.train_dataloader())
    players = [m for m in range(module.roster.parties) if m != active]
    value = measured_apart(module, data, players)
    first = found.table[found.table["metric"] == found.table["metric"].iloc[0]]
    if active is None:
        assert first["nobody"].iloc[0] == pytest.approx(majority(data), abs=1e-6)
        value[()] = first["nobody"].iloc[0]
    assert first["party"].tolist() == players
    np.testing.assert_allclose(first["value"], every_order(value, players), rtol=0, atol=1e-12)
    assert first["value"].sum() == pytest.approx(value[tuple(players)] - value[()], abs=1e-12)
    assert found.exact
    assert found.evaluations == 2 ** len(players)


def test_each_coalition_is_predicted_once(monkeypatch):
    """So the time is that of ``test --absent all``: nobody needs no prediction."""
    module, data = ready(Blobs(batch_size=7))
    calls = []
    output_of = module.output_of
    monkeypatch.setattr(module, "output_of", lambda *values: calls.append(1) or output_of(*values))
    contribution.by_absence(module, data.test_dataloader(), data.train_dataloader(), resamples=20)
    assert len(calls) == 2**3 - 1


def test_twelve_parties_are_exact():
    """A game with a known answer: weights, and a prize that the pair 0 and 5 gets."""
    players = tuple(range(12))
    weights = np.random.default_rng(0).normal(size=12)
    values = {
        coalition: np.array([weights[list(coalition)].sum() + (0 in coalition and 5 in coalition)])
        for coalition in shapley.coalitions_of(players, None)
    }
    assert shapley.orders_of(players, 0) is None
    expected = weights + 0.5 * np.isin(players, [0, 5])
    np.testing.assert_allclose(shapley.shapley(values, players, None)[0][:, 0], expected, rtol=0, atol=1e-12)


def test_more_than_twelve_parties_are_sampled_with_their_error():
    players = tuple(range(14))
    orders = shapley.orders_of(players, 3)
    assert orders == shapley.orders_of(players, 3) != shapley.orders_of(players, 4)
    weights = np.random.default_rng(1).normal(size=14)
    coalitions = shapley.coalitions_of(players, orders)
    assert len(set(coalitions)) == len(coalitions) <= shapley.ORDERS * 13 + 2
    values = {one: np.array([weights[list(one)].sum() + 10.0 * (0 in one and 5 in one)]) for one in coalitions}
    shares, errors = shapley.shapley(values, players, orders)
    first = np.array([order.index(0) < order.index(5) for order in orders])
    expected = weights.copy()
    expected[0] += 10 * (~first).mean()
    expected[5] += 10 * first.mean()
    np.testing.assert_allclose(shares[:, 0], expected, atol=1e-12)
    assert errors[0, 0] == pytest.approx(10 * first.std(ddof=1) / np.sqrt(len(orders)))
    np.testing.assert_allclose(np.delete(errors[:, 0], [0, 5]), 0, atol=1e-12)
    assert shares[:, 0].sum() == pytest.approx(weights.sum() + 10)


def test_intervals_are_quantiles_over_resampled_records():
    """Of one party beside the active one: the difference of two accuracies on the same draws of records."""
    module, data = ready(Blobs(batch_size=7), active=0)
    found = contribution.by_absence(module, data.test_dataloader(), data.train_dataloader(), resamples=50).table
    again = contribution.by_absence(module, data.test_dataloader(), data.train_dataloader(), resamples=50).table
    pd.testing.assert_frame_equal(found, again)
    records = absence.embed(module, data.test_dataloader())
    right = {}
    for coalition in ((), (1,), (2,), (1, 2)):
        z = torch.stack([records.h[m] for m in (0, *coalition)]).mean(0)
        right[coalition] = (module.top(z).argmax(1) == records.labels).numpy()
    shares = []
    for draw in contribution.resampled(len(records.labels), 50, module.seed):
        v = {coalition: own[draw.numpy()].mean() for coalition, own in right.items()}
        shares.append((v[1,] - v[()]) / 2 + (v[1, 2] - v[2,]) / 2)
    low, high = np.quantile(shares, [0.025, 0.975])
    assert found["low"].iloc[0] == pytest.approx(low, abs=1e-6)
    assert found["high"].iloc[0] == pytest.approx(high, abs=1e-6)
    assert found["low"].iloc[0] <= found["value"].iloc[0] <= found["high"].iloc[0]


def test_values_without_any_party_are_the_mean_label():
    module, data = ready(Values(batch_size=7))
    table = contribution.by_absence(module, data.test_dataloader(), data.train_dataloader()).table
    error = data.records("test").labels - data.records("train").labels.mean()
    nobody = table.set_index("metric")["nobody"]
    assert nobody["test/mae"].iloc[0] == pytest.approx(error.abs().mean().item(), rel=1e-5)


def test_records_that_nobody_predicts_count_with_the_prediction_without_features():
    module, data = ready(Blobs(batch_size=7), LocalVFL)
    table = contribution.by_absence(module, data.test_dataloader(), data.train_dataloader()).table
    assert set(table["party"]) == {0, 1, 2}
    table = table.set_index("party")
    assert table["value"][1] == pytest.approx(0, abs=1e-12)
    assert table["value"][2] == pytest.approx(0, abs=1e-12)
    assert table["value"][0] == pytest.approx(table["everybody"][0] - majority(data), abs=1e-6)


def test_an_ensemble_is_measured():
    module, data = ready(Blobs(batch_size=7), EnsembleVFL)
    assert len(contribution.by_absence(module, data.test_dataloader(), data.train_dataloader()).table)


def test_a_permuted_column_is_that_of_a_permutation_by_hand():
    module, data = ready(Blobs(batch_size=7))
    names = ["c3", "c4", "c5"]
    table = contribution.importance(module, data.test_dataloader(), 1, names, repeats=2)
    x = list(data.records("test").rows(torch.arange(18)))
    labels = data.records("test").labels

    def accuracy(features):
        z = torch.stack([module.bottoms.one(m, own) for m, own in enumerate(features)]).mean(0)
        return (module.top(z).argmax(1) == labels).float().mean().item()

    for position, name in enumerate(names):
        drops = []
        for repeat in range(2):
            order = permutation(len(labels), module.seed, "importance", 1, position, repeat)
            changed = x[1].clone()
            changed[:, position] = changed[torch.from_numpy(order), position]
            drops.append(accuracy(x) - accuracy([x[0], changed, x[2]]))
        row = table[table["column"] == name].iloc[0]
        assert row["value"] == pytest.approx(np.mean(drops), abs=1e-6)
        assert row["standard_error"] == pytest.approx(abs(drops[0] - drops[1]) / 2, abs=1e-6)


def test_pictures_have_no_columns():
    module, data = ready(Digits())
    with pytest.raises(ConfigurationError, match="party 0 are no table; name a party with columns"):
        contribution.importance(module, data.test_dataloader(), 0, [])
