"""The interface of a downlink: it protects labels in the gradients that the server sends to the parties."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.rebuildable import Rebuildable
from lightning_vfl.types import RoundNames


class Downlink(Rebuildable, ABC):
    """What the server does before gradients leave it, in training.

    Gradients depend on labels. A party that knows the label of one record can find the labels of others by comparing
    gradients, also if embeddings are masked or coded. A downlink changes the labels that the loss sees, or the
    gradients of the aggregate. Evaluation is not changed.
    """

    def prepare(self, num_classes: int | None, outputs: int) -> None:
        """Take the number of classes (None: real-valued labels) and the width of the top's output, before training.

        Default: labels of any kind are accepted.

        Raises:
            ConfigurationError: for labels that the downlink cannot protect.
        """
        return

    @abstractmethod
    def targets(self, labels: Tensor, record_ids: Tensor, seed: int) -> Tensor:
        """The labels that the loss sees, (B,) or (B, C), for the labels (B,) of the records at positions (B,)."""

    @abstractmethod
    def protect(self, grad: Tensor, labels: Tensor, names: RoundNames, first: int) -> Tensor:
        """What is sent instead of the gradients.

        Args:
            grad: (B, D), row i is the gradient of the loss of record i alone.
            labels: (B,) of these records.
            names: of the round.
            first: the number of the first row in the joint batch.

        Returns:
            (B, D), in the same units.
        """

    @property
    def event(self) -> PrivacyEvent | None:
        """The release of a round about the label of one of its records; default: None, rounds are not charged."""
        return None

    @abstractmethod
    def claim(self) -> str:
        """What is guaranteed about labels, in words for the summary."""

    def state(self) -> Mapping[str, Any]:
        """Secrets that a resumed run needs, as plain values; default: none."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the secrets of a checkpoint; default: there are none."""
        return


class GradientDownlink(Downlink, ABC):
    """A downlink that changes gradients, and leaves labels as they are: the top learns from the true labels."""

    @final
    def targets(self, labels: Tensor, record_ids: Tensor, seed: int) -> Tensor:
        return labels


class LabelDownlink(Downlink, ABC):
    """A downlink that changes the label of each record once, so that all that follows costs no more privacy."""

    @final
    def protect(self, grad: Tensor, labels: Tensor, names: RoundNames, first: int) -> Tensor:
        return grad
