"""Quick versions of the attacks on the reported ε: above it the old way, refused or below it now."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from lightning_vfl.datamodules import Given, Standardise
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import Budget, Sigma
from tests.attacks import epsilon


def test_the_lower_bound_is_below_the_true_figure_and_not_far():
    """Randomised response with ε = 1, whose true figure is known."""
    draws, share = np.random.default_rng(0), np.e / (1 + np.e)
    first, second = ((draws.random(4000) < p).astype(float) for p in (1 - share, share))
    assert 0.7 < epsilon.lower_bound(first, second) <= 1.0
    assert epsilon.lower_bound(first, first[::-1].copy()) == 0.0


def test_rates_are_bounded_as_clopper_and_pearson_say():
    often, rare = np.repeat([1.0, 0.0], [40, 60]), np.repeat([1.0, 0.0], [3, 97])
    low = stats.binomtest(40, 100).proportion_ci(1 - 0.025, "exact").low
    high = stats.binomtest(3, 100).proportion_ci(1 - 0.025, "exact").high
    assert epsilon._bound_at(0.5, rare, often) == pytest.approx(np.log((low - epsilon.DELTA) / high))


@pytest.mark.slow
@pytest.mark.parametrize("attack", [epsilon.normaliser, epsilon.batch_norm])
def test_one_record_moves_others_through_fitted_statistics_only(attack):
    found = attack(150)
    assert found.reported == pytest.approx(1.7, abs=0.01)
    assert found.before > 2.5
    assert found.now < found.reported


@pytest.mark.slow
def test_a_record_moves_others_through_the_weights_which_the_figure_of_the_party_counts():
    found = epsilon.weights(120)
    assert found.reported == pytest.approx(0.96, abs=0.01)
    assert found.reported < found.before
    assert found.now < found.party


def test_answers_about_training_records_average_the_noise_away():
    found = epsilon.calls(2000, times=100)
    assert found.reported == pytest.approx(5.0)
    assert found.before > found.reported


def test_what_the_attacks_need_is_refused():
    data = partial(epsilon.TwoWorlds, 0.0)
    assert "Standardise is fitted to the training records" in epsilon.refusal(
        epsilon.protocol(Sigma(1.0)), data(Standardise())
    )
    assert "norm (BatchNorm1d) in the bottom of party 0" in epsilon.refusal(
        epsilon.protocol(Sigma(1.0), partial(nn.BatchNorm1d, epsilon.WIDTH)), data(Given())
    )
    module = epsilon.protocol(Budget(5.0))
    assert not epsilon.refusal(module, data(Given()))
    with pytest.raises(ConfigurationError, match=r"use trainer\.predict with a VerticalDataModule, or evaluate: plain"):
        module((torch.zeros(3, 1), torch.zeros(3, 1)))
