"""The data that ship with scikit-learn, against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits

from lightning_vfl.datamodules import BreastCancer, Digits, Grid, Unchanged

SIZES = {Digits: (1257, 180, 360), BreastCancer: (398, 57, 114)}


@pytest.fixture(params=SIZES, ids=lambda c: c.__name__)
def data(request):
    data = request.param(normaliser=Unchanged())
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def test_the_splits_are_disjoint_and_cover_the_data(data):
    sizes = tuple(len(data.records(name)) for name in ("train", "val", "test"))
    assert sizes == SIZES[type(data)]
    ids = np.concatenate([data.records(name).ids for name in ("train", "val", "test")])
    assert sorted(ids.tolist()) == list(range(sum(sizes)))


def test_records_are_those_of_their_ids(data):
    x, y = (load_digits if isinstance(data, Digits) else load_breast_cancer)(return_X_y=True)
    for name in ("train", "val", "test", "predict"):
        records = data.records(name)
        assert torch.equal(records.features, torch.from_numpy(x[records.ids].astype(np.float32)))
        assert records.labels.tolist() == y[records.ids].tolist()


def test_classes_are_spread_evenly(data):
    shares = [np.bincount(data.records(name).labels) / len(data.records(name)) for name in ("train", "val", "test")]
    assert np.ptp(np.stack(shares), axis=0).max() < 0.02


def test_shapes_of_the_usual_cut():
    assert Digits().party_shapes == ((1, 2, 8),) * 4
    assert BreastCancer().party_shapes == ((10,),) * 3
    assert Digits(Grid(2, 2)).party_shapes == ((1, 4, 4),) * 4
    assert (Digits().num_classes, BreastCancer().num_classes) == (10, 2)


def test_the_seed_names_the_split():
    ids = []
    for seed in (0, 0, 1):
        data = Digits(seed=seed)
        data.setup("fit")
        ids.append(data.records("train").ids.tolist())
    assert ids[0] == ids[1] != ids[2]
