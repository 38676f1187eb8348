"""Linear maps from known records, and their guesses for all others."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALPHAS = np.logspace(-4, 6, 21)


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
    known: NDArray[np.float64] = x[train.numpy()]
    scale = known.std(0)
    useful = scale > 1e-9 * max(1.0, float(scale.max(initial=0.0)))
    if not useful.any():
        return torch.from_numpy(np.broadcast_to(y.mean(0), (len(x), y.shape[1])).copy())
    x, known = ((part[:, useful] - known[:, useful].mean(0)) / scale[useful] for part in (x, known))
    varying = y.std(0) > 1e-9
    guesses = np.broadcast_to(y.mean(0), (len(x), y.shape[1])).copy()
    if varying.any():
        model = RidgeCV(ALPHAS, alpha_per_target=True).fit(known, y[:, varying])
        guesses[:, varying] = model.predict(x).reshape(len(x), -1)
    return torch.from_numpy(guesses)
