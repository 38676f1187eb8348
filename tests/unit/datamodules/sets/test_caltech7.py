"""Caltech101-7 from small files in the published format, against what was written into them."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import Caltech7, Unchanged
from lightning_vfl.errors import ConfigurationError

from ..miniature import CALTECH, OBJECTS, cell_array, views, write_caltech

SPLITS = ("train", "val", "test")
FILE = "Caltech101-7.mat"


def open_data(folder, **settings: Any):
    data = Caltech7(data_dir=folder, **{"normaliser": Unchanged()} | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_views_come_as_found_and_are_named_by_their_widths(tmp_path, seed):
    names = list(CALTECH) if seed is None else random.Random(seed).sample(list(CALTECH), 6)
    write_caltech(tmp_path, names)
    arrays = views(70, names, CALTECH)
    data = open_data(tmp_path)
    assert data.num_classes == 7
    assert data.layout.view_names == tuple(names)
    assert data.party_shapes == tuple((CALTECH[name],) for name in names)
    assert data.layout.columns[-1] == f"{names[-1]}.{CALTECH[names[-1]] - 1}"
    for name in (*SPLITS, "predict"):
        records = data.records(name)
        for own, array in zip(records.rows(torch.arange(len(records))), arrays.values(), strict=True):
            np.testing.assert_array_equal(own.numpy(), array[records.ids])
        np.testing.assert_array_equal(records.labels.numpy(), OBJECTS[records.ids])
    assert sorted(np.concatenate([data.records(name).ids for name in SPLITS])) == list(range(70))


def test_the_classes_are_reported_once(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("lightning_vfl.datamodules.sets.view_form.rank_zero_info", said.append)
    write_caltech(tmp_path)
    open_data(tmp_path)
    assert said == ["Caltech7: 70 records in 6 views (gabor, moments, centrist, hog, gist, lbp), 7 classes of 6 to 20"]


def test_no_file(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        open_data(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} holds no data of Caltech7; put '{FILE}', which https://github.com/yeqinglee/mvdata links to, "
        "there, or name another folder with data_dir or LIGHTNING_VFL_DATA"
    )


VIEWS = list(views(70, tuple(CALTECH), CALTECH).values())
REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a view missing": (
        {"X": cell_array(VIEWS[:5])},
        r"the views of .* are 48, 40, 254, 1984, 512 columns wide; use a file with one view of each width: 48 \(gab",
    ),
    "twenty classes": (
        {"Y": np.arange(70) % 20 + 1},
        "the labels of .* have 20 classes instead of 7; use the file of Caltech101-7",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_other_files_are_refused(tmp_path, refusal):
    variables, message = REFUSALS[refusal]
    path = write_caltech(tmp_path, **variables)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(path) in str(error.value)
