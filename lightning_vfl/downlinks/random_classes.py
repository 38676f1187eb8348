"""Downlinks that draw the class label of each record once, with differential privacy."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from lightning_vfl.checks import positive
from lightning_vfl.downlinks.base import LabelDownlink
from lightning_vfl.downlinks.draws import RecordDraws
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.draws import SIMULATED, Draws


class RandomClasses(LabelDownlink, ABC):
    """What the loss sees of a record is drawn from its class, once for the whole training; it has ε, and δ = 0.

    Args:
        epsilon: ε > 0.
        draws: ``system``: a secret key from the operating system, which the server's checkpoints keep. ``seeded``:
            reproducible.

    Raises:
        ConfigurationError: for an ε that is not above 0, and for labels that are not classes.
    """

    classes: int = 2
    outputs: int = 1

    def __init__(self, epsilon: float, draws: Draws = "system") -> None:
        self.epsilon = positive(f"epsilon of {type(self).__name__}", epsilon)
        self._draws = RecordDraws(draws)

    @property
    @abstractmethod
    def numbers(self) -> int:
        """How many uniform numbers the label of a record takes."""

    @abstractmethod
    def drawn(self, labels: Tensor, uniform: Tensor) -> Tensor:
        """What the loss sees, (B,) or (B, C), for labels (B,) and their numbers (B, ``numbers``) in (0, 1)."""

    @final
    def prepare(self, num_classes: int | None, outputs: int) -> None:
        if num_classes is None:
            raise ConfigurationError(
                f"{type(self).__name__} changes classes, and the labels are real numbers; use GaussianGradients"
            )
        self.classes = num_classes
        self.outputs = outputs

    @final
    def targets(self, labels: Tensor, record_ids: Tensor, seed: int) -> Tensor:
        if labels.dim() != 1:
            raise ConfigurationError(
                f"{type(self).__name__} changes one class a record; got labels of shape {tuple(labels.shape)}; use "
                "GaussianGradients"
            )
        return self.drawn(labels, self._draws.uniform(record_ids.cpu(), self.numbers, seed).to(labels.device))

    @final
    def claim(self) -> str:
        simulated = f"; {SIMULATED}" if self._draws.draws == "seeded" else ""
        return f"labels have ε = {self.epsilon:g}, δ = 0, for all that is sent and for all weights{simulated}"

    @final
    def state(self) -> Mapping[str, Any]:
        return self._draws.state()

    @final
    def load(self, state: Mapping[str, Any]) -> None:
        self._draws.load(state)
