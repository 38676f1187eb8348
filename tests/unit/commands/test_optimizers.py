"""The optimiser in the way of users of LightningCLI; the module makes it, so that a checkpoint can rebuild it."""

import json

import pytest
import torch
from lightning.pytorch import Trainer

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.cli import run
from lightning_vfl.commands.recipes import merge, rename_option
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.commands.vfl_cli import VFLCLI
from tests.further import further

RECIPES = ["--config", "data/digits", "--config", "protocol/mean"]
SGD = {"class_path": "SGD", "init_args": {"lr": 0.5, "momentum": 0.9}}


def settings(*options):
    made = VFLCLI(["fit", *options]).given.model.init_args
    return {
        name: made[name] and (made[name].class_path.rpartition(".")[2], made[name].init_args)
        for name in ("optimizer", "lr_scheduler")
    }


@pytest.mark.slow
def test_the_default_is_visible_and_is_that_of_the_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = ["--trainer.limit_train_batches=1", "--trainer.limit_val_batches=0", "--trainer.max_epochs=1"]
    done = run(["fit", *RECIPES, *short, "--trainer.accelerator=cpu", "--trainer.logger=false"])
    assert done.given.model.init_args.optimizer.class_path == "torch.optim.Adam"
    (made,) = done.trainer.optimizers
    (path,) = tmp_path.rglob("*.ckpt")
    for module in (SplitVFL(Mean()), SplitVFL.load_from_checkpoint(path)):
        tried = Trainer(fast_dev_run=True, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False)
        tried.fit(module, datamodule=done.datamodule)
        assert isinstance(made, torch.optim.Adam)
        assert type(made) is type(tried.optimizers[0])
        assert made.defaults == tried.optimizers[0].defaults


@pytest.mark.parametrize(
    ("options", "name", "lr"),
    [
        (["--model.optimizer.lr", "0.01"], "Adam", 0.01),
        pytest.param(["--model.lr=0.01"], "Adam", 0.01, marks=pytest.mark.slow),
        (["--optimizer", "Adagrad"], "Adagrad", 0.01),  # its own default, not that of Adam
        further(["--optimizer=SGD", "--optimizer.lr", "0.25", "--optimizer.momentum=0.9"], "SGD", 0.25),
        pytest.param(["--config", json.dumps({"optimizer": SGD})], "SGD", 0.5, marks=pytest.mark.slow),
        (["--config", json.dumps({"optimizer": SGD}), "--optimizer.lr=0.125"], "SGD", 0.125),
    ],
)
def test_the_optimiser(options, name, lr):
    given, made = settings(*RECIPES, *options)["optimizer"]
    assert (given, made.lr) == (name, lr)
    assert "fused" not in made or made.fused == (True if name == "Adam" else None)


@pytest.mark.slow
def test_schedules_and_options_before_the_recipes():
    options = ["--lr_scheduler=StepLR", "--lr_scheduler.step_size", "3", "--optimizer", "SGD", "--optimizer.lr=0.5"]
    made = settings(*options, *RECIPES)
    assert made["optimizer"][1].lr == 0.5
    assert (made["lr_scheduler"][0], made["lr_scheduler"][1].step_size) == ("StepLR", 3)
    plateau = VFLCLI(["fit", *RECIPES, "--lr_scheduler", "ReduceLROnPlateau"]).given.model.init_args.lr_scheduler
    assert plateau.class_path == "torch.optim.lr_scheduler.ReduceLROnPlateau"  # Lightning has one that needs a monitor


OF_TABLES = ["--config", "data/csv_tables", "--data.tables={a: a.csv}", "--data.label_party=a", "--data.label_column=y"]


@pytest.mark.parametrize(
    ("options", "name", "decay", "schedule"),
    [
        pytest.param(["--config", "protocol/mean"], "Adam", 0.005, 0.9, marks=pytest.mark.slow),
        (["--config", "protocol/mean", "--model.lr=0.25", "--lr_scheduler.gamma=1"], "Adam", 0.005, 1.0),
        (["--config", "protocol/mean", "--lr_scheduler=StepLR", "--lr_scheduler.step_size=3"], "Adam", 0.005, 0.1),
        (["--config", "protocol/cvfl"], "SGD", 0.0, None),  # the protocol names its own
        further(["--config", "protocol/mean", "--optimizer=SGD"], "SGD", 0.0, None),
    ],
)
def test_the_optimiser_of_a_recipe_of_data_takes_the_place_of_the_default(options, name, decay, schedule):
    made = settings(*OF_TABLES, *options)
    assert (made["optimizer"][0], made["optimizer"][1].weight_decay) == (name, decay)
    assert (made["lr_scheduler"] and made["lr_scheduler"][1].gamma) == schedule


def test_a_model_without_an_optimiser_is_given_none():
    tables = {"data": "CSVTables", "optimizer": SGD, "lr_scheduler": "StepLR"}
    own = {"model": "tests.unit.commands.test_optimizers.WithoutOptimiser"}
    assert "optimizer" not in merge([tables, own])["model"].get("init_args", {})
    assert merge([tables, {"model": "no_such_module.Model"}])["model"]["init_args"]["optimizer"] == SGD


class WithoutOptimiser:
    def __init__(self, width: int) -> None: ...


def test_no_optimiser_can_be_asked_for_and_the_module_takes_its_default():
    assert settings(*RECIPES, "--optimizer=null")["optimizer"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--optimizer.lrr=2"], "model.optimizer: 'lrr' is not a setting of Adam; did you mean lr?"),
        (["--optimizer=null", "--model.lr=2"], "model.optimizer: 'lr' is set, but no class is; name the class first"),
        (["--model.learning_rate=2"], "of SplitVFL; the optimiser has it; write --model.optimizer.lr"),
        (["--optimzer", "SGD"], "unknown option --optimzer SGD; did you mean --optimizer"),
    ],
)
def test_mistakes_have_a_line(options, message):
    with pytest.raises(UsageError) as told:
        VFLCLI(["fit", *RECIPES, *options])
    assert message in str(told.value)


def test_only_the_top_level_is_renamed():
    assert [rename_option(o) for o in ("--optimizer", "-c", "--data.optimizer", "--optimizers")] == [
        "--model.optimizer",
        "-c",
        "--data.optimizer",
        "--optimizers",
    ]
    assert merge([{"trainer": {"optimizer": 1}}]) == {"trainer": {"optimizer": 1}}
    model = {"class_path": "SplitVFL", "init_args": {"width": 3, "optimizer": SGD}}
    assert merge([{"model": {"class_path": "SplitVFL", "init_args": {"width": 3}}, "optimizer": SGD}]) == {
        "model": model
    }
    assert merge([{"model": "SplitVFL", "optimizer": SGD}])["model"]["class_path"] == "SplitVFL"
