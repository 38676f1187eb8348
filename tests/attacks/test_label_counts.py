"""Counts of labels in the clear give the labels to a party with enough columns, and noisy ones do not."""

from math import exp

import numpy as np
import pytest

from tests.attacks.label_counts import recovered


def test_thirty_columns_give_all_labels_of_two_hundred_records_in_the_clear() -> None:
    assert recovered("public", 200, 30) == 1.0
    assert 0.55 < recovered("public", 200, 3) < 0.9


@pytest.mark.slow
def test_noise_keeps_the_attack_below_what_its_epsilon_allows() -> None:
    for epsilon in (1.0, 3.0):
        mean = np.mean([recovered(epsilon, 200, 30, seed) for seed in range(20)])
        assert mean < exp(epsilon) / (1 + exp(epsilon))
    assert abs(np.mean([recovered(1.0, 200, 30, seed) for seed in range(20)]) - 0.5) < 0.04
