"""What evaluation gives: losses and metrics of a split, predictions, and who took part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection

from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.objectives import MultiClass, Objective, Regression, labels_of, not_narrower, predictions
from lightning_vfl.protocols.checks import refuse_other_batches, searches_rate
from lightning_vfl.types import Stage, VerticalBatch, over_rows

SPLITS: Mapping[Stage, str] = {Stage.VALIDATION: "val", Stage.TEST: "test", Stage.PREDICT: "predict"}


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


class Predictions(NamedTuple):
    """Positions (B,) in the predicted records, and probabilities or values (B,) or (B, C).

    ``parties`` (B, M) bool are the parties that took part in each prediction; None: all of them, in every prediction.
    Records without a prediction, and those that no party has, have NaN.
    """

    record_ids: Tensor
    values: Tensor
    parties: Tensor | None = None


@dataclass(frozen=True)
class Attendance:
    """Who took part in a round of evaluation with faults.

    Args:
        parties: (B, M) bool, the parties whose new embeddings are in the prediction of each record.
        answered: (B,) bool, the records that have a prediction.
    """

    parties: Tensor
    answered: Tensor


def round_to(metrics: nn.Module, dtype: torch.dtype) -> None:
    """Let metrics round what they are given to this dtype.

    Lightning moves a logged metric within a step, and torchmetrics then rounds to torch's default dtype of the step:
    with ``precision`` ``bf16-true`` a mean loss would have two digits, and the weight of 257 rows would be 256.
    """
    for metric in metrics.modules():
        if isinstance(metric, Metric):
            metric._dtype = dtype


class Scores(nn.Module):
    """The mean loss and the metrics of one split, weighted by rows, over all processes.

    Args:
        split: ``val`` or ``test``, the prefix of the log names.
        metrics: metrics by name; they are copied.

    Raises:
        ConfigurationError: for what is no metric, and for the name ``loss``.
    """

    def __init__(self, split: str, metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        for name, metric in metrics.items():
            refuse_other_kind(f"metrics['{name}']", metric, Metric, "torchmetrics.MeanSquaredError()")
        if "loss" in metrics:
            raise ConfigurationError("metrics has the name loss, under which the loss is logged; use another name")
        self.split = split
        self.loss = MeanMetric()
        self.metrics = MetricCollection(dict(metrics)).clone(prefix=f"{split}/")
        self.spread = Spread()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Scores":
        """As torch's, but sums stay in float32 where ``precision`` is ``bf16-true``: bfloat16 cannot count to 257."""
        super()._apply(lambda tensor: not_narrower(fn(tensor)), recurse)  # type: ignore[no-untyped-call]  # torch's
        return self

    def reset(self) -> None:
        """Reset loss and metrics at the start of an evaluation.

        An earlier ``trainer.validate`` has reset them in inference mode; a fit, which validates outside of inference
        mode, could not update them then. The batches of an interrupted evaluation must not count in the next result.
        """
        self.loss.reset()
        self.metrics.reset()
        self.spread = Spread()

    def score(self, module: Any, batch: VerticalBatch) -> Tensor:
        """Update and log loss and metrics of a batch; returns its predictions, which callbacks get.

        ``module``: the protocol. Records that nobody has answered are counted and left out.
        """
        refuse_other_batches(batch)
        output: Tensor = module.evaluated(batch, module.next_round())
        place = module.place
        attendance = module.attendance
        missed = place is not None and not len(output)  # by a party that has come back
        if missed or not module.scores_here:
            return output
        if place is not None and place.labels is not None:
            batch = batch._replace(labels=place.labels)
        if attendance is not None:
            answered = attendance.answered
            left_out = float((~answered).sum())
            module.log(f"{self.split}/unanswered", left_out, reduce_fx="sum", on_epoch=True, on_step=False)
            batch = batch._replace(labels=labels_of(batch)[answered], record_ids=batch.record_ids[answered])
            output = output[answered]
        return self._log(module, module.objective, output, batch)

    def _log(self, module: LightningModule, objective: Objective, output: Tensor, batch: VerticalBatch) -> Tensor:
        rows = len(batch.record_ids)
        output = not_narrower(output)
        predicted = predictions(objective, output)
        if rows == 0:  # this process has no rows of the last batch
            return predicted
        labels = labels_of(batch)
        refuse_nan_output(output, batch.record_ids, module.trainer)  # MeanMetric would leave such losses out
        if self.loss.dtype != output.dtype:
            round_to(self, output.dtype)
        self.loss.update(objective.loss(output, labels), rows)
        self.metrics.update(predicted, labels)
        self.spread.add(predicted, labels)
        module.log(f"{self.split}/loss", self.loss, batch_size=rows, on_epoch=True, on_step=False)
        module.log_dict(self.metrics, batch_size=rows, on_epoch=True, on_step=False)
        return predicted


def predictions_of(module: Any, batch: VerticalBatch, spread: Spread) -> Predictions:
    """The predictions of a protocol, ``module``, for a batch, with the positions of its records.

    ``spread``: counts them.
    """
    output: Tensor = module.evaluated(batch, module.next_round())
    attendance: Attendance | None = module.attendance
    if module.scores_here and attendance is None and batch.present is not None:
        attendance = Attendance(batch.present, module.answers(batch.present))
    answered = torch.ones(len(output), dtype=torch.bool, device=output.device)
    parties = None
    if attendance is not None and len(output):
        answered = attendance.answered
        parties = attendance.parties
    values = output  # at a party, what the server has told: of all records, or of none
    if module.scores_here:
        refuse_nan_output(output[answered], batch.record_ids[answered], module.trainer)
        values = predictions(module.objective, output)
    nothing = values.new_full((), torch.nan)
    values = torch.where(over_rows(answered, values), values, nothing)
    if module.scores_here:
        spread.add(values)
    return Predictions(batch.record_ids[: len(values)], values, parties)


def refuse_nan_output(output: Tensor, record_ids: Tensor, trainer: Trainer) -> None:
    """Refuse outputs of NaN: metrics and decisions would count them as some class.

    Args:
        output: (B, outputs) of records that get a prediction.
        record_ids: (B,) their positions.
        trainer: of the evaluation; a search of a learning rate goes on.

    Raises:
        ConfigurationError: naming the first record.
    """
    wrong = output.isnan()
    if wrong.any() and not searches_rate(trainer):
        wrong = wrong.reshape(len(output), -1).any(1)
        raise ConfigurationError(
            f"the model's output is NaN for {int(wrong.sum())} of {len(wrong)} records of a batch, first for the "
            f"record at position {int(record_ids[wrong][0])}; train again with a lower learning rate or "
            "trainer.gradient_clip_val, or use an earlier checkpoint"
        )


def refuse_unnamed(metrics: object) -> None:
    """Accept metrics by name.

    Raises:
        ConfigurationError: for one metric without a name.
    """
    if isinstance(metrics, Metric):
        name = type(metrics).__name__
        raise ConfigurationError(
            f"metrics must be metrics by name, such as metrics={{'{name.lower()}': {name}()}}; got {name}() alone"
        )
