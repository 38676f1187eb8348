"""A model that predicts the same for every record is told in a fit, a test and a prediction; others are not."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from lightning_vfl.objectives import Binary, MultiClass, Regression
from lightning_vfl.protocols.scores import FAINT, Spread
from tests.subjects import Blobs, Values, split, trainer


class Same(nn.Module):
    """The same output for every record."""

    def __init__(self, width, outputs):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, value):
        return self.bias.expand(len(value), -1) + 0 * value.sum()


def warned(run):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in found if "predictions" in str(one.message)]


class ManyBlobs(Blobs):
    records_in_all = 270


class ManyValues(Values):
    records_in_all = 270


@pytest.mark.parametrize("kind", [ManyBlobs, ManyValues])
def test_a_constant_model_is_told_in_every_stage_and_a_trained_one_is_not(kind, tmp_path):
    constant, learnt = split(top=Same), split()
    for module, told in ((constant, 1), (learnt, 0)):
        data, t = kind(batch_size=18), trainer(tmp_path, max_epochs=3)
        stages = {
            "val": lambda t=t, module=module, data=data: t.fit(module, datamodule=data),
            "test": lambda t=t, module=module, data=data: t.test(module, datamodule=data, verbose=False),
            "predict": lambda t=t, module=module, data=data: t.predict(module, datamodule=data),
        }
        for split_name, run in stages.items():
            messages = warned(run)
            assert len(messages) == told, (split_name, messages)
            assert all(f"{split_name} predictions are alike (from " in message for message in messages)


def counted(predicted, labels=None):
    spread = Spread()
    for part in np.array_split(np.arange(len(predicted)), 3):
        own = None if labels is None else torch.from_numpy(labels[part])
        spread.add(torch.from_numpy(predicted[part]).float(), own)
    return spread


def test_what_is_told_of_predictions():
    draw = np.random.default_rng(0)
    noise, labels = draw.normal(size=400), draw.integers(0, 2, 400)
    names, binary = ("No", "Yes"), Binary()
    assert counted(0.3 + 1e-4 * noise).doubt(binary, names, None).startswith("are alike (from 0.299")
    assert counted(0.3 + 0.05 * np.tanh(noise)).doubt(binary, names, None) == ""  # without labels nothing more is known
    chance = counted(0.3 + 0.05 * np.tanh(noise), labels).doubt(binary, names, 0.51)
    assert chance == "decide for class 'No', so the scores are those of chance (AUROC 0.510)"
    assert counted(0.3 + 0.05 * np.tanh(noise), labels).doubt(binary, names, 0.8) == ""  # a rare class
    assert counted(0.5 + 0.05 * np.tanh(noise), labels).doubt(binary, names, 0.5) == ""  # decides for both
    three = np.stack([0.5 + 0.05 * np.tanh(noise), 0.3 - 0.05 * np.tanh(noise), np.full(400, 0.2)], axis=1)
    assert "decide for class 'a'" in counted(three, labels).doubt(MultiClass(), ("a", "b", "c"), None)
    assert counted(np.full(19, 0.3)).doubt(binary, names, None) == ""  # few records
    faint = "decide for class 'No' with nearly the same probability (of 'Yes': 0.48"
    assert counted(0.49 + 0.01 * np.tanh(noise)).doubt(binary, names, None).startswith(faint)
    assert counted(0.49 + 0.01 * np.tanh(noise[:49])).doubt(binary, names, None) == ""  # few records
    assert counted(0.49 + 0.01 * np.tanh(noise), labels).doubt(binary, names, 0.7).startswith(faint)
    assert counted(0.5 + 0.01 * np.tanh(noise)).doubt(binary, names, None) == ""  # decides for both
    three = np.stack([0.5 + 0.01 * np.tanh(noise), 0.3 - 0.01 * np.tanh(noise), np.full(400, 0.2)], axis=1)
    said = counted(three).doubt(MultiClass(), ("a", "b", "c"), None)
    assert said.startswith("decide for class 'a' with nearly the same probability (of 'a': 0.49")
    assert counted(np.empty((0, 3))).doubt(MultiClass(), ("a", "b", "c"), None) == ""
    assert counted(np.full(60, np.nan)).doubt(binary, names, None) == ""  # no prediction


def test_probabilities_that_are_nearly_the_same_promise_no_better_scores_than_chance():
    """Of a calibrated model whose log-odds deviate by 0.1, from labels that are drawn with its probabilities."""
    from sklearn.metrics import roc_auc_score

    draw = np.random.default_rng(0)
    probabilities = 1 / (1 + np.exp(-0.3 - FAINT * draw.normal(size=200_000)))
    area = roc_auc_score(draw.random(200_000) < probabilities, probabilities)
    assert 0.5 < area < 0.53


def test_alike_values_are_those_that_differ_little_in_the_labels_deviation():
    objective, noise = Regression(standardise=True), np.random.default_rng(0).normal(size=400)
    objective.take_labels(torch.from_numpy(5e4 + 10 * noise).float())
    assert counted(5e4 + 10 * noise).doubt(objective, (), None) == ""
    assert "are alike" in counted(5e4 + 1e-3 * noise).doubt(objective, (), None)
    assert "are alike" in counted(np.full(400, 3.5)).doubt(Regression(standardise=False), (), None)
