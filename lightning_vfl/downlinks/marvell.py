"""Marvell: Gaussian noise that makes gradients of the two classes as alike as its power allows."""

from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.downlinks.base import GradientDownlink
from lightning_vfl.downlinks.draws import NormalDraws
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.draws import Draws
from lightning_vfl.types import RoundNames

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Marvell(GradientDownlink):
    r"""Noise for the gradients of each class, with covariances that minimise sumKL between the two classes.

    The gradients of class k in a batch are taken as :math:`\mathcal{N}(\bar g_k, u_k I)`. The noise of class k has
    covariance :math:`(\lambda_{1k} - \lambda_{2k}) \Delta \Delta^T / \|\Delta\|^2 + \lambda_{2k} I` with
    :math:`\Delta = \bar g_1 - \bar g_0`, and power :math:`P = s \|\Delta\|^2` on average over the batch.

    Shapes: gradients (B, D); labels (B,), 0 or 1.
    Units: ``power`` s is a ratio of squared norms.
    Guarantee: of all such covariances with this power, those with the smallest sumKL, the sum of both KL divergences
        between the noisy gradients of the classes, up to the tolerance of scipy's SLSQP (the tests
        compare with 20,000 random covariances).
    Not guaranteed: differential privacy; anything about gradients that are not Gaussian within a class, or about
        several rounds together. A batch with records of one class alone is sent as it is: there is nothing to make
        alike. It takes 2 to 20 ms a round.

    Args:
        power: s > 0; the paper tries 0.1 to 10.
        draws: ``system``: secret noise under a key from the operating system. ``seeded``: reproducible.

    Raises:
        ConfigurationError: for a power that is not above 0; for other than two classes; if scipy is not installed.

    Examples:
        >>> Marvell(power=4.0).event is None
        True

    References:
        Li, Sun, Yang, Gao, Zhang, Xie, Wang, Smith, "Label Leakage and Protection in Two-party Split Learning", ICLR
        2022, section 4.2, Theorem 2, and appendix A.4 (the four eigenvalues).
    """

    def __init__(self, power: float = 4.0, draws: Draws = "system") -> None:
        if not 0 < power < inf:
            raise ConfigurationError(f"power of Marvell must be a number above 0; got {power}")
        self.power = power
        self._draws = NormalDraws(draws)

    def prepare(self, num_classes: int | None, outputs: int) -> None:
        if num_classes != 2:
            raise ConfigurationError(
                f"Marvell makes two classes alike, and the data report num_classes = {num_classes}; use "
                "GaussianGradients or RandomizedResponse"
            )

    def protect(self, grad: Tensor, labels: Tensor, names: RoundNames, first: int) -> Tensor:
        noise = self._draws.rows(len(grad), grad.shape[1] + 1, names, first)  # drawn in every round, needed or not
        positive, g = labels.to(grad.device) == 1, grad.to(torch.float64)
        if bool(positive.all()) or not bool(positive.any()):
            return grad
        means = [g[~positive].mean(0), g[positive].mean(0)]
        difference = means[1] - means[0]
        gap, width = float(difference.square().sum()), grad.shape[1]
        if gap == 0.0:
            return grad
        spreads = [
            float((g[where] - mean).square().sum(1).mean()) / width
            for where, mean in zip((~positive, positive), means, strict=True)
        ]
        share = float(positive.double().mean())
        first0, rest0, first1, rest1 = eigenvalues(width, gap, spreads[0], spreads[1], share, self.power * gap)
        along, sideways = noise[:, :1].to(g), noise[:, 1:].to(g)
        one = torch.where(positive, (first1 - rest1) ** 0.5, (first0 - rest0) ** 0.5)[:, None]
        other = torch.where(positive, rest1**0.5, rest0**0.5)[:, None]
        sent: Tensor = g + one * along * (difference / gap**0.5) + other * sideways
        return sent.to(grad.dtype)

    @property
    def event(self) -> None:
        return None

    def claim(self) -> str:
        return f"noise of power {self.power:g} makes gradients of the two classes alike (Marvell); no ε is claimed"


def eigenvalues(
    width: int, gap: float, spread0: float, spread1: float, share: float, power: float
) -> tuple[float, float, float, float]:
    """The eigenvalues of the noise of both classes with the smallest ``sum_kl`` within the power.

    Args:
        width: D.
        gap: the squared distance of the mean gradients, above 0.
        spread0: variance of a number of a gradient of class 0.
        spread1: the same of class 1.
        share: of the records of class 1, between 0 and 1.
        power: the mean squared norm of the noise.

    Returns:
        Of class 0 the eigenvalue along the difference and the others, then of class 1.
    """
    import numpy as np
    from scipy.optimize import minimize

    rest = width - 1
    u, v, budget = spread0 / gap, spread1 / gap, power / gap
    floor = 1e-9  # of variances, relative to the gap: a class without any spread has an infinite divergence
    cost = np.array([1 - share, (1 - share) * rest, share, share * rest])

    def divergence(x: "NDArray[np.float64]") -> float:
        return sum_kl(width, 1.0, max(u, floor), max(v, floor), *map(float, x))

    constraints = [
        {"type": "ineq", "fun": lambda x: budget - float(cost @ x), "jac": lambda x: -cost},
        {"type": "ineq", "fun": lambda x: x[0] - x[1], "jac": lambda x: np.array([1.0, -1.0, 0.0, 0.0])},
        {"type": "ineq", "fun": lambda x: x[2] - x[3], "jac": lambda x: np.array([0.0, 0.0, 1.0, -1.0])},
    ]
    starts = [np.array([budget, 0.0, budget, 0.0])]
    if rest:
        even = budget / width
        starts.append(np.full(4, even))
        wider = min(budget / (rest * ((1 - share) if u < v else share)), abs(u - v))  # equal spreads first
        starts.append(np.array([wider, wider, 0, 0]) if u < v else np.array([0, 0, wider, wider]))
    found = [
        minimize(
            divergence,
            x,
            bounds=[(0.0, None)] * 4,
            constraints=constraints,
            method="SLSQP",
            options={"ftol": 1e-10, "maxiter": 100},
        )
        for x in starts
    ]
    allowed = [one.x for one in found if cost @ one.x <= budget * (1 + 1e-6)] or starts
    best = np.maximum(min(allowed, key=divergence), 0.0)
    first0, rest0, first1, rest1 = (float(x) * gap for x in best)
    return max(first0, rest0), rest0, max(first1, rest1), rest1


def sum_kl(
    width: int, gap: float, u: float, v: float, first0: float, rest0: float, first1: float, rest1: float
) -> float:
    """The sum of both KL divergences between the noisy gradients of the two classes.

    ``u`` and ``v`` are the variances of the gradients of class 0 and 1 before the noise, the others as returned by
    ``eigenvalues``.
    """
    sideways = (rest0 + u) / (rest1 + v) + (rest1 + v) / (rest0 + u)
    along = (first0 + u + gap) / (first1 + v) + (first1 + v + gap) / (first0 + u)
    return 0.5 * ((width - 1) * sideways + along) - width
