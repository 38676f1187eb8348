"""A data set of one's own that loads something else than it should."""

from typing import Any

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import Digits
from lightning_vfl.datamodules.records.checks import check_split
from lightning_vfl.datamodules.records.layout import Layout
from lightning_vfl.datamodules.records.records import Split
from lightning_vfl.errors import ConfigurationError

X: Any
Y: Any
X, Y, IDS = torch.zeros(4, 6), torch.tensor([0, 1, 0, 1]), np.arange(4)

WRONG = {
    "whole numbers": (Split(X.long(), Y, IDS), "of the train records are torch.int64; give a tensor of float32"),
    "numpy": (Split(X.numpy(), Y, IDS), "features of the train records are ndarray; give a tensor of float32"),
    "columns": (Split(X[:, :5], Y, IDS), "have 5 numbers for each record, the layout has 6; correct load or layout"),
    "ids": (Split(X, Y, IDS[:3]), "4 train records have 3 ids; give each record one id"),
    "real classes": (Split(X, Y.float(), IDS), "labels of the train records are torch.float32; give a tensor of int64"),
    "numpy labels": (Split(X, Y.numpy(), IDS), "labels of the train records are ndarray; give a tensor of int64"),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_forms_are_refused_in_one_line(name):
    split, message = WRONG[name]
    with pytest.raises(ConfigurationError, match=message) as refused:
        check_split("train", split, Layout((6,)), 2)
    assert "\n" not in str(refused.value)


def test_names_for_other_columns_are_refused():
    with pytest.raises(ConfigurationError, match="layout has 6 numbers for each record and 2 names of columns; give"):
        check_split("train", Split(X, Y, IDS), Layout((6,), ("a", "b")), 2)


@pytest.mark.parametrize(
    ("split", "classes"),
    [
        (Split(X.double(), Y, IDS), 2),
        (Split(X.to(torch.uint8).view(4, 1, 2, 3), Y.int(), IDS.astype(str)), 2),
        (Split(X, None, IDS), 2),
        (Split(X, Y.float(), IDS), None),
    ],
    ids=["float64", "images", "no labels", "real labels"],
)
def test_these_forms_are_accepted(split, classes):
    check_split("train", split, Layout(tuple(split.features.shape[1:])), classes)


def test_a_data_set_checks_what_it_has_loaded():
    class Cut(Digits):
        def load(self, names):
            return {name: Split(s.features, s.labels, s.ids[:-1]) for name, s in super().load(names).items()}

    with pytest.raises(ConfigurationError, match=r"records have .* ids; give each record one id"):
        Cut().setup("fit")
