"""Batch norm has no variance of one record: a last batch of one is refused before training, wherever the norm is."""

import pytest
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP
from tests.subjects import Blobs, split, trainer


def normed(shape, width):
    return nn.Sequential(nn.Linear(shape[0], width), nn.BatchNorm1d(width))


def normed_top(width, outputs):
    return nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, outputs))


@pytest.fixture
def records():
    data = Blobs(batch_size=9)
    data.setup("fit")
    return len(data.records("train"))


@pytest.mark.parametrize("network", [{"bottom": normed}, {"top": normed_top}], ids=["bottom", "top"])
def test_a_last_batch_of_one_is_refused_before_training(network, records, tmp_path):
    rounds = []
    for size, advice in ((records - 1, "give drop_last: true, or another batch_size"), (1, "give a larger batch_size")):
        module = split(**network, width=4)
        module.on_train_batch_start = lambda *_: rounds.append(1)
        with pytest.raises(ConfigurationError, match=f"leave a last batch of one record, .*; {advice}"):
            trainer(tmp_path).fit(module, datamodule=Blobs(batch_size=size))
    assert not rounds


@pytest.mark.parametrize(
    ("settings", "bottom"), [({"drop_last": True}, normed), ({}, MLP)], ids=["left out", "no batch norm"]
)
def test_other_trainings_run(settings, bottom, records, tmp_path):
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(split(bottom=bottom, width=4), datamodule=Blobs(batch_size=records - 1, **settings))
    assert fit.global_step == (1 if settings else 2)
