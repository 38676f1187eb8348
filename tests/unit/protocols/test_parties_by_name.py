"""What is printed about a party names it as the data do."""

import numpy as np
import pytest
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, LocalGaussian, Mean
from lightning_vfl.audit import FeatureReconstruction, LabelsByNorm
from lightning_vfl.audit.verdicts import label
from lightning_vfl.datamodules import Arrays, StandardiseViews
from lightning_vfl.errors import ConfigurationError
from tests.subjects import trainer

DRAW = np.random.default_rng(0)
LAB = DRAW.normal(size=(90, 3))
WORDS = DRAW.integers(0, 9, (90, 2))
LABELS = DRAW.integers(0, 2, 90)


class Normalised(nn.Sequential):
    """A bottom with batch norm."""

    def __init__(self, shape, width):
        super().__init__(nn.Linear(shape[0], width), nn.BatchNorm1d(width))


REFUSED = {
    "a bottom that cannot be built": (
        {"clinic": LAB, "lab": LAB},
        SplitVFL(Mean(), bottom_of={"lab": nn.Linear}),
        "the bottom of party lab cannot be built",
    ),
    "a bottom of another width": (
        {"clinic": LAB, "lab": LAB},
        SplitVFL(Mean(), bottom_of={"lab": lambda shape, width: nn.Linear(shape[0], width + 1)}),
        "the bottom Linear of party lab outputs",
    ),
    "whole numbers": (
        {"clinic": LAB, "shop": WORDS},
        SplitVFL(Mean(), bottom=lambda shape, width: nn.Linear(shape[0], width)),
        "the bottom of party shop does not take its features",
    ),
    "batch norm under accounting": (
        {"clinic": LAB, "lab": LAB},
        SplitVFL(LocalGaussian(), bottom_of={"lab": Normalised}),
        "1 (BatchNorm1d) in the bottom of party lab",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_names_the_party(name, tmp_path):
    arrays, module, line = REFUSED[name]
    settings = {"normaliser": StandardiseViews(public=True)} if "accounting" in name else {}
    with pytest.raises(ConfigurationError) as error:
        trainer(tmp_path, max_epochs=1).fit(module, datamodule=Arrays(arrays, LABELS, batch_size=16, **settings))
    assert line in str(error.value)


def test_the_line_about_columns_names_the_party(tmp_path):
    module = SplitVFL(Concat(), width=8)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Arrays({"clinic": LAB, "lab": LAB}, LABELS, batch_size=16))
    assert "8 numbers for the 3 columns of party clinic" in module.columns_told(2).numbers


def test_an_attack_names_the_party_that_it_attacks():
    names = ("clinic", "lab")
    assert label(FeatureReconstruction(party=0, known=9), names) == "FeatureReconstruction(party=clinic, known=9)"
    assert label(FeatureReconstruction(party=1, known=9), names) == "FeatureReconstruction(party=lab, known=9)"
    assert label(FeatureReconstruction(party=1, known=9), ("0", "1")) == "FeatureReconstruction(party=1, known=9)"
    assert label(LabelsByNorm(), names) == "LabelsByNorm"
