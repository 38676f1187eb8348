"""Tell of a model that predicts the same for every record, so that its scores are those of chance."""

from collections.abc import Sequence

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.objectives import MultiClass, Objective, Regression

FEWEST = 20  # predictions; fewer may be alike by chance
MANY = 50  # predictions; fewer may be decided for one class by chance
FAINT = 0.1  # deviation of log-odds: the AUROC of a calibrated model with less is below Φ(0.1 / √2) = 0.53
_ALIKE = 1e-3  # of probabilities of two classes, or of values in units of the labels' deviation
_ROUNDING = 1e-6  # relative, of float32
_CHANCE = 0.05  # how far an AUROC of chance may be from 1/2


class Spread:
    """The least and the greatest prediction of an evaluation in this process, and the classes that were decided."""

    def __init__(self) -> None:
        self.count = 0
        self.low = self.high = torch.zeros(())
        self._log_odds = self._squares = torch.zeros((), dtype=torch.float64)  # sums over the predictions
        self.classes: set[int] = set()
        self.labels: set[int] = set()

    def add(self, predicted: Tensor, labels: Tensor | None = None) -> None:
        """Count predictions (B,) or (B, C), of which NaN are none, and labels (B,)."""
        columns = predicted.detach().float().cpu()
        columns = columns[:, None] if columns.dim() == 1 else columns.flatten(1)  # there may be no record
        there = ~columns.isnan().any(1)
        columns = columns[there]
        if not len(columns):
            return
        low, high = columns.amin(0), columns.amax(0)
        self.low = torch.minimum(self.low, low) if self.count else low
        self.high = torch.maximum(self.high, high) if self.count else high
        self.count += len(columns)
        log_odds = columns.double().logit(eps=1e-7)
        self._log_odds = self._log_odds + log_odds.sum(0)
        self._squares = self._squares + log_odds.square().sum(0)
        decided = columns[:, 0] >= 0.5 if columns.shape[1] == 1 else columns.argmax(1)
        if len(self.classes) < 2:
            self.classes |= set(decided.long().tolist())
        if labels is not None and labels.dim() == 1 and len(self.labels) < 2:
            self.labels |= set(labels.long().tolist())

    def doubt(self, objective: Objective, classes: Sequence[object], auroc: float | None) -> str:
        """What is wrong with the predictions, in words; empty: they tell records apart, or there are few of them.

        Args:
            objective: of the model.
            classes: the names of the classes; empty for real values and several labels.
            auroc: of these predictions; None: not known.
        """
        if self.count < FEWEST:
            return ""
        step = _ALIKE * 2 / max(len(classes), 2)
        if isinstance(objective, Regression):
            step = _ALIKE * float(objective.scale.min()) if objective.standardise else 0.0
        size = torch.maximum(self.low.abs(), self.high.abs())
        if bool((self.high - self.low <= step + _ROUNDING * size).all()):
            column = int((self.high - self.low).argmax())
            span = f"from {float(self.low[column]):.4g} to {float(self.high[column]):.4g}"
            return f"are alike ({span}), so the model tells no record apart from another"
        if not classes or len(self.classes) > 1 or self.count < MANY:
            return ""
        decided = min(self.classes)
        variance = self._squares / self.count - (self._log_odds / self.count).square()
        if bool((variance <= FAINT**2).all()):
            column = 0 if len(size) == 1 else decided
            name = classes[1 if len(size) == 1 else decided]
            span = f"of '{name}': {float(self.low[column]):.4g} to {float(self.high[column]):.4g}"
            return f"decide for class '{classes[decided]}' with nearly the same probability ({span})"
        if len(self.labels) < 2:
            return ""
        chance = isinstance(objective, MultiClass) or (auroc is not None and abs(auroc - 0.5) <= _CHANCE)
        if not chance:
            return ""
        score = "" if auroc is None else f" (AUROC {auroc:.3f})"
        return f"decide for class '{classes[decided]}', so the scores are those of chance{score}"


def warn_of_chance(
    spread: Spread, split: str, trainer: Trainer, objective: Objective, classes: int | None, noise: bool
) -> None:
    """Warn if the predictions of a split tell no record apart from another.

    Args:
        spread: of the predictions.
        split: ``val``, ``test`` or ``predict``.
        trainer: which has the names of classes and the AUROC of the split.
        objective: of the training.
        classes: how many there are; None: labels are numbers.
        noise: whether the training adds noise for its privacy.
    """
    names = tuple(getattr(getattr(trainer, "datamodule", None), "class_names", ())) or tuple(range(classes or 0))
    auroc = trainer.callback_metrics.get(f"{split}/auroc")
    told = spread.doubt(objective, names, None if auroc is None or auroc.isnan() else float(auroc))
    if not told:
        return
    remedy = "train longer, or with another learning rate, and look at the features"
    if noise:
        remedy = (
            "the noise may be larger than what is learnt: at the same epsilon a smaller width, larger batches or fewer "
            "epochs leave more of it, which lightning-vfl privacy --solve beta --try compares"
        )
    rank_zero_warn(f"all {spread.count:,} {split} predictions {told}; {remedy}")
