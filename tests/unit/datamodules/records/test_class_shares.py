"""What is told about classes before training."""

import numpy as np
import pytest
from torch import from_numpy
from torchmetrics.functional.classification import binary_average_precision

from lightning_vfl.datamodules.records.class_shares import doubts_about_classes


def doubts(classes, labels):
    told = doubts_about_classes("y", classes, labels, {"train": np.arange(len(labels))})
    return [doubt for doubt in told if "average_precision" in doubt]


@pytest.mark.parametrize("rare", [0, 1])
def test_an_average_precision_that_chance_makes_great_is_doubted(rare):
    """That of the second class; random scores have its share of the records."""
    draw = np.random.default_rng(0)
    labels = np.where(np.arange(5000) % 50 == 0, rare, 1 - rare)
    by_chance = binary_average_precision(from_numpy(draw.random(5000)), from_numpy(labels))
    assert bool(doubts(["fraud", "ok"], labels)) == bool(by_chance > 0.9)


def test_the_doubt_names_both_classes_and_the_remedy():
    (doubt,) = doubts(["fraud", "ok"], np.array([0] + [1] * 49))
    assert "will be that of class 'ok', near 1 by chance, because 98 % of the records have it" in doubt
    assert doubt.endswith("rename the classes so that 'fraud' is the last in sorted order")
    assert not doubts(["a", "b", "c"], np.array([0, 2] + [1] * 98))
