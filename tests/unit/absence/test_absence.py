"""Tests without some parties: against enumeration by hand, sklearn and numpy."""

from functools import partial
from itertools import combinations
from math import prod

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from lightning_vfl import absence
from lightning_vfl.absence.asked import by_probability, subsets_of
from lightning_vfl.absence.stand_ins import Moments
from lightning_vfl.aggregators import LagrangeCoded, MaskedSum, Mean, PoissonBinomial
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.protocols import EnsembleVFL, LocalVFL
from tests.subjects import Blobs, split

WIDTHS = (3, 2, 4)


def ready(aggregator=None, **settings):
    module, data = split(aggregator or Mean(), **settings), Blobs(batch_size=7)
    data.setup("test")
    module.build_for(data)
    return module.eval(), data


def accuracy_by_hand(module, data, there):
    """The mean of the embeddings that are there, record by record."""
    right = total = 0
    for batch in data.test_dataloader():
        h = [bottom(x) for bottom, x in zip(module.bottoms.parties, batch.features, strict=True)]
        for row in range(len(batch.labels)):
            z = torch.stack([h[m][row] for m in there]).mean(0)
            right += int(module.top(z[None]).argmax() == batch.labels[row])
            total += 1
    return right / total


def test_every_subset_is_measured_as_if_the_others_were_never_there():
    module, data = ready()
    table = absence.measure(module, data.test_dataloader(), absence.parse("all")).table
    own = table[(table["what"] == "subset") & (table["metric"] == "test/accuracy")].set_index("absent")["value"]
    assert len(own) == 2**3 - 1
    for k in range(3):
        for absent in combinations(range(3), k):
            there = [m for m in range(3) if m not in absent]
            assert own[" ".join(map(str, absent))] == pytest.approx(accuracy_by_hand(module, data, there))


def test_rows_by_number_and_by_probability_are_means_over_all_subsets():
    module, data = ready()
    found = absence.measure(module, data.test_dataloader(), absence.parse("0.2,0.5"))
    table = found.table[found.table["metric"] == "test/accuracy"]
    value = {
        tuple(map(int, one.split())): v
        for one, v in table[table["what"] == "subset"][["absent", "value"]].itertuples(index=False)
    }
    numbers = table[table["what"] == "number"].set_index("number")["value"]
    for k in range(3):
        assert numbers[k] == pytest.approx(np.mean([v for s, v in value.items() if len(s) == k]))
    for p, mean in table[table["what"] == "probability"][["p", "value"]].itertuples(index=False):
        chance = {s: prod(p if m in s else 1 - p for m in range(3)) for s in value}
        assert mean == pytest.approx(sum(chance[s] * value[s] for s in value) / sum(chance.values()))
    assert found.exact
    assert (table["half_width"] == 0).all()


def test_above_twelve_parties_subsets_are_sampled():
    subsets, exact = subsets_of(absence.parse("all"), 14, None, 0)
    assert not exact
    sizes = [len(one) for one in subsets]
    assert [sizes.count(k) for k in range(14)] == [1, 14, *[32] * 11, 14]
    assert len(set(subsets)) == len(subsets)
    assert subsets == subsets_of(absence.parse("all"), 14, None, 0)[0]


def test_the_active_party_is_never_absent():
    subsets, _ = subsets_of(absence.parse("all"), 4, 2, 0)
    assert sorted(subsets) == sorted(s for k in range(4) for s in combinations((0, 1, 3), k))
    assert sum(by_probability(0.5, 3, 3)) == pytest.approx(1)


def test_regressed_is_sklearns_ridge():
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(5, sum(WIDTHS), generator=generator)
    train = (torch.randn(200, 5, generator=generator) @ mix + 0.1 * torch.randn(200, 9, generator=generator)).double()
    test = (torch.randn(20, 5, generator=generator) @ mix).double()
    moments = Moments(WIDTHS)
    for part in train.split(64):
        moments.add(part.split(WIDTHS, 1))
    there = torch.tensor([True, False, True])
    filled = absence.Regressed(2.0).fill(test.split(WIDTHS, 1), there, moments)
    seen = [0, 1, 2, 5, 6, 7, 8]
    ridge = Ridge(alpha=2.0).fit(train[:, seen].numpy(), train[:, 3:5].numpy())
    np.testing.assert_allclose(filled.h[1].numpy(), ridge.predict(test[:, seen].numpy()), rtol=1e-8, atol=1e-8)
    assert filled.roll.filled.tolist() == [False, True, False]
    means = absence.MeanEmbedding().fill(test.split(WIDTHS, 1), there, moments).h[1]
    np.testing.assert_allclose(means.numpy(), np.tile(train[:, 3:5].mean(0).numpy(), (20, 1)), rtol=1e-12)


def test_moments_far_from_zero_are_those_of_numpy():
    train = 1e7 + torch.randn(300, sum(WIDTHS), generator=torch.Generator().manual_seed(0)).double()
    moments = Moments(WIDTHS)
    for part in train.split(64):
        moments.add(part.split(WIDTHS, 1))
    np.testing.assert_allclose(moments.scatter / 299, np.cov(train.numpy(), rowvar=False), rtol=1e-6, atol=1e-6)


def test_zeros_divide_a_mean_by_all_parties():
    module, data = ready()
    records = absence.embed(module, data.test_dataloader())
    there = torch.tensor([True, True, False])
    filled = absence.Zeros().fill(records.h, there, None)
    z = Mean().plain(filled.h, filled.roll)
    torch.testing.assert_close(z, (records.h[0] + records.h[1]) / 3)


def test_stand_ins_that_learn_are_measured_with_the_training_records():
    module, data = ready()
    data.setup("fit")
    for stand_in in (absence.MeanEmbedding(), absence.Regressed()):
        asked = absence.parse("[[0],[1,2]]")
        table = absence.measure(module, data.test_dataloader(), asked, stand_in, data.train_dataloader()).table
        assert table[table["metric"] == "test/accuracy"]["value"].between(0, 1).all()
        assert table["absent"].unique().tolist() == ["0", "1 2"]


def test_a_masked_sum_is_measured_over_the_parties_that_are_called():
    module, data = ready(MaskedSum(), evaluate="plain")
    assert len(absence.measure(module, data.test_dataloader(), absence.parse("[[0]]")).table)


@pytest.mark.parametrize("kind", [EnsembleVFL, LocalVFL])
def test_protocols_without_a_server_are_measured(kind):
    module, data = kind(width=5, seed=0), Blobs(batch_size=7)
    data.setup("test")
    module.build_for(data)
    table = absence.measure(module.eval(), data.test_dataloader(), absence.parse("all")).table
    own = table[table["what"] == "subset"].set_index("absent")
    left = own["left_out"] > 0
    assert left.index[left].unique().tolist() == ([] if kind is EnsembleVFL else ["0", "0 1", "0 2"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.0", "of at least 0 and below 1; got 1.0"),
        ("0.1,-1", "of at least 0 and below 1; got -1"),
        ("some", "all, probabilities"),
        ("[[]]", "all, probabilities"),
    ],
)
def test_other_texts_are_refused(text, words):
    with pytest.raises(ConfigurationError, match=words):
        absence.parse(text)


@pytest.mark.parametrize(
    ("text", "active", "words"),
    [
        ("[[7]]", None, "names party 7, but the parties are 0 to 3"),
        ("[[0,1,2,3]]", None, "leaves no party"),
        ("[[2]]", 2, "party 2, the active party"),
    ],
)
def test_parties_that_cannot_be_absent_are_refused(text, active, words):
    with pytest.raises(ConfigurationError, match=words):
        subsets_of(absence.parse(text), 4, active, 0)


def test_models_that_need_all_parties_are_refused_with_those_that_do_not():
    module, data = ready(LagrangeCoded(), evaluate="plain", bottom=partial(PolynomialNetwork, degree=2))
    with pytest.raises(ConfigurationError, match=r"LagrangeCoded codes .* Mean, Sum, Max, Concat"):
        absence.measure(module, data.test_dataloader(), absence.parse("all"))
    module, data = ready(MaskedSum(), evaluate="plain")
    with pytest.raises(ConfigurationError, match="does not show it; use Exclude or Zeros"):
        absence.measure(module, data.test_dataloader(), absence.parse("all"), absence.Regressed())


def test_predictions_without_noise_are_not_made_under_an_epsilon():
    """Through the protocol they would be charged; ``evaluate: plain`` says that embeddings were sent in the clear."""
    without = absence.PredictWithout(lambda: (1,), absence.Exclude())
    module, _ = ready(PoissonBinomial(beta=0.1, levels=2), evaluate="protocol")
    with pytest.raises(ConfigurationError, match="without the noise of PoissonBinomial, so its ε would not cover"):
        without.on_predict_start(None, module)
