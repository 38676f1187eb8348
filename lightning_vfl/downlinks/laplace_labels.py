"""Laplace noise on one-hot labels, and the probabilities of the classes given the noisy label."""

from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from lightning_vfl.downlinks.base import LabelDownlink
from lightning_vfl.downlinks.draws import RecordDraws
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.draws import SIMULATED, Draws


class LaplaceLabels(LabelDownlink):
    r"""Laplace noise of scale 2/ε on each number of the one-hot label; the loss sees the probabilities of the classes.

    .. math:: o = e_y + \mathrm{Lap}(2 / \epsilon)^C, \quad
        P(c \mid o) \propto \exp(-\epsilon / 2 \cdot \|o - e_c\|_1),

    with equal prior probabilities. The label of a record is drawn once for the whole training.

    Shapes: labels (B,) integers; what the loss sees is (B, C); with one output of the top it is (B,), the
        probability of class 1.
    Units: ε in nats.
    Guarantee: ε-differential privacy of each training label, with δ = 0, for everything that follows, as
        ``RandomizedResponse``. The probabilities are computed from the noisy label alone.
    Not guaranteed: privacy of validation and test labels. Noise in floating point has gaps (Mironov 2012). With
        ``draws: seeded``, anyone who knows the seed knows the noise.

    Args:
        epsilon: ε > 0.
        draws: as in ``RandomizedResponse``.

    Raises:
        ConfigurationError: for an ε that is not above 0, and for labels that are not classes.

    Examples:
        >>> downlink = LaplaceLabels(epsilon=50.0, draws="seeded")
        >>> downlink.prepare(3, outputs=3)
        >>> downlink.targets(torch.tensor([2, 0]), torch.tensor([4, 5]), seed=0).argmax(1).tolist()
        [2, 0]

    References:
        Malek, Mironov, Prasad, Shilov, Tramèr, "Antipodes of Label Differential Privacy: PATE and ALIBI", NeurIPS 2021,
        section 3 (ALIBI).
    """

    classes: int = 2
    outputs: int = 1

    def __init__(self, epsilon: float, draws: Draws = "system") -> None:
        if not 0 < epsilon < inf:
            raise ConfigurationError(f"epsilon of LaplaceLabels must be a number above 0; got {epsilon}")
        self.epsilon = epsilon
        self._draws = RecordDraws(draws)

    def prepare(self, num_classes: int | None, outputs: int) -> None:
        if num_classes is None:
            raise ConfigurationError(
                "LaplaceLabels changes classes, and the labels are real numbers; use GaussianGradients"
            )
        self.classes, self.outputs = num_classes, outputs

    def targets(self, labels: Tensor, record_ids: Tensor, seed: int) -> Tensor:
        if labels.dim() != 1:
            raise ConfigurationError(
                f"LaplaceLabels changes one class a record; got labels of shape {tuple(labels.shape)}; use "
                "GaussianGradients"
            )
        drawn = self._draws.uniform(record_ids.cpu(), self.classes, seed).to(labels.device) - 0.5
        noise = -(2 / self.epsilon) * drawn.sign() * torch.log1p(-2 * drawn.abs())
        noisy = one_hot(labels.long(), self.classes) + noise
        corners = torch.eye(self.classes, dtype=noisy.dtype, device=noisy.device)
        distances = (noisy[:, None] - corners).abs().sum(2)
        probabilities = (-self.epsilon / 2 * distances).softmax(1).float()
        return probabilities[:, 1] if self.outputs == 1 else probabilities

    def claim(self) -> str:
        simulated = f"; {SIMULATED}" if self._draws.draws == "seeded" else ""
        return f"labels have ε = {self.epsilon:g}, δ = 0, for all that is sent and for all weights{simulated}"

    def state(self) -> Mapping[str, Any]:
        return self._draws.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self._draws.load(state)
