"""NaN ends a training, a test and a prediction in one line: nothing is learnt, counted or decided from it."""

import re

import pytest
import torch
from lightning.pytorch.callbacks import LearningRateFinder
from torchmetrics import MeanSquaredError

from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import PredictionWriter
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import MultiClass
from tests.subjects import Blobs, split, trainer

pytestmark = pytest.mark.filterwarnings("ignore:Breaks.calls changes from round to round")


class Breaks(MultiClass):
    """Cross-entropy that is NaN from a number of calls on."""

    def __init__(self, after):
        super().__init__()
        self.after, self.calls = after, 0

    def loss(self, output, labels):
        self.calls += 1
        return super().loss(output, labels) * (torch.nan if self.calls > self.after else 1.0)


@pytest.mark.parametrize(("after", "epoch"), [(0, 0), (3, 0), (8, 1)])
def test_a_loss_of_nan_ends_the_training_in_its_epoch(tmp_path, after, epoch):
    module = split(Mean(), objective=Breaks(after))
    with pytest.raises(ConfigurationError, match=f"the training loss is NaN in epoch {epoch}, and parameters that"):
        trainer(tmp_path, limit_val_batches=0, max_epochs=4).fit(module, datamodule=Blobs(batch_size=10))
    assert module.current_epoch == epoch


def test_detect_anomaly_names_the_operation(tmp_path):
    module = split(Mean(), objective=Breaks(3))
    with pytest.raises(RuntimeError, match="Function 'MulBackward0' returned nan values"):
        trainer(tmp_path, detect_anomaly=True, log_every_n_steps=1).fit(module, datamodule=Blobs(batch_size=10))


@pytest.mark.filterwarnings("ignore:Encountered `nan` values")  # MeanMetric's, in the search
def test_a_search_of_a_learning_rate_goes_on(tmp_path):
    module = split(Mean(), objective=Breaks(10))
    search = LearningRateFinder(num_training_steps=40, early_stop_threshold=None)
    with pytest.raises(ConfigurationError, match="the training loss is NaN in epoch 0"):  # of the fit after the search
        trainer(tmp_path, limit_val_batches=0, max_epochs=10, callbacks=[search]).fit(
            module, datamodule=Blobs(batch_size=10)
        )
    assert module.objective.calls > 40


def with_a_nan(tmp_path):
    module, data = split(Mean()), Blobs(batch_size=10)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=data)
    with torch.no_grad():
        next(module.top.parameters())[0] = torch.nan
    return module, data


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_outputs_of_nan_are_refused(tmp_path, stage):
    module, data = with_a_nan(tmp_path)
    message = "the model's output is NaN for 10 of 10 records of a batch, first for the record at position 0; train"
    writer = PredictionWriter(str(tmp_path / "predictions.csv"))
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        getattr(trainer(tmp_path, callbacks=[writer]), stage)(module, datamodule=data)
    assert not writer.path.exists()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss": MeanSquaredError()}, "metrics has the name loss, under which the loss is logged; use another name"),
        ({"error": MeanSquaredError}, "metrics['error'] must be a Metric, such as torchmetrics.MeanSquaredError()"),
    ],
)
def test_metrics(tmp_path, metrics, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        trainer(tmp_path).fit(split(Mean(), metrics=metrics), datamodule=Blobs(batch_size=10))
