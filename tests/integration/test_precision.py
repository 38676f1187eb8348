"""Mixed precision and compiled networks work; schedules, early stopping and checkpoints are Lightning's own."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torchmetrics import MeanMetric

from lightning_vfl.absence.measure import embed, predicted_without
from lightning_vfl.absence.stand_ins import Zeros
from lightning_vfl.aggregators import Concat, Max, Mean
from lightning_vfl.audit.attacks.membership import members_and_others
from lightning_vfl.audit.case import Truth
from lightning_vfl.callbacks import LearningCurve
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.halves import ServerNetwork
from lightning_vfl.networks import MLP
from lightning_vfl.types import Roll
from tests.further import further
from tests.subjects import Blobs, Values, split, trainer


class MeanPrediction(MeanMetric):
    def update(self, values, labels):
        super().update(values.flatten())


@pytest.mark.parametrize(
    ("precision", "aggregator"),
    [
        further("64-true", Mean),  # other tests train in it to find small differences
        ("bf16-mixed", Mean),
        ("bf16-true", Concat),
        pytest.param("bf16-mixed", Max, marks=pytest.mark.slow),
    ],
)
def test_precisions_learn(tmp_path, precision, aggregator):
    module = split(aggregator())
    t = trainer(tmp_path, precision=precision, max_epochs=4)
    t.fit(module, datamodule=Blobs(batch_size=10))
    expected = {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)
    assert next(module.parameters()).dtype == expected
    assert float(t.callback_metrics["val/accuracy"]) >= 0.8


class ManyRecords(Values):
    """500 records of each split of the test, with labels near a thousand."""

    records_in_all = 2500

    def target(self, y):
        return 1000 + super().target(y)


@pytest.mark.parametrize("data", [Blobs, ManyRecords])
def test_scores_of_many_batches_are_those_of_all_predictions_at_once(tmp_path, data):
    """A sum of ones in bfloat16 ends at 256."""
    module, t = split(metrics={"mean": MeanPrediction()}), trainer(tmp_path, precision="bf16-true", max_epochs=1)
    t.fit(module, datamodule=(records := data(batch_size=1 if data is Blobs else 5)))
    (scores,) = t.test(module, datamodule=records, verbose=False)
    values = torch.cat([batch.values for batch in t.predict(module, datamodule=records)]).double()
    labels = records.load(("test",))["test"].labels
    assert scores["test/mean"] == pytest.approx(values.mean().item(), rel=1e-5)
    if data is Blobs:
        expected = -values[torch.arange(len(values)), labels].log().mean()
        assert scores["test/loss"] == pytest.approx(expected.item(), rel=1e-5)


class Validations(Callback):
    """The mean loss and the mean prediction of each validation, in float64 from the predictions of its batches."""

    def __init__(self):
        self.expected = []

    def on_validation_epoch_start(self, trainer, module):
        self.values, self.labels = [], []

    def on_validation_batch_end(self, trainer, module, predicted, batch, *_):
        self.values.append(predicted.double())
        self.labels.append(batch.labels)

    def on_validation_epoch_end(self, trainer, module):
        values = torch.cat(self.values)
        loss = -values[torch.arange(len(values)), torch.cat(self.labels)].log().mean()
        self.expected.append({"val/loss": loss.item(), "val/mean": values.mean().item()})


def test_scores_have_the_same_digits_in_every_validation(tmp_path):
    """Lightning moves a metric in a step, where torch's default is bfloat16, and torchmetrics then rounds to that."""
    validations, curve = Validations(), LearningCurve()
    module = split(metrics={"mean": MeanPrediction()})
    t = trainer(tmp_path, precision="bf16-true", max_epochs=3, callbacks=[validations, curve])
    t.fit(module, datamodule=Blobs(batch_size=7))
    for name in ("val/loss", "val/mean"):
        expected = [validation[name] for validation in validations.expected]
        assert [value for _, value in curve.points[name]] == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore")  # the tracer looks at gradients that are none
@pytest.mark.slow
def test_compiled_networks_give_the_same_training(tmp_path):
    """aot_eager traces and differentiates as inductor does, without minutes of C++."""

    def compiled(shape, width):
        return torch.compile(MLP(shape, width), backend="aot_eager")

    weights = []
    for settings in ({}, {"bottom": compiled}):
        module = split(**settings)
        trainer(tmp_path).fit(module, datamodule=Blobs(batch_size=10))
        weights.append(list(module.parameters()))
    for a, b in zip(*weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_protocol_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(ConfigurationError, match="compile the networks instead"):
        trainer(tmp_path).fit(torch.compile(split(), backend="eager"), datamodule=Blobs(batch_size=10))


def test_a_plateau_schedule_watches_the_validation_loss(tmp_path):
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, threshold=10.0, factor=0.5)
    t = trainer(tmp_path, max_epochs=4)
    t.fit(split(lr_scheduler=plateau), datamodule=Blobs(batch_size=10))
    assert t.optimizers[0].param_groups[0]["lr"] < 1e-2


def test_early_stopping_schedules_and_best_checkpoints(tmp_path):
    module = split(lr_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.1))
    stopper = EarlyStopping("train/loss_epoch", min_delta=10.0, patience=1)
    best = ModelCheckpoint(tmp_path, monitor="val/loss", save_top_k=1)
    t = trainer(
        tmp_path,
        max_epochs=50,
        logger=CSVLogger(str(tmp_path)),
        enable_checkpointing=True,
        callbacks=[stopper, best, LearningRateMonitor()],
    )
    t.fit(module, datamodule=Blobs(batch_size=10))
    assert t.current_epoch < 10
    assert best.best_model_path
    assert t.optimizers[0].param_groups[0]["lr"] < 1e-2


def of_an_audit(module, data, batch):
    return members_and_others(module, Truth(data))[0]["predictions"]


def without_a_party(module, data, batch):
    records = embed(module, data.val_dataloader())
    return predicted_without(module, records, (1,), Zeros(), None)[1]


def of_a_half(module, data, batch):
    everybody = Roll.everyone(module.roster.parties)
    network = ServerNetwork([], module.aggregator, module.head, module.objective, everybody, module.embedding_widths)
    return network(module.bottoms(batch.features), torch.ones(len(batch.record_ids), module.roster.parties).bool())


def of_a_call(module, data, batch):
    return module(batch)


@pytest.mark.parametrize("predict", [of_an_audit, without_a_party, of_a_half, of_a_call])
def test_predictions_of_a_narrow_network_are_computed_in_float32(tmp_path, predict):
    """Probabilities add up to one; in bfloat16, which has three digits, they miss it by up to a hundredth."""
    module, t = split(), trainer(tmp_path, precision="bf16-true", max_epochs=1)
    t.fit(module, datamodule=(data := Blobs(batch_size=16)))
    module.eval()
    batch = next(iter(data.val_dataloader()))
    batch = batch._replace(features=tuple(x.bfloat16() for x in batch.features))
    with torch.no_grad():
        found = predict(module, data, batch)
    assert found.dtype.itemsize >= 4
    assert float((found.double().sum(1) - 1).abs().max()) < 1e-6
    assert len(found.unique()) > len(found)
