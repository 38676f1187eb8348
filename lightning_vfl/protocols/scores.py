"""What evaluation gives: losses and metrics of a split, predictions, and who took part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection

from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.objectives import Objective
from lightning_vfl.protocols.checks import labels_of
from lightning_vfl.protocols.constant_output import Spread
from lightning_vfl.protocols.finite import refuse_nan_output
from lightning_vfl.types import Stage, VerticalBatch

SPLITS: Mapping[Stage, str] = {Stage.VALIDATION: "val", Stage.TEST: "test", Stage.PREDICT: "predict"}


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

    def log(self, module: LightningModule, objective: Objective, output: Tensor, batch: VerticalBatch) -> Tensor:
        """Update loss and metrics with the output of a batch, and log them; returns the predictions."""
        rows = len(batch.record_ids)
        predicted: Tensor = objective.predict(output).float()
        if rows == 0:  # this process has no rows of the last batch
            return predicted
        labels = labels_of(batch)
        refuse_nan_output(output, batch.record_ids, module.trainer)  # MeanMetric would leave such losses out
        self.loss.update(objective.loss(output, labels), rows)
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
