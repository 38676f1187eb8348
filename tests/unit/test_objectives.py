"""Class weights: torch's and scikit-learn's, from the labels of the training records alone, and kept in checkpoints."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import Binary, MultiClass, Regression
from tests.subjects import Blobs, Values, split, trainer

LOGITS = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3


def prepared(objective, classes):
    objective.prepare(classes)
    return objective


def test_weighted_cross_entropy_is_torch_s_divided_by_the_number_of_rows():
    weights = [0.5, 2.0, 1.25]
    found = prepared(MultiClass(class_weights=weights), 3).loss(LOGITS, LABELS)
    summed = nn.CrossEntropyLoss(torch.tensor(weights), reduction="sum")(LOGITS, LABELS)
    torch.testing.assert_close(found, summed / 12)


def test_weights_of_two_classes_are_torch_s_pos_weight():
    logits, labels = LOGITS[:, :1], LABELS % 2
    found = prepared(Binary(class_weights=[1, 3.5]), 2).loss(logits, labels)
    theirs = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.5))(logits.squeeze(1), labels.float())
    torch.testing.assert_close(found, theirs)


def test_weights_of_scikit_learn_are_an_array():
    weights = compute_class_weight("balanced", classes=np.arange(3), y=[0, 0, 1, 2])
    found = prepared(MultiClass(class_weights=weights), 3)
    torch.testing.assert_close(
        found.loss(LOGITS, LABELS), prepared(MultiClass(class_weights=[*weights]), 3).loss(LOGITS, LABELS)
    )
    assert found.needs_labels is None


@pytest.mark.parametrize("kind", [MultiClass, Binary])
def test_equal_weights_change_nothing_and_no_weights_add_no_state(kind):
    classes = 3 if kind is MultiClass else 2
    logits, labels = LOGITS[:, : classes if kind is MultiClass else 1], LABELS % classes
    plain, weighted = prepared(kind(), classes), prepared(kind(class_weights=[1] * classes), classes)
    torch.testing.assert_close(weighted.loss(logits, labels), plain.loss(logits, labels))
    assert not plain.state_dict()
    assert plain.identity == kind.__name__
    assert plain.needs_labels is None


def test_the_loss_of_a_joint_batch_is_the_mean_of_its_halves():
    """So DDP gives the gradients of the joint batch."""
    objective = prepared(MultiClass(class_weights=[0.2, 5.0, 1.0]), 3)
    halves = [objective.loss(LOGITS[part], LABELS[part]) for part in (slice(0, 6), slice(6, 12))]
    torch.testing.assert_close(objective.loss(LOGITS, LABELS), sum(halves) / 2)


class Uneven(Blobs):
    """Blobs of which most are of class 0."""

    def target(self, y):
        return y * (torch.arange(len(y)) % 4 == 0)


def test_balanced_weights_are_scikit_learn_s_of_the_training_labels_and_survive_a_checkpoint(tmp_path):
    module = split(objective=MultiClass(class_weights="balanced"))
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(module, datamodule=Uneven(batch_size=18))
    labels = fit.datamodule.records("train").labels.numpy()
    theirs = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(module.objective.class_weights.values, theirs, rtol=1e-6)
    fit.save_checkpoint(tmp_path / "m.ckpt")
    given = {"aggregator": Mean(), "bottom": module._bottom}
    again = SplitVFL.load_from_checkpoint(tmp_path / "m.ckpt", **given, objective=MultiClass(class_weights="balanced"))
    assert torch.equal(again.objective.class_weights.values, module.objective.class_weights.values)
    with pytest.raises(ConfigurationError, match=r"another objective .* with class_weights balanced there, Mul"):
        SplitVFL.load_from_checkpoint(tmp_path / "m.ckpt", **given, objective=MultiClass())


def test_the_command_line_takes_class_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = ["--config", "data/breast_cancer", "--config", "protocol/mean", "--trainer.fast_dev_run", "1"]
    for weights in ("balanced", "[1, 3.5]"):
        objective = ["--model.objective", "Binary", "--model.objective.class_weights", weights]
        done = run(
            ["fit", *recipe, *objective, "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
        )
        values = done.model.objective.class_weights.values
        assert values.tolist() == [1.0, 3.5] if weights != "balanced" else values[0] > 1 > values[1]


REFUSED = {
    "an unknown word": (lambda: MultiClass(class_weights="equal"), "class_weights 'equal' is unknown; use balanced or"),  # type: ignore[arg-type]
    "a weight of 0": (lambda: Binary(class_weights=[0, 1]), "must be numbers above 0; got [0.0, 1.0]; correct them"),
    "a mapping": (lambda: MultiClass(class_weights={1: 0.5, 2: 3.0}), "order of the classes; got {1: 0.5, 2: 3.0}"),  # type: ignore[arg-type]
    "one number": (lambda: MultiClass(class_weights=2.0), "must be a list with a number for each class, in the order"),  # type: ignore[arg-type]
    "a number too few": (lambda: prepared(MultiClass(class_weights=[1, 2]), 3), "has 2 numbers for 3 classes; give"),
    "a loss and weights": (
        lambda: MultiClass(nn.CrossEntropyLoss(), [1, 2]), "MultiClass got both a loss and class_weights; give the",
    ),
    "an empty class": (
        lambda: prepared(MultiClass(class_weights="balanced"), 3).take_labels(torch.tensor([0, 0, 0, 2])),
        "balanced has no weight for class 1, which no training record has; use another seed, or give numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_weights_are_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(ConfigurationError) as error:
        make()
    assert message in str(error.value)


class Far(Values):
    """The mean of the labels is 33 standard deviations from 0."""

    def target(self, y):
        return super().target(y) + 40.0


def fitted(folder, data, **settings):
    module, fit = split(objective=Regression(**settings)), trainer(folder, max_epochs=3)
    fit.fit(module, datamodule=data(batch_size=6))
    return module, fit


def test_standardised_labels_are_learnt_as_those_that_scikit_learn_standardises(tmp_path):
    """A training on labels a y + b has the weights of one on y: only the units differ."""
    own = StandardScaler().fit(Far(batch_size=6).load(("train",))["train"].labels[:, None].numpy())

    class ByHand(Far):
        def target(self, y):
            return torch.from_numpy(own.transform(super().target(y)[:, None].numpy())[:, 0])

    module, fit = fitted(tmp_path, Far, standardise=True)
    theirs, other = fitted(tmp_path, ByHand, standardise=False)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=2e-3, atol=2e-4)
    found, same = (
        torch.cat([one.values for one in t.predict(m, datamodule=t.datamodule)]).numpy()
        for t, m in ((fit, module), (other, theirs))
    )
    np.testing.assert_allclose(found, own.inverse_transform(same[:, None])[:, 0], atol=1e-4)
    labels = Far(batch_size=6).load(("test",))["test"].labels.numpy()
    metrics = fit.test(module, datamodule=Far(batch_size=6), verbose=False)[0]
    assert metrics["test/r2"] == pytest.approx(r2_score(labels, found), abs=1e-3)


def test_the_mean_and_the_deviation_are_in_checkpoints(tmp_path):
    module, fit = fitted(tmp_path, Far, standardise=True)
    fit.save_checkpoint(tmp_path / "m.ckpt")
    given = {"aggregator": Mean(), "bottom": module._bottom}
    again = SplitVFL.load_from_checkpoint(tmp_path / "m.ckpt", **given, objective=Regression(standardise=True))
    assert again.objective.shift == module.objective.shift != 0
    assert again.objective.scale == module.objective.scale != 1.0
    with pytest.raises(ConfigurationError, match=r"another objective .*Regression with standardise there, Regression"):
        SplitVFL.load_from_checkpoint(tmp_path / "m.ckpt", **given, objective=Regression(standardise=False))


def test_several_labels_are_standardised_one_by_one_and_constant_ones_are_only_moved():
    labels = torch.tensor([[1.0, 50.0, 7.0], [3.0, 70.0, 7.0]])
    objective = prepared(Regression(targets=3, standardise=True), None)
    objective.take_labels(labels)
    assert objective.predict(torch.tensor([[0.0, 1.0, 2.0]])).tolist() == [[2.0, 70.0, 9.0]]
    exact = torch.tensor([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]])
    assert objective.loss(exact, labels) == 0
    assert torch.equal(objective.losses(exact + 1, labels), torch.ones(2))


@pytest.mark.parametrize(("data", "standardise", "told"), [(Far, False, 1), (Far, True, 0), (Values, False, 0)])
def test_labels_that_are_learnt_slowly_are_told_of(tmp_path, data, standardise, told):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fitted(tmp_path, data, standardise=standardise)
    lines = [str(one.message) for one in found if "the labels have mean" in str(one.message)]
    assert len(lines) == told
    assert all("mean 40.5 and standard deviation 1.22, and a network that begins near 0" in line for line in lines)


def test_regression_has_no_classes():
    assert prepared(Regression(), None).needs_labels is None


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.uint8])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.25]])
def test_classes_may_have_any_dtype_of_whole_numbers(dtype, weights):
    objective = prepared(MultiClass(class_weights=weights), 3)
    assert torch.equal(objective.loss(LOGITS, LABELS.to(dtype)), objective.loss(LOGITS, LABELS))
    assert torch.equal(objective.losses(LOGITS, LABELS.to(dtype)), objective.losses(LOGITS, LABELS))
