"""MaxNorm: noise along each gradient, so that the norms of all gradients look alike."""

import torch
from torch import Tensor

from lightning_vfl.downlinks.base import GradientDownlink
from lightning_vfl.downlinks.draws import NormalDraws
from lightning_vfl.privacy.draws import Draws
from lightning_vfl.types import RoundNames


class MaxNorm(GradientDownlink):
    r"""Noise along the direction of each gradient, so that its expected squared norm is the largest of the batch.

    .. math:: \tilde g_i = g_i (1 + \sigma_i n_i), \quad \sigma_i^2 = \max_j \|g_j\|^2 / \|g_i\|^2 - 1, \quad
        n_i \sim \mathcal{N}(0, 1).

    Shapes: gradients (B, D).
    Units: of the gradients.
    Guarantee: :math:`E \|\tilde g_i\|^2` is the same for all records of a batch whose gradient is not zero.
    Not guaranteed: any privacy of directions. The noise is along the gradient: its direction, up to the sign, is sent
        as it is, and an attack by cosine is hardly hindered. It is a heuristic against attacks by norm.

    Args:
        draws: ``system``: secret numbers under a key from the operating system. ``seeded``: reproducible.

    Raises:
        ConfigurationError: for an unknown ``draws``.

    Examples:
        >>> MaxNorm().event is None
        True

    References:
        Li, Sun, Yang, Gao, Zhang, Xie, Wang, Smith, "Label Leakage and Protection in Two-party Split Learning", ICLR
        2022, section 4.1 (max_norm).
    """

    def __init__(self, draws: Draws = "system") -> None:
        self._draws = NormalDraws(draws)

    def protect(self, grad: Tensor, labels: Tensor, names: RoundNames, first: int) -> Tensor:
        squared = grad.square().sum(1, keepdim=True)
        ratio = squared.max() / squared
        deviation = torch.where(squared > 0, ratio - 1, torch.zeros_like(ratio)).sqrt()
        noise = self._draws.rows(len(grad), 1, names, first).to(grad)
        return grad * (1 + deviation * noise)

    def claim(self) -> str:
        return "norms of gradients are alike in expectation; their directions are not protected"
