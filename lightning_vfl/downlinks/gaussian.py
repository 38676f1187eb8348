"""Clipped gradients with Gaussian noise: differential privacy of labels."""

from math import sqrt

import torch
from torch import Tensor

from lightning_vfl.aggregators.local_gaussian import LEAST_CLIP, shortened
from lightning_vfl.checks import positive, within
from lightning_vfl.downlinks.base import GradientDownlink
from lightning_vfl.downlinks.draws import NormalDraws
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.draws import SIMULATED, Draws
from lightning_vfl.privacy.events import GaussianEvent
from lightning_vfl.privacy.gaussian import analytic_sigma
from lightning_vfl.types import RoundNames


class GaussianGradients(GradientDownlink):
    r"""The gradient of each record is clipped to norm C, and Gaussian noise is added to each of its numbers.

    .. math:: \tilde g_i = g_i \cdot \min(1, C / \|g_i\|_2) + \mathcal{N}(0, \sigma^2 I),

    where g_i is the gradient of the loss of record i alone at its aggregate.

    Shapes: gradients (B, D).
    Units: ``clip`` and ``sigma`` have the unit of the gradient of ONE record's loss, before the mean over the batch.
    Guarantee: one round has the privacy of ``GaussianEvent(sigma, 2 clip, 1)`` for the label of a record of its batch.
        Every round is charged to its records before gradients are sent; the summary has the ε of a label.
    Not guaranteed: that the label says nothing through weights: the top learns from the true labels, and with it the
        gradients of other records. ``RandomizedResponse`` covers these. With ``draws: seeded``, the noise is not
        secret and is computed in floating point. With ``draws: system``, the clipped gradient and its noise are
        rounded to one grid before they are added, so that last bits tell nothing more.

    Args:
        clip: C; a gradient with a larger L2 norm is scaled down to C.
        sigma: σ of the noise; or give ``epsilon``.
        epsilon: ε of a label after ``rounds`` rounds, from which σ follows.
        delta: δ for ``epsilon``.
        rounds: how often a record is in a batch: the number of epochs.
        draws: ``system``: secret noise of AES-256 under a key from the operating system. ``seeded``: reproducible.

    Raises:
        ConfigurationError: for numbers that are not above 0, and unless exactly one of ``sigma`` and ``epsilon`` is
            given.

    Examples:
        >>> GaussianGradients(clip=1.0, sigma=4.0).event
        GaussianEvent(sigma=4.0, sensitivity=2.0, parties=1)

    References:
        Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", 2014, appendix A (the Gaussian mechanism).
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018 (σ from ε).
    """

    def __init__(
        self,
        clip: float,
        sigma: float | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        rounds: int = 1,
        draws: Draws = "system",
    ) -> None:
        if (sigma is None) == (epsilon is None):
            raise ConfigurationError(f"give sigma or epsilon, and not both; got sigma {sigma} and epsilon {epsilon}")
        within("clip of GaussianGradients", clip, LEAST_CLIP)
        positive("rounds of GaussianGradients", rounds, whole=True)
        for name, number in (("sigma", sigma), ("epsilon", epsilon)):
            if number is not None:
                positive(f"{name} of GaussianGradients", number)
        self.clip = clip
        self.sigma = sigma or analytic_sigma(epsilon or 0.0, delta, 2 * clip * sqrt(rounds))
        self._draws = NormalDraws(draws)

    def protect(self, grad: Tensor, labels: Tensor, names: RoundNames, first: int) -> Tensor:
        if not bool(torch.isfinite(grad).all()):
            raise ConfigurationError(
                "a gradient has NaN or infinite numbers, which noise cannot hide; clean the data or lower the learning "
                "rate"
            )
        return self._draws.added(shortened(grad, self.clip), self.sigma, self.clip, names, first).to(grad)

    @property
    def event(self) -> GaussianEvent:
        return GaussianEvent(self.sigma, 2 * self.clip, 1)

    def claim(self) -> str:
        simulated = f"; {SIMULATED}" if self._draws.draws == "seeded" else ""
        return f"gradients of records are clipped to {self.clip:g}, with noise of deviation {self.sigma:.4g}{simulated}"
