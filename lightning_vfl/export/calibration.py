"""How often a decision is right: predictions of the server's half, calibrated for the parties that are absent.

The model's probability p of a class becomes softmax(slope · log p + offset), with an offset for the second of two
classes alone. For two classes this is Platt's sigmoid on the log-odds (Platt 1999, "Probabilistic outputs for support
vector machines", section 2.1); for more classes it is a temperature of 1 / slope (Guo et al. 2017, "On calibration of
modern neural networks", section 4.2).
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST = 50  # records; from fewer, slope and offset would be noise
_SMALLEST = 1e-7  # probability, of float32 beside 1
_STEPS = 100  # of Newton's method; about 8 are needed
_DONE = 1e-10  # the norm of a gradient


def by_class(probabilities: "NDArray[np.floating]") -> "Floats":
    """(N, C) probabilities of the classes, from these or from (N,) those of the second of two."""
    exact = probabilities.astype(np.float64)
    return np.column_stack([1 - exact, exact]) if exact.ndim == 1 else exact


def calibrated(probabilities: "Floats", slope: float, offset: float) -> "Floats":
    """(N, C) calibrated probabilities of (N, C) probabilities."""
    return _softmax(_terms(probabilities) @ _parameters(slope, offset, probabilities.shape[1]))


def fit(probabilities: "Floats", labels: "NDArray[np.integer]") -> tuple[float, float] | None:
    """The slope and the offset with the least log loss.

    Each of the N labels counts with (N + 1) / (N + 2), and the other classes share the rest. So the slope is finite
    where all decisions are right, as with Platt's targets (section 2.2), which have the records of a class in the place
    of N: of many classes, each with few records, they would make the slope much too small.

    Args:
        probabilities: (N, C) of the model.
        labels: (N,) the numbers of the classes.

    Returns:
        Slope and offset; None: there are fewer than 50 records, or the right class does not get likelier with the
        model's probability.
    """
    records, classes = probabilities.shape
    if records < LEAST:
        return None
    targets = np.full(probabilities.shape, 1 / ((records + 2) * (classes - 1)))
    targets[np.arange(records), labels] = (records + 1) / (records + 2)
    terms = _terms(probabilities)
    found = _parameters(1.0, 0.0, classes)
    for _ in range(_STEPS):
        weights = _softmax(terms @ found)
        gradient = np.einsum("nc,nck->k", weights - targets, terms) / records
        if np.linalg.norm(gradient) < _DONE:
            break
        centred = terms - np.einsum("nc,nck->nk", weights, terms)[:, None]
        curvature = np.einsum("nc,nck,ncl->kl", weights, centred, centred) / records
        step = np.linalg.solve(curvature + 1e-12 * np.eye(len(found)), gradient)
        found = _lower(terms, targets, found, step)
    slope, offset = float(found[0]), float(found[1]) if len(found) > 1 else 0.0
    return (slope, offset) if slope > 0 else None


def _lower(terms: "Floats", targets: "Floats", found: "Floats", step: "Floats") -> "Floats":
    """The parameters after a step of Newton's method, which is halved while it makes the log loss greater."""
    before = _loss(terms, targets, found)
    for halvings in range(30):
        after: Floats = found - step / 2**halvings
        if _loss(terms, targets, after) <= before:
            return after
    return found


def _loss(terms: "Floats", targets: "Floats", found: "Floats") -> float:
    scores = terms @ found
    return float(np.mean(np.logaddexp.reduce(scores, axis=1) - (targets * scores).sum(1)))


def _terms(probabilities: "Floats") -> "Floats":
    """(N, C, K) what slope and offset are multiplied by."""
    logs = np.log(np.maximum(probabilities, _SMALLEST))
    if probabilities.shape[1] > 2:
        return logs[:, :, None]
    return np.stack([logs, np.broadcast_to([0.0, 1.0], logs.shape)], axis=2)


def _parameters(slope: float, offset: float, classes: int) -> "Floats":
    return np.array([slope, offset] if classes == 2 else [slope])


def _softmax(scores: "Floats") -> "Floats":
    exponentials: Floats = np.exp(scores - scores.max(1, keepdims=True))
    exponentials /= exponentials.sum(1, keepdims=True)
    return exponentials
