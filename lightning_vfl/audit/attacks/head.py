"""A head that predicts classes from few records with known labels, as good as these records can make it."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sklearn.linear_model import LogisticRegression

STRENGTHS = tuple(10.0**power for power in range(-4, 4))  # inverse strengths of the L2 penalty
FOLDS = 5


def best_head(inputs: "NDArray[np.float64]", labels: "NDArray[np.int64]") -> "LogisticRegression":
    """A logistic regression on these records, whose penalty is the best of eight by cross-validation on them alone.

    With one record of a class there is nothing to validate on, and the penalty is that of scikit-learn.

    Args:
        inputs: (k, D), of about unit size.
        labels: (k,).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    head = LogisticRegression(max_iter=1000)
    folds = min(FOLDS, int(np.unique(labels, return_counts=True)[1].min()))
    if folds < 2:
        return head.fit(inputs, labels)
    search = GridSearchCV(head, {"C": STRENGTHS}, scoring="neg_log_loss", cv=folds)
    best: LogisticRegression = search.fit(inputs, labels).best_estimator_
    return best
