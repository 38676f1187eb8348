"""Linear maps from known records, and their guesses for all others."""

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.audit.attack import Guesses, Known, NothingSeen, Seen, asked_for
from lightning_vfl.audit.transcript import places

ALPHAS = np.logspace(-4, 6, 21)
FEWEST = 10  # known records


def guesses_from_known(
    seen: Seen, known: Known, ids: Tensor, rows: Tensor, saw: str, known_as: str = "known records"
) -> Guesses:
    """Guesses for all records ``ids`` from their rows (n, D), by ``ridge_guesses`` from the known records.

    Raises:
        NothingSeen: if the rows of fewer than ten known records are seen.
    """
    place = places(ids, seen.records)[known.ids]
    there = place >= 0
    count = int(there.sum())
    if count < FEWEST:
        raise NothingSeen(f"the messages of fewer than ten {known_as} are seen")
    guesses = ridge_guesses(rows, asked_for(known.features)[there], place[there])
    return Guesses(ids, guesses, f"{saw}, {count:,} {known_as}")


def ridge_guesses(inputs: Tensor, targets: Tensor, train: Tensor) -> Tensor:
    """(n, W) guesses for all rows from a ridge regression on the rows ``train`` (k,), with the best of 21 strengths.

    The strength is chosen for each target by the generalised cross-validation on the known rows alone.

    Args:
        inputs: (n, D); columns are standardised by the known rows.
        targets: (k, W).
        train: positions of the known rows.
    """
    from sklearn.linear_model import RidgeCV

    x, y = inputs.double().numpy(), targets.double().numpy()
    known = x[train.numpy()]
    scale = known.std(0)
    useful = scale > 1e-9 * max(1.0, float(scale.max(initial=0.0)))
    varying = y.std(0) > 1e-9
    guesses = np.broadcast_to(y.mean(0), (len(x), y.shape[1])).copy()
    if useful.any() and varying.any():
        mean = known[:, useful].mean(0)
        scale = scale[useful]
        model = RidgeCV(ALPHAS, alpha_per_target=True).fit((known[:, useful] - mean) / scale, y[:, varying])
        guesses[:, varying] = model.predict((x[:, useful] - mean) / scale).reshape(len(x), -1)
    return torch.from_numpy(guesses)
