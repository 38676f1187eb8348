"""The evaluation half of a protocol: losses and metrics, and the set-up of protected evaluation."""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.parts import Wire
from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.objectives import Objective
from lightning_vfl.protocols.books import Books
from lightning_vfl.protocols.checks import (
    labels_of,
    refuse_other_batches,
    refuse_other_records,
    refuse_several_loaders,
)
from lightning_vfl.protocols.constant_output import Spread, warn_of_chance
from lightning_vfl.protocols.faulty_evaluation import Attendance
from lightning_vfl.protocols.finite import refuse_nan_output
from lightning_vfl.protocols.hooks import FreeHooks, toolkit_hook
from lightning_vfl.protocols.logs import log_standing
from lightning_vfl.protocols.place import Place
from lightning_vfl.protocols.preparation import Preparation
from lightning_vfl.rounds.ends import Hear
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.types import RoundNames, Stage, VerticalBatch
from lightning_vfl.wire import Tap

SPLITS: Mapping[Stage, str] = {Stage.VALIDATION: "val", Stage.TEST: "test", Stage.PREDICT: "predict"}


class Predictions(NamedTuple):
    """Positions (B,) in the predicted records, and probabilities or values (B,) or (B, C).

    ``parties`` (B, M) bool are the parties that took part in each prediction; None: all of them, in every prediction.
    Records without a prediction, and those that no party has, have NaN.
    """

    record_ids: Tensor
    values: Tensor
    parties: Tensor | None = None


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

    def reset(self) -> None:
        """Reset loss and metrics at the start of an evaluation.

        An earlier ``trainer.validate`` has reset them in inference mode; a fit, which validates outside of inference
        mode, could not update them then. The batches of an interrupted evaluation must not count in the next result.
        """
        self.loss.reset()
        self.metrics.reset()
        self.spread = Spread()

    def log(self, module: "EvaluatedModule", output: Tensor, batch: VerticalBatch) -> Tensor:
        """Update loss and metrics with the output of a batch, and log them; returns the predictions."""
        rows = len(batch.record_ids)
        predicted: Tensor = module.objective.predict(output).float()
        if rows == 0:  # this process has no rows of the last batch
            return predicted
        labels = labels_of(batch)
        refuse_nan_output(output, batch.record_ids, module.trainer)  # MeanMetric would leave such losses out
        self.loss.update(module.objective.loss(output, labels), rows)
        self.metrics.update(predicted, labels)
        self.spread.add(predicted, labels)
        module.log(f"{self.split}/loss", self.loss, batch_size=rows, on_epoch=True, on_step=False)
        module.log_dict(self.metrics, batch_size=rows, on_epoch=True, on_step=False)
        return predicted


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


class EvaluatedModule(FreeHooks, LightningModule, metaclass=ABCMeta):  # no base ABC: an author's mixin may have it
    """The half of a protocol that validates, tests and predicts."""

    aggregator: Aggregator
    wire: Wire
    sides: Sides
    objective: Objective
    books: Books
    preparation: Preparation
    protected_evaluation: bool
    val: Scores
    test: Scores
    place: Place | None = None  # None: everybody is hosted in this process
    keys: dict[int | None, bytes]
    """By hosted owner (None: the server), the secret that replaces the seed in a federation; empty in a simulation."""
    tap: Tap | None = None  # listens to all messages, for an audit
    _predicted: Spread = Spread()  # of the last prediction; a new one when one begins
    predictor: Callable[[VerticalBatch], Predictions] | None = None  # takes the place of the rounds of predictions
    attendance: Attendance | None = None  # of the last evaluation round; None: nobody who was asked was absent

    @property
    def owner(self) -> int | None:
        """Whose process this is: a party's, or None for the server's, and for a simulation, which hosts everybody."""
        return None if self.place is None else self.place.seat.party

    @abstractmethod
    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The top model's output (B, outputs) for a batch in a stage that does not train."""

    @abstractmethod
    def next_round(self, seed_global: bool = False) -> RoundNames:
        """The names of the next round's random streams; ``seed_global``: also seed torch's global generator."""

    @abstractmethod
    def prepare(self, stage: Stage, split: str) -> None:
        """Let the parties set up a stage before its first round."""

    @abstractmethod
    def answers(self, there: Tensor) -> Tensor:
        """(B,) bool, the records that get a prediction if the parties in ``there`` (B, M) bool take part."""

    @abstractmethod
    def standing(self) -> dict[str, float]:
        """The progress of the training, by log name."""

    def listener(self, ids: Tensor, at: int | None = None) -> Hear | None:
        """The function to call with each message about records ``ids`` (B,); None: nobody listens.

        ``at``: the party that plays the server; None: the server itself.
        """
        return None if self.tap is None else partial(self.tap.sent, ids=ids, at=at)

    @property
    def stage(self) -> Stage:
        """The stage of the trainer; without a trainer, prediction."""
        trainer = self._trainer
        if trainer is None:
            return Stage.PREDICT
        if trainer.training:  # first, because Lightning takes 3 µs for each of these questions
            return Stage.FIT
        if trainer.predicting:
            return Stage.PREDICT
        if trainer.sanity_checking:
            return Stage.SANITY_CHECK
        if trainer.testing:
            return Stage.TEST
        return Stage.VALIDATION if trainer.validating or trainer.evaluating else Stage.FIT

    @stage.setter
    def stage(self, value: Any) -> None:
        raise ConfigurationError(
            f"stage is the trainer's stage, which protocols read; keep {value!r} under another name (self.stage_name)"
        )

    @toolkit_hook
    def on_validation_start(self) -> None:
        """Reset the scores; set up the validation records, once a fit."""
        self._refuse_several("validation", self.trainer.num_val_batches)
        self.val.reset()
        self._set_up(Stage.VALIDATION, self.trainer.val_dataloaders)

    @toolkit_hook
    def on_test_start(self) -> None:
        """Reset the scores; set up the test records."""
        self._refuse_several("test", self.trainer.num_test_batches)
        self.test.reset()
        self._set_up(Stage.TEST, self.trainer.test_dataloaders)

    @toolkit_hook
    def on_predict_start(self) -> None:
        """Set up the records to predict."""
        self._predicted = Spread()
        self._set_up(Stage.PREDICT, self.trainer.predict_dataloaders)

    def validation_step(self, batch: VerticalBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Update and log loss and metrics of a batch; callbacks get its predictions."""
        refuse_other_batches(batch)
        return self._scored(self.val, self.output(batch, self.next_round()), batch)

    def test_step(self, batch: VerticalBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Update and log loss and metrics of a batch; callbacks get its predictions."""
        refuse_other_batches(batch)
        return self._scored(self.test, self.output(batch, self.next_round()), batch)

    def predict_step(self, batch: VerticalBatch, batch_idx: int, dataloader_idx: int = 0) -> Predictions:
        """Predictions of a batch, with the positions of its records."""
        refuse_other_batches(batch)
        if self.predictor is not None:
            return self.predictor(batch)
        output = self.output(batch, self.next_round())
        attendance = self.attendance
        if self.scores_here and attendance is None and batch.present is not None:
            attendance = Attendance(batch.present, self.answers(batch.present))
        answered = torch.ones(len(output), dtype=torch.bool, device=output.device)
        parties = None
        if attendance is not None and len(output):
            answered, parties = attendance.answered, attendance.parties
        values = output  # at a party, what the server has told: of all records, or of none
        if self.scores_here:
            refuse_nan_output(output[answered], batch.record_ids[answered], self.trainer)
            values = self.objective.predict(output).float()
        nothing = values.new_full((), torch.nan)
        values = torch.where(answered.view(-1, *(1,) * (values.dim() - 1)), values, nothing)
        if self.scores_here:
            self._predicted.add(values)
        return Predictions(batch.record_ids[: len(values)], values, parties)

    def _refuse_several(self, stage: str, batches: Any) -> None:
        """Refuse several loaders, unless the author has written the step that scores them."""
        step = f"{stage}_step"
        if getattr(type(self), step) is getattr(EvaluatedModule, step):
            refuse_several_loaders(stage, batches)

    @property
    def scores_here(self) -> bool:
        """Whether this process has the server's outputs; a party of a federation has not."""
        return self.place is None or self.place.seat.party is None

    def _scored(self, scores: Scores, output: Tensor, batch: VerticalBatch) -> Tensor:
        if not self.scores_here:
            return output
        if self.place is not None and self.place.labels is not None:
            batch = batch._replace(labels=self.place.labels)
        if self.attendance is not None:
            answered = self.attendance.answered
            left_out = float((~answered).sum())
            self.log(f"{scores.split}/unanswered", left_out, reduce_fx="sum", on_epoch=True, on_step=False)
            labels = labels_of(batch)[answered]
            batch = batch._replace(labels=labels, record_ids=batch.record_ids[answered])
            return scores.log(self, output[answered], batch)
        return scores.log(self, output, batch)

    @toolkit_hook
    def on_validation_epoch_end(self) -> None:
        """Log the progress of the training beside the validation's values."""
        self._share_metrics("val", at_parties=True)
        if self.stage == Stage.VALIDATION:
            log_standing(self)

    @toolkit_hook
    def on_validation_end(self) -> None:
        """Free the memory of the shares; a fit keeps them for its next validation."""
        self._share_metrics("val", at_parties=False)
        if self.trainer.state.fn == TrainerFn.VALIDATING:
            warn_of_chance(self, self.val.spread, "val")
            self.forget(Stage.VALIDATION)

    @toolkit_hook
    def on_test_epoch_end(self) -> None:
        """In a party's process, log the metrics that the server has found."""
        self._share_metrics("test", at_parties=True)

    @toolkit_hook
    def on_test_end(self) -> None:
        """Free the memory of the shares."""
        self._share_metrics("test", at_parties=False)
        warn_of_chance(self, self.test.spread, "test")
        self.forget(Stage.TEST)

    @toolkit_hook
    def on_predict_end(self) -> None:
        """Warn of predictions that are all alike; free the memory of the shares."""
        warn_of_chance(self, self._predicted, "predict")
        self.forget(Stage.PREDICT)

    def _share_metrics(self, split: str, at_parties: bool) -> None:
        if self.place is not None and self.scores_here != at_parties:
            self.place.share_metrics(self, split)

    def _set_up(self, stage: Stage, loaders: Any) -> None:
        """Let the parties set up the records of a stage, once a fit, if evaluation is protected."""
        if not self.protected_evaluation:
            return
        name = type(self.aggregator).__name__
        if stage not in self.preparation.memory:
            self.prepare(stage, SPLITS[stage])
        refuse_other_records(self.preparation.sources.get(stage), loaders, name)

    def forget(self, *stages: Stage) -> None:
        """Free the shares and keys of these stages; a later run of a stage makes new ones."""
        self.preparation.forget(*stages)
        for stage in stages:
            self.books.opened.pop(stage, None)
