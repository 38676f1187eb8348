"""What is learnt: how many outputs the top model has, its loss, its predictions and its default metrics."""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torchmetrics import AUROC, Accuracy, AveragePrecision, MeanSquaredError, Metric, R2Score

from lightning_vfl.errors import ConfigurationError

__all__ = ["Binary", "MultiClass", "Objective", "Regression", "objective_for"]


class Objective(nn.Module, ABC):
    """A learning task. ``num_classes`` is what the datamodule reports; None means real-valued labels."""

    @abstractmethod
    def outputs(self, num_classes: int | None) -> int:
        """Width of the top model's output."""

    @abstractmethod
    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the rows, a scalar. output (B, outputs)."""

    @abstractmethod
    def predict(self, output: Tensor) -> Tensor:
        """What is predicted: probabilities (B, C) or (B,), or values (B,)."""

    @abstractmethod
    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        """Default metrics by name; each is updated with ``(predict(output), labels)``."""


class MultiClass(Objective):
    """One of C classes: cross-entropy, accuracy.

    Args:
        loss: takes logits (B, C) and labels (B,) int64; default ``torch.nn.CrossEntropyLoss()``.
    """

    def __init__(self, loss: nn.Module | None = None) -> None:
        super().__init__()
        self.criterion = loss or nn.CrossEntropyLoss()

    def outputs(self, num_classes: int | None) -> int:
        if num_classes is None or num_classes < 2:
            raise ConfigurationError(
                f"MultiClass needs at least 2 classes but the data report num_classes = {num_classes}; "
                "use Regression for real-valued labels"
            )
        return num_classes

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.criterion(output, labels)
        return loss

    def predict(self, output: Tensor) -> Tensor:
        return output.softmax(1)

    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        return {"accuracy": Accuracy(task="multiclass", num_classes=self.outputs(num_classes))}


class Binary(Objective):
    """Yes or no: one logit, binary cross-entropy, accuracy, AUROC and average precision (AUPRC).

    Args:
        loss: takes logits (B,) and float labels (B,); default ``torch.nn.BCEWithLogitsLoss()``.
    """

    def __init__(self, loss: nn.Module | None = None) -> None:
        super().__init__()
        self.criterion = loss or nn.BCEWithLogitsLoss()

    def outputs(self, num_classes: int | None) -> int:
        if num_classes != 2:
            raise ConfigurationError(
                f"Binary needs exactly 2 classes but the data report num_classes = {num_classes}; use MultiClass"
            )
        return 1

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.criterion(output.squeeze(1), labels.to(output.dtype))
        return loss

    def predict(self, output: Tensor) -> Tensor:
        return output.squeeze(1).sigmoid()

    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        return {
            "accuracy": Accuracy(task="binary"),
            "auroc": AUROC(task="binary"),
            "average_precision": AveragePrecision(task="binary"),
        }


class Regression(Objective):
    """A real value: mean squared error, and R².

    Args:
        loss: takes values (B,) and labels (B,); default ``torch.nn.MSELoss()``.
    """

    def __init__(self, loss: nn.Module | None = None) -> None:
        super().__init__()
        self.criterion = loss or nn.MSELoss()

    def outputs(self, num_classes: int | None) -> int:
        if num_classes is not None:
            raise ConfigurationError(
                f"Regression needs real-valued labels but the data report num_classes = {num_classes}; use MultiClass"
            )
        return 1

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.criterion(output.squeeze(1), labels.to(output.dtype))
        return loss

    def predict(self, output: Tensor) -> Tensor:
        return output.squeeze(1)

    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        return {"mse": MeanSquaredError(), "r2": R2Score()}


def objective_for(num_classes: int | None) -> Objective:
    """The objective that fits what the data report: none, two or more classes."""
    if num_classes is None:
        return Regression()
    return Binary() if num_classes == 2 else MultiClass()
