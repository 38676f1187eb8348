"""Law: calibration has the least log loss, and calibrates records that it was not fitted on."""

import numpy as np
import pytest
from scipy.optimize import minimize

from lightning_vfl.export.calibration import LEAST, by_class, calibrated, fit


def drawn(classes, records, slope, offset, seed=0):
    """Probabilities of a model, and labels with other probabilities: softmax(slope · log p + offset)."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(records, classes)) * 2
    given = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    scores = slope * np.log(given)
    scores[:, 1] += offset
    true = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return given, (random.random((records, 1)) > true.cumsum(1)[:, :-1]).sum(1)


def log_loss(given, labels, slope, offset):
    """The oracle's loss, record by record."""
    count = len(labels)
    total = 0.0
    for row, label in zip(given, labels, strict=True):
        scores = slope * np.log(np.maximum(row, 1e-7))
        scores[1] += offset
        logs = scores - np.log(np.exp(scores).sum())
        targets = np.full(len(row), 1 / (count + 2) / (len(row) - 1))
        targets[label] = (count + 1) / (count + 2)
        total -= targets @ logs
    return total / count


@pytest.mark.parametrize(("classes", "slope", "offset"), [(2, 0.4, 1.5), (2, 2.0, -0.5), (3, 0.5, 0.0), (10, 1.3, 0.0)])
def test_slope_and_offset_have_the_least_log_loss(classes, slope, offset):
    given, labels = drawn(classes, 300, slope, offset)
    loss = (
        (lambda one: log_loss(given, labels, *one)) if classes == 2 else (lambda one: log_loss(given, labels, *one, 0))
    )
    best = minimize(loss, [1.0, 0.0][: 1 + (classes == 2)], options={"gtol": 1e-7})
    found = fit(given, labels)
    np.testing.assert_allclose(found[: len(best.x)], best.x, atol=1e-4)
    assert classes == 2 or found[1] == 0
    expected = given ** found[0] * np.exp([found[1] * (c == 1) for c in range(classes)])
    np.testing.assert_allclose(calibrated(given, *found), expected / expected.sum(1, keepdims=True), rtol=1e-9)


def calibration_error(given, labels, bins=10):
    """The expected calibration error of the likeliest class, in bins of as many records each."""
    confidence, right = given.max(1), given.argmax(1) == labels
    parts = np.array_split(np.argsort(confidence), bins)
    return sum(len(part) * abs(confidence[part].mean() - right[part].mean()) for part in parts) / len(labels)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(("slope", "offset"), [(0.3, 0.8), (3.0, 0.0), (1.0, 0.0)], ids=["over", "under", "calibrated"])
def test_other_records_are_not_calibrated_worse(classes, slope, offset):
    given, labels = drawn(classes, 2000, slope, offset if classes == 2 else 0)
    others, other_labels = drawn(classes, 20_000, slope, offset if classes == 2 else 0, seed=1)
    before = calibration_error(others, other_labels)
    after = calibration_error(calibrated(others, *fit(given, labels)), other_labels)
    assert after < 0.02  # chance alone gives about 0.009
    assert slope == 1 or after < before / 4


def test_decisions_that_are_all_right_have_a_finite_slope():
    given = by_class(np.linspace(0, 1, 100, dtype=np.float32))
    slope, offset = fit(given, (np.arange(100) >= 50).astype(int))
    assert 1 < slope < 100
    assert abs(offset) < 0.5
    assert np.isfinite(calibrated(given, slope, offset)).all()


def test_too_few_records_and_a_model_that_is_worse_than_chance_have_none():
    given, labels = drawn(2, LEAST - 1, 1.0, 0.0)
    assert fit(given, labels) is None
    given, labels = drawn(2, 500, 1.0, 0.0)
    assert fit(given, 1 - labels) is None
