"""Guesses without the protocol: from features that somebody holds anyway, with the same side knowledge."""

import torch
from torch import Tensor

from lightning_vfl.audit.attack import Known, cosines
from lightning_vfl.audit.attacks.regression import ridge_guesses


def from_own_features(own: Tensor, known: Known, classes: int) -> Tensor:
    """Label guesses (N,) or (N, C) from the attacker's own features (N, W).

    A logistic regression on the known records, if labels of all classes are known; the mean cosine with the known
    records of class 1, if only these are known; zeros, if no label is known.
    """
    from sklearn.linear_model import LogisticRegression

    x = ((own - own.mean(0)) / own.std(0).clamp(min=1e-9)).double()
    if known.labels is None or not len(known.ids):
        return torch.zeros(len(own), dtype=torch.float64)
    if len(torch.unique(known.labels)) < classes:
        return cosines(x, x[known.ids]).mean(1)
    model = LogisticRegression(max_iter=300).fit(x[known.ids].numpy(), known.labels.numpy())
    return torch.from_numpy(model.predict_proba(x.numpy()))


def from_other_columns(others: Tensor, known: Known) -> Tensor:
    """Guesses (N, W) of a party's features from the raw columns (N, V) of all other parties."""
    if known.features is None:
        raise TypeError("the known records have no features")
    return ridge_guesses(others, known.features, known.ids)
