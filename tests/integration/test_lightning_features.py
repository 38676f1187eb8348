"""Every row of the table in docs/lightning.md runs here, and every case here has its row: neither drifts."""

import copy
import re
from datetime import timedelta
from functools import cache, partial
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.tuner.tuning import Tuner
from torch.utils.data import DataLoader, TensorDataset

from lightning_vfl import AsyncVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP
from lightning_vfl.protocols.checks import refuse_trainer
from tests.integration.processes import in_one_and_in_two
from tests.pages import ROOT
from tests.subjects import Blobs, same, split, trainer

PAGE = (ROOT / "docs" / "lightning.md").read_text(encoding="utf-8").partition("\n## ")[0]
ROWS = dict(re.findall(r"^\| (?!feature|---)(.+?) \| (.+?) \|$", PAGE, re.MULTILINE))
CASES: dict[str, Any] = {}
SHAPES: dict[str, Any] = {"party_shapes": [(3,), (3,), (2,)], "num_classes": 3}


def row(feature, slow=False):
    """Register the case of a row of the table."""

    def register(case):
        assert feature not in CASES
        CASES[feature] = pytest.param(feature, case, id=feature, marks=[pytest.mark.slow] if slow else [])
        return case

    return register


def fit(folder, module=None, data=None, **settings):
    """A trainer after a fit, and the module."""
    module = module or split()
    t = trainer(folder, **settings)
    t.fit(module, data or Blobs(batch_size=9))
    return t, module


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items() if name.startswith(("bottoms", "top"))}


@cache
def usual():
    """The weights after a fit without any feature."""
    with TemporaryDirectory() as folder:
        return weights(fit(folder)[1])


# ---- the length of a run


@row("`fast_dev_run`")
def fast(folder):
    t, _ = fit(folder, fast_dev_run=True, enable_checkpointing=True)
    assert (t.global_step, t.num_val_batches) == (1, [1])
    assert not [*folder.rglob("*.ckpt")]


@row("`overfit_batches`")
def overfit(folder):
    fast = split(optimizer=partial(torch.optim.Adam, lr=0.05))
    t, module = fit(folder, fast, overfit_batches=2, max_epochs=8)
    losses = [float((module(batch).argmax(1) != batch.labels).sum()) for batch in [*t.train_dataloader][:2]]
    assert t.global_step == 16
    assert losses == [0, 0]  # all of these records are predicted right


@row("`limit_train_batches`, `limit_val_batches`, … as numbers")
def limit_numbers(folder):
    t, _ = fit(folder, limit_train_batches=2, limit_val_batches=1)
    assert (t.global_step, t.num_val_batches) == (4, [1])


@row("`limit_train_batches`, `limit_val_batches`, … as shares")
def limit_shares(folder):
    t, _ = fit(folder, limit_train_batches=0.5, limit_val_batches=0.5)
    assert (t.global_step, t.num_val_batches) == (6, [1])


@row("`max_steps`, `min_epochs`, `max_time`, `Timer`")
def ends(folder):
    assert fit(folder, max_steps=5, max_epochs=-1)[0].global_step == 5
    assert fit(folder, callbacks=[Timer(timedelta(0), interval="step")])[0].global_step == 0
    assert fit(folder, callbacks=[Timer(timedelta(0), interval="step")], min_epochs=2)[0].global_step == 12


@row("`EarlyStopping`")
def early(folder):
    assert fit(folder, callbacks=[EarlyStopping("val/loss", stopping_threshold=9.0)])[0].current_epoch == 1


@row("`val_check_interval`, `check_val_every_n_epoch`, `num_sanity_val_steps`")
def validations(folder):
    class Count(Callback):
        made = 0

        def on_validation_end(self, trainer, pl_module):
            self.made += 1

    for settings, made in (({"val_check_interval": 2}, 6), ({"check_val_every_n_epoch": 2}, 1)):
        count = Count()
        fit(folder, callbacks=[count], **settings)
        assert count.made == made
    count = Count()
    fit(folder, callbacks=[count], num_sanity_val_steps=1, limit_train_batches=1, max_epochs=1)
    assert count.made == 2


# ---- searches and averages


@row("`LearningRateFinder`, `Tuner.lr_find`")
def rate(folder):
    search = {"num_training_steps": 20, "max_lr": 0.1, "early_stop_threshold": None}
    _, module = fit(folder, callbacks=[LearningRateFinder(**search)], max_epochs=4)
    assert 1e-8 < module.lr < 0.1
    _, other = fit(folder, split(optimizer=partial(torch.optim.Adam, lr=module.lr)), max_epochs=4)
    assert same(weights(module), weights(other))  # the search has left no trace but the rate
    assert same(module.books.state(), other.books.state())
    chosen = split()
    tuner = Tuner(trainer(folder, max_epochs=4))
    finder = tuner.lr_find(chosen, Blobs(batch_size=9), num_training=20, max_lr=0.1, early_stop_threshold=None)
    assert chosen.lr == finder.suggestion() == module.lr


@row("`BatchSizeFinder`, `Tuner.scale_batch_size`")
def rows_of_a_batch(folder):
    data = Blobs(batch_size=9)
    _, module = fit(folder, data=data, callbacks=[BatchSizeFinder(max_trials=3, steps_per_trial=1)], max_epochs=1)
    assert data.batch_size == 8
    _, other = fit(folder, data=Blobs(batch_size=8), max_epochs=1)
    assert same(weights(module), weights(other))
    assert same(module.books.state(), other.books.state())
    fit(folder, data=data, callbacks=[BatchSizeFinder(init_val=30, steps_per_trial=1)], max_epochs=1)
    assert data.batch_size == 54  # all training records


@row("`StochasticWeightAveraging`")
def averaged(folder):
    class Kept(Callback):
        seen = ()

        def on_train_epoch_end(self, trainer, pl_module):
            self.seen = (*self.seen, weights(pl_module))

    kept = Kept()
    averaging = StochasticWeightAveraging(0.05, swa_epoch_start=2, annealing_epochs=1)
    _, module = fit(folder, callbacks=[averaging, kept], max_epochs=4)
    for name, value in weights(module).items():
        means = torch.stack([seen[name] for seen in kept.seen[:3]]).mean(0)
        torch.testing.assert_close(value, means)


@row("`EMAWeightAveraging`")
def moving(folder):
    _, module = fit(folder, callbacks=[EMAWeightAveraging(decay=0.0)])
    assert same(weights(module), usual())
    assert not same(weights(module), weights(fit(folder, callbacks=[EMAWeightAveraging(decay=0.9)])[1]))


# ---- the optimiser


@row("`gradient_clip_val`, `gradient_clip_algorithm`")
def clipped(folder):
    for algorithm, norm in (("norm", lambda x: x.norm()), ("value", lambda x: x.abs().max())):
        module = split(optimizer=partial(torch.optim.SGD, lr=1.0), **SHAPES)
        module.configure_model()
        before = copy.deepcopy(module)
        fit(folder, module, max_steps=1, gradient_clip_val=1e-3, gradient_clip_algorithm=algorithm)
        for old, new in zip(before.owners(), module.owners(), strict=True):
            moved = torch.cat(
                [(a - b).detach().flatten() for a, b in zip(old.parameters(), new.parameters(), strict=True)]
            )
            assert float(norm(moved)) == pytest.approx(1e-3, rel=1e-3)  # every owner is clipped by itself


@row("`precision`: `bf16-mixed`, `bf16-true`, `64-true`, `16-mixed` on a GPU", slow=True)
def precise(folder):
    for precision, kind in (("64-true", torch.float64), ("bf16-mixed", torch.float32), ("bf16-true", torch.bfloat16)):
        t, module = fit(folder, precision=precision, max_epochs=8)
        assert {parameter.dtype for parameter in module.parameters()} == {kind}
        assert float(t.callback_metrics["val/accuracy"]) > 0.9


@row("`sync_batchnorm`, `benchmark`, `detect_anomaly`, `deterministic`")
def switches(folder):
    try:
        _, module = fit(folder, sync_batchnorm=True, detect_anomaly=True, deterministic=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert same(usual(), weights(module))


# ---- what is printed, logged and saved


@row("`ModelSummary`, `RichModelSummary`")
def summarised(folder, capsys):
    fit(folder, enable_model_summary=True, max_epochs=1)
    printed = capsys.readouterr().out
    assert all(
        f"│ {name} " in printed for name in ("bottoms.parties.0", "bottoms.parties.1", "bottoms.parties.2", "top")
    )


@row("progress bars")
def bars(folder):
    t, _ = fit(folder, enable_progress_bar=True, max_epochs=1)
    mean = float(t.callback_metrics["train/loss_epoch"])
    assert t.progress_bar_metrics["train/loss"] == pytest.approx(mean)


@row("`LearningRateMonitor`, `ThroughputMonitor`, `DeviceStatsMonitor`")
def monitored(folder):
    t, _ = fit(folder, logger=CSVLogger(folder), callbacks=[LearningRateMonitor()], log_every_n_steps=1)
    t.logger.save()
    assert "lr-Adam" in next(folder.rglob("metrics.csv")).read_text().splitlines()[0]


@row("several `ModelCheckpoint`s, `OnExceptionCheckpoint`")
def checkpoints(folder):
    best = ModelCheckpoint(folder / "best", monitor="val/loss")
    every = ModelCheckpoint(folder / "steps", every_n_train_steps=4, save_top_k=-1)
    fit(folder, callbacks=[best, every], enable_checkpointing=True)
    assert (len([*(folder / "best").iterdir()]), len([*(folder / "steps").iterdir()])) == (1, 3)


@row("`fit(ckpt_path=…)`")
def resumed(folder):
    saver = ModelCheckpoint(folder, "x", every_n_train_steps=7)
    fit(folder, callbacks=[saver], enable_checkpointing=True, max_steps=7, max_epochs=-1)
    module = split()
    trainer(folder).fit(module, Blobs(batch_size=9), ckpt_path=folder / "x.ckpt")
    assert same(weights(module), usual())


@row("`profiler`: `simple`, `advanced`, `pytorch`", slow=True)
def profiled(folder):
    for kind in (SimpleProfiler, AdvancedProfiler, PyTorchProfiler):
        fit(folder, profiler=kind(dirpath=folder, filename=kind.__name__), max_epochs=1)
        written = next(folder.glob(f"*{kind.__name__}.txt")).read_text()
        assert ("aten::" if kind is PyTorchProfiler else "training_step") in written


# ---- other ways to run


@row("`trainer.validate`, `test`, `predict` without a fit")
def evaluated(folder):
    (values,) = trainer(folder).validate(split(), Blobs(), verbose=False)
    assert values["val/loss"] > 0
    assert "test/accuracy" in trainer(folder).test(split(), Blobs(), verbose=False)[0]
    assert len(trainer(folder).predict(split(), Blobs())[0].values) == 18


@row("`inference_mode=False`")
def with_grad_mode(folder):
    values = [trainer(folder, inference_mode=on).validate(split(), Blobs(), verbose=False) for on in (True, False)]
    assert values[0] == values[1]


@row("`barebones`")
def bare(folder):
    module = split()
    with pytest.warns(UserWarning, match="barebones"):
        Trainer(barebones=True, accelerator="cpu", max_epochs=2).fit(module, Blobs(batch_size=9))
    assert same(weights(module), usual())


@row("`reload_dataloaders_every_n_epochs`")
def reloaded(folder):
    _, module = fit(folder, reload_dataloaders_every_n_epochs=1)
    assert same(weights(module), usual())


# ---- strategies and notebooks


def trained(folder, devices):
    """What each process does: two of them share every batch."""
    module = split()
    fit(folder, module, Blobs(batch_size=10 // devices), devices=devices, strategy="ddp" if devices > 1 else "auto")
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        torch.save(weights(module), folder / "weights.pt")


@row("`strategy`: `ddp`", slow=True)
def several_processes(folder):
    one, two = folder / "one", folder / "two"
    for place in (one, two):
        place.mkdir()
    in_one_and_in_two(trained, one, two)
    torch.testing.assert_close(*(torch.load(place / "weights.pt") for place in (one, two)))


# ---- what is refused, with the line that the page says


class TwoLoaders(Blobs):
    """Two loaders to validate."""

    def val_dataloader(self):
        return [super().val_dataloader()] * 2


def asynchronous():
    return AsyncVFL(Mean(), seed=0)


def with_norms(shape, width):
    return torch.nn.Sequential(MLP(shape, width), torch.nn.BatchNorm1d(width))


ZEROS = TensorDataset(torch.zeros(4, 8), torch.zeros(4).long())
REFUSED = {
    "`overfit_batches` in `AsyncVFL`, `CascadeVFL`": lambda folder: fit(folder, asynchronous(), overfit_batches=2),
    "`LearningRateFinder`, `BatchSizeFinder` with a protocol or aggregator that must be set up": lambda folder: fit(
        folder, asynchronous(), callbacks=[LearningRateFinder()]
    ),
    "`StochasticWeightAveraging` of networks with batch norm": lambda folder: fit(
        folder, split(bottom=with_norms), callbacks=[StochasticWeightAveraging(0.05)]
    ),
    "`ModelPruning`": lambda folder: fit(folder, callbacks=[ModelPruning("l1_unstructured", amount=0.3)]),
    "`accumulate_grad_batches` above 1": lambda folder: fit(folder, accumulate_grad_batches=2),
    "`GradientAccumulationScheduler`": lambda folder: fit(folder, callbacks=[GradientAccumulationScheduler({1: 2})]),
    "`reload_dataloaders_every_n_epochs` in `AsyncVFL`, `CascadeVFL`": lambda folder: fit(
        folder, asynchronous(), reload_dataloaders_every_n_epochs=1
    ),
    "a `DataLoader` of tensors": lambda folder: trainer(folder).validate(
        split(**SHAPES), DataLoader(ZEROS, batch_size=2)
    ),
    "`torch.compile(module)`": lambda folder: trainer(folder).fit(
        torch.compile(split()),  # type: ignore[arg-type]
        Blobs(batch_size=9),
    ),
    "`strategy`: `fsdp`, `deepspeed`, `model_parallel`": lambda folder: refuse_trainer(
        SimpleNamespace(strategy=ModelParallelStrategy()),  # type: ignore[arg-type]
        False,
    ),
    "`strategy`: `ddp_notebook`, `ddp_fork`, `ddp_spawn`": lambda folder: refuse_trainer(
        trainer(folder, strategy="ddp_notebook", devices=2), False
    ),
    "several validation or test loaders": lambda folder: fit(folder, data=TwoLoaders(batch_size=9)),
}


def test_every_row_has_a_case_and_every_case_a_row():
    assert sorted(ROWS) == sorted([*CASES, *REFUSED])


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # torch's own, where it compiles first
@pytest.mark.parametrize("feature", [pytest.param(f, marks=pytest.mark.slow) if "compile" in f else f for f in REFUSED])
def test_a_refused_feature_ends_in_the_line_of_its_row(feature, tmp_path):
    with pytest.raises(ConfigurationError) as error:
        REFUSED[feature](tmp_path)
    assert ROWS[feature] == f"refused: `{error.value}`"


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.filterwarnings("ignore:You're using the WeightAveraging callback with a model that overrides")
@pytest.mark.filterwarnings("ignore:The PyTorch Profiler default schedule will be overridden")
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events at the end of each cycle")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(("feature", "case"), CASES.values())
def test_feature(feature, case, request, tmp_path):
    more = {name: request.getfixturevalue(name) for name in case.__code__.co_varnames[1 : case.__code__.co_argcount]}
    assert ROWS[feature].startswith("works")
    case(tmp_path, **more)
