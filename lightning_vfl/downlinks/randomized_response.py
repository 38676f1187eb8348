"""Randomised response: every label is replaced by chance, once."""

from collections.abc import Mapping
from math import exp, inf
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.downlinks.base import LabelDownlink
from lightning_vfl.downlinks.draws import RecordDraws
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.draws import SIMULATED, Draws


class RandomizedResponse(LabelDownlink):
    r"""Each training label stays with probability e^ε / (e^ε + C - 1), and is otherwise one of the other classes.

    The label of a record is replaced once for the whole training; the server's networks see the replaced labels alone.

    Shapes: labels (B,) integers.
    Units: ε in nats.
    Guarantee: ε-differential privacy of each training label, with δ = 0, for everything that follows: gradients of all
        rounds, weights of the bottoms AND of the top, and predictions. More rounds cost nothing.
    Not guaranteed: privacy of validation and test labels, whose metrics are exact, or of early stopping by them. With
        ``draws: seeded``, anyone who knows the seed knows which labels are true.

    Args:
        epsilon: ε > 0.
        draws: ``system``: a secret key from the operating system, which the server's checkpoints keep. ``seeded``:
            reproducible.

    Raises:
        ConfigurationError: for an ε that is not above 0, and for labels that are not classes.

    Examples:
        >>> downlink = RandomizedResponse(epsilon=1.0)
        >>> downlink.prepare(2, outputs=1)
        >>> f"{downlink.kept:.3f}"
        '0.731'

    References:
        Warner, "Randomized Response: A Survey Technique for Eliminating Evasive Answer Bias", JASA 60, 1965.
        Ghazi, Golowich, Kumar, Manurangsi, Zhang, "Deep Learning with Label Differential Privacy", NeurIPS 2021.
    """

    classes: int = 2

    def __init__(self, epsilon: float, draws: Draws = "system") -> None:
        if not 0 < epsilon < inf:
            raise ConfigurationError(f"epsilon of RandomizedResponse must be a number above 0; got {epsilon}")
        self.epsilon = epsilon
        self._draws = RecordDraws(draws)

    @property
    def kept(self) -> float:
        """The probability that a label stays."""
        return 1 / (1 + (self.classes - 1) * exp(-self.epsilon))

    def prepare(self, num_classes: int | None, outputs: int) -> None:
        if num_classes is None:
            raise ConfigurationError(
                "RandomizedResponse replaces classes, and the labels are real numbers; use GaussianGradients"
            )
        self.classes = num_classes

    def targets(self, labels: Tensor, record_ids: Tensor, seed: int) -> Tensor:
        if labels.dim() != 1:
            raise ConfigurationError(
                f"RandomizedResponse replaces one class a record; got labels of shape {tuple(labels.shape)}; use "
                "GaussianGradients"
            )
        drawn = self._draws.uniform(record_ids.cpu(), 2, seed).to(labels.device)
        shift = 1 + (drawn[:, 1] * (self.classes - 1)).long()  # to one of the other classes, each alike
        other = (labels.long() + shift) % self.classes
        return torch.where(drawn[:, 0] < self.kept, labels.long(), other).to(labels.dtype)

    def claim(self) -> str:
        simulated = f"; {SIMULATED}" if self._draws.draws == "seeded" else ""
        return f"labels have ε = {self.epsilon:g}, δ = 0, for all that is sent and for all weights{simulated}"

    def state(self) -> Mapping[str, Any]:
        return self._draws.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self._draws.load(state)
