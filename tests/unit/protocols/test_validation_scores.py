"""Scores of validation that the data do not define, and last batches of one record, are told before training."""

from functools import partial

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from sklearn.metrics import mean_absolute_error, roc_auc_score, root_mean_squared_error
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.at_server import AtServer
from lightning_vfl.objectives import Binary, Regression
from lightning_vfl.types import Seat
from tests.subjects import Blobs, Values, split, trainer


class TwoClasses(Blobs):
    """Of the 18 validation records none is positive."""

    @property
    def num_classes(self):
        return 2

    def target(self, y):
        y = (y == 0).long()
        y[54:72] = 0
        return y


class NoValidation(TwoClasses):
    def load(self, names):
        return {name: own for name, own in super().load(names).items() if name != "val"}


def test_auroc_without_a_positive_record_is_not_defined(tmp_path, told):
    module, fit = split(), trainer(tmp_path, max_epochs=1)
    fit.fit(module, datamodule=TwoClasses(batch_size=9))
    assert torch.isnan(fit.callback_metrics["val/auroc"])
    assert torch.isnan(fit.callback_metrics["val/average_precision"])
    assert (
        "the 18 validation records are all of class 0: val/auroc and val/average_precision are not defined"
        in "\n".join(told)
    )
    metric, draw = Binary().metrics(2)["auroc"], np.random.default_rng(0)
    scores, labels = draw.random(50), draw.integers(0, 2, 50)
    assert metric(torch.from_numpy(scores), torch.from_numpy(labels)) == pytest.approx(roc_auc_score(labels, scores))


def batch_norm(shape, width):
    return nn.Sequential(nn.Linear(shape[0], width), nn.BatchNorm1d(width))


BY_AUROC = {"callbacks": [EarlyStopping("val/auroc", mode="max")]}
REFUSED = {
    "one class": (TwoClasses, {}, BY_AUROC, "EarlyStopping chooses by val/auroc, which is not defined: the 18"),
    "no records": (NoValidation, {}, None, "ModelCheckpoint chooses by val/loss, and there are no validation records"),
    "one record": (partial(Blobs, batch_size=53), {"bottom": batch_norm}, {}, "54 training records in batches of 53"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_fail_or_be_missing_at_the_end_stops_before_training(name, tmp_path):
    data, settings, options, message = REFUSED[name]
    if options is None:
        options = {"callbacks": [ModelCheckpoint(tmp_path, monitor="val/loss")], "enable_checkpointing": True}
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path, **options).fit(split(**settings), datamodule=data())


class Begun(Exception):
    """The first round has begun."""


class Server(AtServer):
    """The server of a federation, without parties."""

    def __init__(self):
        pass

    def policy(self, module):
        raise NotImplementedError

    def step(self, module, batch, names):
        raise Begun


@pytest.mark.parametrize(
    ("data", "objective", "error"),
    [
        (TwoClasses, None, None),
        (Values, Regression(standardise=False), None),
        (Values, None, "Regression with standardise uses the labels of all training records, which between processes"),
        (TwoClasses, Binary(class_weights="balanced"), "Binary with class_weights balanced uses the labels of all"),
    ],
)
def test_a_server_judges_no_labels_that_a_party_has(data, objective, error, tmp_path, told):
    module, records = split(active=0, objective=objective), data(batch_size=9)
    records.take_seat(Seat(None), labels_at=0)
    module.place = Server()
    with pytest.raises(Begun if error is None else ConfigurationError, match=error):
        trainer(tmp_path).fit(module, datamodule=records)
    assert [line for line in told if "labels" in line or "validation records" in line] == []


class Far(Values):
    def target(self, y):
        return 1000 * super().target(y) + 50_000.0


def test_regression_far_from_unit_scale_is_standardised_and_errors_are_in_the_unit_of_the_label(tmp_path):
    module, fit, data = split(objective=Regression()), trainer(tmp_path, max_epochs=3), Far(batch_size=6)
    fit.fit(module, datamodule=data)
    labels = Far(batch_size=6).load(("train",))["train"].labels
    assert module.objective.shift.item() == pytest.approx(labels.mean().item())
    (scores,) = fit.test(module, datamodule=data, verbose=False)
    found = torch.cat([one.values for one in fit.predict(module, datamodule=data)]).numpy()
    truth = Far(batch_size=6).load(("test",))["test"].labels.numpy()
    assert scores["test/rmse"] == pytest.approx(root_mean_squared_error(truth, found), rel=1e-4)
    assert scores["test/mae"] == pytest.approx(mean_absolute_error(truth, found), rel=1e-4)
    assert scores["test/rmse"] < labels.std().item()
