"""Learning tasks: the top's number of outputs, the loss, the predictions and the default metrics."""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torchmetrics import AUROC, Accuracy, AveragePrecision, MeanSquaredError, Metric, R2Score

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rebuildable import Rebuildable

__all__ = ["Binary", "MultiClass", "Objective", "Regression", "objective_for"]


class Objective(Rebuildable, nn.Module, ABC):
    """A learning task. ``num_classes`` comes from the datamodule; None means real-valued labels."""

    @abstractmethod
    def outputs(self, num_classes: int | None) -> int:
        """Width of the top model's output."""

    @abstractmethod
    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the rows, a scalar. output (B, outputs)."""

    @abstractmethod
    def predict(self, output: Tensor) -> Tensor:
        """The predictions: probabilities (B, C) or (B,), or values (B,)."""

    @abstractmethod
    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        """Default metrics by name; each is updated with ``(predict(output), labels)``."""


class MultiClass(Objective):
    """Classification into C classes: cross-entropy, accuracy.

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
    """Classification into two classes: one logit, binary cross-entropy, accuracy, AUROC and average precision (AUPRC).

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
    """Regression of a real value: mean squared error, R².

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
    """The default objective for the data's number of classes: None, two or more."""
    if num_classes is None:
        return Regression()
    return Binary() if num_classes == 2 else MultiClass()
