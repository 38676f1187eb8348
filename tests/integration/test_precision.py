"""Mixed precision and compiled networks work; schedules, early stopping and checkpoints are Lightning's own."""

from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_vfl.aggregators import Concat, Max, Mean
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP
from tests.further import further
from tests.subjects import Blobs, split, trainer


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
