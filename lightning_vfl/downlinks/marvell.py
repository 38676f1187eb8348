"""Marvell: Gaussian noise that makes gradients of the two classes as alike as its power allows."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.checks import positive
from lightning_vfl.downlinks.base import GradientDownlink
from lightning_vfl.downlinks.draws import NormalDraws
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.draws import Draws
from lightning_vfl.types import RoundNames

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Marvell(GradientDownlink):
    r"""Noise for the gradients of each class, with covariances that minimise sumKL between the two classes.

    The gradients of class k in a batch are taken as :math:`\mathcal{N}(\bar g_k, u_k I)`. The noise of class k has
    covariance :math:`(\lambda_{1k} - \lambda_{2k}) \Delta \Delta^T / \|\Delta\|^2 + \lambda_{2k} I` with
    :math:`\Delta = \bar g_1 - \bar g_0`, and power :math:`P = s \|\Delta\|^2` on average over the batch.

    Shapes: gradients (B, D); labels (B,), 0 or 1.
    Units: ``power`` s is a ratio of squared norms.
    Guarantee: of all such covariances with this power, those with the smallest sumKL, the sum of both KL divergences
        between the noisy gradients of the classes; the tests compare with 20,000 random covariances.
    Not guaranteed: differential privacy; anything about gradients that are not Gaussian within a class, or about
        several rounds together. A batch with records of one class alone is sent as it is: there is nothing to make
        alike. It takes about 2 ms a round.

    Args:
        power: s > 0; the paper tries 0.1 to 10.
        draws: ``system``: secret noise under a key from the operating system. ``seeded``: reproducible.

    Raises:
        ConfigurationError: for a power that is not above 0; for other than two classes.

    Examples:
        >>> Marvell(power=4.0).event is None
        True

    References:
        Li, Sun, Yang, Gao, Zhang, Xie, Wang, Smith, "Label Leakage and Protection in Two-party Split Learning", ICLR
        2022, section 4.2, Theorem 2, and appendix A.4 (the four eigenvalues).
    """

    def __init__(self, power: float = 4.0, draws: Draws = "system") -> None:
        self.power = positive("power of Marvell", power)
        self._draws = NormalDraws(draws)

    def prepare(self, num_classes: int | None, outputs: int) -> None:
        if num_classes != 2:
            raise ConfigurationError(
                f"Marvell makes two classes alike, and the data report num_classes = {num_classes}; use "
                "GaussianGradients or RandomizedResponse"
            )

    def protect(self, grad: Tensor, labels: Tensor, names: RoundNames, first: int) -> Tensor:
        noise = self._draws.rows(len(grad), grad.shape[1] + 1, names, first)  # drawn in every round, needed or not
        positive = labels.to(grad.device) == 1
        g = grad.to(torch.float64)
        if bool(positive.all()) or not bool(positive.any()):
            return grad
        means = [g[~positive].mean(0), g[positive].mean(0)]
        difference = means[1] - means[0]
        gap = float(difference.square().sum())
        width = grad.shape[1]
        if gap == 0.0:
            return grad
        spreads = [
            float((g[where] - mean).square().sum(1).mean()) / width
            for where, mean in zip((~positive, positive), means, strict=True)
        ]
        share = float(positive.double().mean())
        first0, rest0, first1, rest1 = eigenvalues(width, gap, spreads[0], spreads[1], share, self.power * gap)
        along = noise[:, :1].to(g)
        sideways = noise[:, 1:].to(g)
        more0, more1 = max(first0 - rest0, 0.0), max(first1 - rest1, 0.0)  # below 0 by a rounding error
        one = torch.where(positive, more1**0.5, more0**0.5)[:, None]
        other = torch.where(positive, rest1**0.5, rest0**0.5)[:, None]
        sent: Tensor = g + one * along * (difference / gap**0.5) + other * sideways
        return sent.to(grad.dtype)

    def claim(self) -> str:
        return f"noise of power {self.power:g} makes gradients of the two classes alike (Marvell); no ε is claimed"


_GRID = 33
_ZOOMS = 9


def eigenvalues(
    width: int, gap: float, spread0: float, spread1: float, share: float, power: float
) -> tuple[float, float, float, float]:
    """The eigenvalues of the noise of both classes with the smallest ``sum_kl`` within the power.

    Two numbers are left to choose, because the class with the larger spread needs no noise sideways: how much of it the
    other class has, and how the rest of the power is shared along the difference. A grid of both is refined.

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
    floor = 1e-9  # of variances, relative to the gap: a class without any spread has an infinite divergence
    u = max(spread0 / gap, floor)
    v = max(spread1 / gap, floor)
    budget = power / gap
    narrow = 0 if u < v else 1  # sideways, noise for the wider class would make the two less alike
    weight = (1 - share, share)[narrow]
    most = min(abs(u - v), budget / (weight * width))

    def noise(sideways: "NDArray[np.float64]", part: "NDArray[np.float64]") -> "tuple[NDArray[np.float64], ...]":
        """Eigenvalues for a share of ``most``, and for the part of what is left that goes to class 0."""
        rest = [most * sideways * (narrow == one) for one in (0, 1)]
        left = np.maximum(budget - weight * width * most * sideways, 0.0)
        return rest[0] + left * part / (1 - share), rest[0], rest[1] + left * (1 - part) / share, rest[1]

    centre = np.array([0.5, 0.5])
    reach = 0.5
    for _ in range(_ZOOMS):
        edges = [np.clip(np.linspace(c - reach, c + reach, _GRID), 0.0, 1.0) for c in centre]
        sideways, part = np.meshgrid(*edges, indexing="ij")
        best = int(sum_kl(width, 1.0, u, v, *noise(sideways, part)).argmin())
        centre = np.array([sideways.flat[best], part.flat[best]])
        reach = reach * 4 / _GRID
    first0, rest0, first1, rest1 = (float(x) * gap for x in noise(*centre))
    return first0, rest0, first1, rest1


def sum_kl(width: int, gap: float, u: float, v: float, first0: Any, rest0: Any, first1: Any, rest1: Any) -> Any:
    """The sum of both KL divergences between the noisy gradients of the two classes.

    ``u`` and ``v`` are the variances of the gradients of class 0 and 1 before the noise, the others as returned by
    ``eigenvalues``; numbers or arrays.
    """
    sideways = (rest0 + u) / (rest1 + v) + (rest1 + v) / (rest0 + u)
    along = (first0 + u + gap) / (first1 + v) + (first1 + v + gap) / (first0 + u)
    return 0.5 * ((width - 1) * sideways + along) - width
