"""Labels that are real values: their mean and deviation, and R², all in float64."""

import torch
from torch import Tensor
from torchmetrics import R2Score


def moments_of(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation, (targets,) float64 each, of labels (N,) or (N, targets)."""
    values = labels.double().reshape(len(labels), -1)
    return values.mean(0), values.std(0, correction=0)


class RSquared(R2Score):
    """``torchmetrics.R2Score`` with sums in float64.

    torchmetrics adds up squares of labels in their own type. In float32, labels that are 1,000 standard deviations from
    0, such as years, then give an R² that is wrong in the first or second digit.

    Examples:
        >>> metric = RSquared()
        >>> metric.update(torch.tensor([3000.1, 3001.1]), torch.tensor([3000.0, 3001.0]))
        >>> round(float(metric.compute()), 3)
        0.96
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_dtype(torch.float64)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add predictions and labels, (B,) or (B, targets)."""
        super().update(preds.double(), target.double())
