"""Learning tasks: the top's number of outputs, the loss, the predictions and the default metrics."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from math import isfinite
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchmetrics import AUROC, Accuracy, MeanAbsoluteError, MeanSquaredError, Metric
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision, BinaryPrecisionRecallCurve
from torchmetrics.utilities.data import dim_zero_cat

from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.real_labels import RSquared, moments_of
from lightning_vfl.rebuildable import Rebuildable
from lightning_vfl.types import VerticalBatch

__all__ = ["Binary", "MultiClass", "MultiLabel", "Objective", "Regression", "objective_for"]


class Objective(Rebuildable, nn.Module, ABC):
    """A learning task. ``num_classes`` comes from the datamodule; None means real-valued labels.

    Attributes:
        targets: how many labels a record has: labels are (B,) for 1, else (B, targets).
    """

    targets: int = 1

    @abstractmethod
    def outputs(self, num_classes: int | None) -> int:
        """Width of the top model's output."""

    @abstractmethod
    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the rows, a scalar. output (B, outputs)."""

    def losses(self, output: Tensor, labels: Tensor) -> Tensor:
        """(B,) the losses of the rows, whose mean is ``loss``; training with sample weights needs them.

        Raises:
            ConfigurationError: if the objective has none; the default.
        """
        raise ConfigurationError(
            f"{type(self).__name__} has no losses of single records, which sample_weight needs; implement "
            "losses(output, labels), or leave sample_weight out"
        )

    @abstractmethod
    def predict(self, output: Tensor) -> Tensor:
        """The predictions: probabilities (B, C) or (B,), or values (B,)."""

    @abstractmethod
    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        """Default metrics by name; each is updated with ``(predict(output), labels)``."""

    def prepare(self, num_classes: int | None) -> None:
        """Make what depends on the number of classes, before the networks are built; default: nothing."""

    @property
    def needs_labels(self) -> str | None:
        """What makes ``take_labels`` be called before training, as a text for errors; None, the default: nothing."""
        return None

    @property
    def may_use_labels(self) -> bool:
        """Whether ``take_labels`` is called before training if the labels are known; default: if it needs them."""
        return self.needs_labels is not None

    def leave_labels(self) -> None:
        """Take no labels unless they are needed, because a downlink protects them; default: nothing."""

    def take_labels(self, labels: Tensor) -> None:
        """Take the labels of all training records, (N,) or (N, targets); default: nothing."""

    @property
    def identity(self) -> str:
        """A text that differs between objectives with different losses; default: the name of the class."""
        return type(self).__name__


def labels_of(batch: VerticalBatch) -> Tensor:
    """The labels of a batch.

    Raises:
        ConfigurationError: if there are none.
    """
    if batch.labels is None:
        raise ConfigurationError(
            "the data have no labels, but training and tests need labels; name the party that holds the labels"
        )
    return batch.labels


def mean_loss(objective: Objective, output: Tensor, batch: VerticalBatch) -> Tensor:
    """The mean loss of the rows of a training batch, each weighted by its sample weight if there are weights.

    Weights have mean 1 over all training records, so the mean over an epoch is Σ w_i l_i / Σ w_i.
    """
    labels = labels_of(batch)
    if batch.weights is None:
        return objective.loss(output, labels)
    return (objective.losses(output, labels) * batch.weights.to(output.dtype)).mean()


def not_narrower(tensor: Tensor) -> Tensor:
    """Real numbers in float32 or wider: a score in bfloat16 has two digits, and a count ends at 256."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize < 4 else tensor


def predictions(objective: Objective, output: Tensor) -> Tensor:
    """The predictions for the outputs (B, outputs) of a top, in float32, and computed in it for narrower outputs."""
    return objective.predict(not_narrower(output)).float()


Weights = Literal["balanced"] | Sequence[float]
"""Class weights: a number for each class, or ``balanced``."""


class ClassWeights(nn.Module):
    r"""A loss times the weight of the row's class, of which the loss of a batch is the mean over rows.

    .. math:: \frac{1}{B} \sum_b w_{y_b} \ell_b, \qquad \text{balanced: } w_c = \frac{N}{C N_c}

    The sum is divided by the number of rows, not by the sum of the weights, so that the loss of a joint batch is the
    mean of its parts. The weights are in checkpoints.

    Args:
        given: a weight for each class; ``balanced``: from the N_c training records of each class, as scikit-learn does.

    Raises:
        ConfigurationError: for weights that are not positive numbers.
    """

    values: Tensor

    def __init__(self, given: Weights) -> None:
        super().__init__()
        if isinstance(given, Mapping) or not hasattr(given, "__len__"):  # a mapping would give its keys as weights
            raise ConfigurationError(
                f"class_weights must be a list with a number for each class, in the order of the classes; got {given!r}"
            )
        self.given = given if isinstance(given, str) else tuple(map(float, given))
        self.balanced = self.given == "balanced"
        if isinstance(self.given, str):
            if not self.balanced:
                raise ConfigurationError(f"class_weights '{given}' is unknown; use balanced or a number for each class")
        elif not all(isfinite(w) and w > 0 for w in self.given):
            raise ConfigurationError(f"class_weights must be numbers above 0; got {list(self.given)}; correct them")

    def prepare(self, num_classes: int) -> None:
        """Make the weights, which are 1 until the counts are known if they are balanced."""
        values = torch.ones(num_classes) if isinstance(self.given, str) else torch.tensor(self.given)
        if len(values) != num_classes:
            raise ConfigurationError(
                f"class_weights has {len(values)} numbers for {num_classes} classes; give one for each class"
            )
        self.register_buffer("values", values)

    def take_labels(self, labels: Tensor) -> None:
        """Make the balanced weights from the labels (N,) of the training records.

        Raises:
            ConfigurationError: for a class without training records.
        """
        if not self.balanced:
            return
        counts = torch.bincount(labels.long(), minlength=len(self.values))
        if (counts == 0).any():
            empty = int((counts == 0).nonzero()[0])
            raise ConfigurationError(
                f"class_weights: balanced has no weight for class {empty}, which no training record has; use another "
                "seed, or give numbers"
            )
        self.values.copy_(counts.sum() / (len(counts) * counts.double()))

    def forward(self, losses: Tensor, labels: Tensor) -> Tensor:
        """(B,) losses of rows with (B,) classes, weighted by class."""
        return losses * self.values.index_select(0, labels.long()).to(losses.dtype)


def losses_of_rows(criterion: nn.Module, output: Tensor, labels: Tensor) -> Tensor:
    """(B,) the losses of the rows, by a loss of ``torch.nn`` that is their mean.

    Raises:
        ConfigurationError: for another loss.
    """
    weighted = isinstance(criterion, nn.CrossEntropyLoss) and criterion.weight is not None
    if getattr(criterion, "reduction", None) != "mean" or weighted:
        told = "class weights of its own" if weighted else "no reduction: mean"
        raise ConfigurationError(
            f"the loss {type(criterion).__name__} has {told}, and sample_weight needs the losses of single records; "
            "use a loss of torch.nn with reduction: mean, and class_weights for weights of classes"
        )
    alone = copy(criterion)
    alone.reduction = "none"  # type: ignore[assignment]  # a text in every loss of torch
    losses: Tensor = alone(output, labels)
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


class _ByCriterion(Objective, ABC):
    """An objective with a loss of ``torch.nn``, whose classes may have weights.

    Args:
        default: the loss, if none is given.
        loss: the loss that is given.
        class_weights: see ``ClassWeights``; not together with a loss.
    """

    def __init__(self, default: nn.Module, loss: nn.Module | None, class_weights: Weights | None = None) -> None:
        super().__init__()
        if loss is not None and class_weights is not None:
            raise ConfigurationError(
                f"{type(self).__name__} got both a loss and class_weights; give the weights to the loss, or no loss"
            )
        self.class_weights = None if class_weights is None else ClassWeights(class_weights)
        self.criterion = loss or default

    @abstractmethod
    def forms(self, output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Output and labels as the loss takes them."""

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        if self.class_weights is not None:
            return self.losses(output, labels).mean()
        loss: Tensor = self.criterion(*self.forms(output, labels))
        return loss

    def losses(self, output: Tensor, labels: Tensor) -> Tensor:
        losses = losses_of_rows(self.criterion, *self.forms(output, labels))
        return losses if self.class_weights is None else self.class_weights(losses, labels)

    def prepare(self, num_classes: int | None) -> None:
        if self.class_weights is not None and num_classes is not None:
            self.class_weights.prepare(num_classes)

    @property
    def needs_labels(self) -> str | None:
        balanced = self.class_weights is not None and self.class_weights.balanced
        return "class_weights: balanced" if balanced else None

    def take_labels(self, labels: Tensor) -> None:
        if self.class_weights is not None:
            self.class_weights.take_labels(labels)

    @property
    def identity(self) -> str:
        weights = "" if self.class_weights is None else f" with class_weights {self.class_weights.given}"
        return f"{type(self).__name__}{weights}"


class MultiClass(_ByCriterion):
    """Classification into C classes: cross-entropy, accuracy.

    Args:
        loss: takes logits (B, C) and labels (B,) int64; default ``torch.nn.CrossEntropyLoss()``.
        class_weights: a weight for each class; ``balanced``: from the labels of the training records; see
            ``ClassWeights``. Not together with a loss.
    """

    def __init__(self, loss: nn.Module | None = None, class_weights: Weights | None = None) -> None:
        super().__init__(nn.CrossEntropyLoss(), loss, class_weights)

    def outputs(self, num_classes: int | None) -> int:
        if num_classes is None or num_classes < 2:
            raise ConfigurationError(
                f"MultiClass needs at least 2 classes but the data report num_classes = {num_classes}; "
                "use Regression for real-valued labels"
            )
        return num_classes

    def forms(self, output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return output, labels if labels.is_floating_point() else labels.long()  # probabilities of classes stay

    def predict(self, output: Tensor) -> Tensor:
        return output.softmax(1)

    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        return {"accuracy": Accuracy(task="multiclass", num_classes=self.outputs(num_classes))}


class _Defined(BinaryPrecisionRecallCurve):
    """A score of torchmetrics, which gives 0 or 1 where all labels are of one class and the score is not defined."""

    def compute(self) -> Tensor:  # type: ignore[override]  # the score of a subclass
        """The score, a scalar; NaN without a positive or without a negative record."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the same, in torchmetrics' words
            score: Any = super().compute()
        labels = dim_zero_cat(self.target)
        defined: Tensor = score if labels.min() != labels.max() else torch.full_like(score, torch.nan)
        return defined


class DefinedAUROC(_Defined, BinaryAUROC):
    """torchmetrics' AUROC, which is not defined (NaN) without a positive or without a negative record."""


class DefinedAveragePrecision(_Defined, BinaryAveragePrecision):
    """torchmetrics' average precision, which is not defined (NaN) without a positive or without a negative record."""


class Binary(_ByCriterion):
    """Classification into two classes: one logit, binary cross-entropy, accuracy, AUROC and average precision (AUPRC).

    Args:
        loss: takes logits (B,) and float labels (B,); default ``torch.nn.BCEWithLogitsLoss()``.
        class_weights: two weights, where [1, w] is torch's ``pos_weight`` w; ``balanced``: from the labels of the
            training records; see ``ClassWeights``. Not together with a loss.
    """

    def __init__(self, loss: nn.Module | None = None, class_weights: Weights | None = None) -> None:
        super().__init__(nn.BCEWithLogitsLoss(), loss, class_weights)

    def outputs(self, num_classes: int | None) -> int:
        if num_classes != 2:
            raise ConfigurationError(
                f"Binary needs exactly 2 classes but the data report num_classes = {num_classes}; use MultiClass"
            )
        return 1

    def forms(self, output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return output.squeeze(1), labels.to(output.dtype)

    def predict(self, output: Tensor) -> Tensor:
        return output.squeeze(1).sigmoid()

    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        return {
            "accuracy": Accuracy(task="binary"),
            "auroc": DefinedAUROC(),
            "average_precision": DefinedAveragePrecision(),
        }


class MultiLabel(_ByCriterion):
    """Several labels of a record, each 0 or 1: binary cross-entropy, accuracy and AUROC, the mean over the labels.

    Args:
        labels: L ≥ 2, how many labels a record has.
        loss: takes logits (B, L) and float labels (B, L); default ``torch.nn.BCEWithLogitsLoss()``.
    """

    def __init__(self, labels: int, loss: nn.Module | None = None) -> None:
        super().__init__(nn.BCEWithLogitsLoss(), loss)
        self.targets = within("labels of MultiLabel", labels, 2, whole=True, advice="use Binary for one label")

    def outputs(self, num_classes: int | None) -> int:
        return self.targets

    def forms(self, output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return output, labels.to(output.dtype)

    def predict(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        return {
            "accuracy": Accuracy(task="multilabel", num_labels=self.targets),
            "auroc": AUROC(task="multilabel", num_labels=self.targets),
        }


class Regression(_ByCriterion):
    r"""Regression of real values: the root of the mean squared error (RMSE), the mean absolute error (MAE), and R².

    Of several values, each is the mean over the values. With ``standardise``, the network predicts (y - μ) / σ, with
    the mean μ and the standard deviation σ of each value
    over the training records. The loss is in units of σ; predictions and metrics are in the units of the labels. μ and
    σ are in checkpoints.

    Args:
        loss: takes values (B,) and labels (B,), or both (B, targets); default ``torch.nn.MSELoss()``.
        targets: how many values a record has.
        standardise: whether labels are standardised in the loss. A network begins near 0 and learns labels slowly that
            are far from 0 or of another size than 1. None: if the labels of the training records are known before
            training, and no downlink protects them.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, loss: nn.Module | None = None, targets: int = 1, standardise: bool | None = None) -> None:
        super().__init__(nn.MSELoss(), loss)
        self.targets = positive("targets", targets, whole=True)
        self.standardise = standardise is not False
        self._needed = standardise is True
        if self.standardise:
            self.register_buffer("shift", torch.zeros(targets))
            self.register_buffer("scale", torch.ones(targets))

    @property
    def needs_labels(self) -> str | None:
        return "standardise" if self._needed else None

    @property
    def may_use_labels(self) -> bool:
        return self.standardise

    def leave_labels(self) -> None:
        self.standardise = self._needed

    @property
    def identity(self) -> str:
        return f"{type(self).__name__}{' with standardise' if self.standardise else ''}"

    def take_labels(self, labels: Tensor) -> None:
        shift, scale = moments_of(labels)
        self.shift.copy_(shift)
        self.scale.copy_(torch.where(scale > 0, scale, torch.ones_like(scale)))

    def outputs(self, num_classes: int | None) -> int:
        if num_classes is not None:
            raise ConfigurationError(
                f"Regression needs real-valued labels but the data report num_classes = {num_classes}; use MultiClass"
            )
        return self.targets

    def forms(self, output: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.standardise:
            shift, scale = (self.shift, self.scale) if self.targets > 1 else (self.shift[0], self.scale[0])
            labels = (labels - shift.to(labels)) / scale.to(labels)
        return self._formed(output), labels.to(output.dtype)

    def predict(self, output: Tensor) -> Tensor:
        if self.standardise:
            output = output * self.scale.to(output.dtype) + self.shift.to(output.dtype)
        return self._formed(output)

    def metrics(self, num_classes: int | None) -> dict[str, Metric]:
        squared = {"mse": MeanSquaredError(), "rmse": MeanSquaredError(squared=False)}
        return {**squared, "mae": MeanAbsoluteError(), "r2": RSquared()}

    def _formed(self, output: Tensor) -> Tensor:
        return output.squeeze(1) if self.targets == 1 else output


def objective_for(num_classes: int | None) -> Objective:
    """The default objective for the data's number of classes: None, two or more."""
    if num_classes is None:
        return Regression()
    return Binary() if num_classes == 2 else MultiClass()
