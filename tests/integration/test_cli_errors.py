"""What a user gets wrong ends in ONE line that names the fix, and exit status 1 or 2."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.cli import main, run
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError
from tests.further import further

GOOD = ["--config", "data/digits", "--config", "protocol/mean", "--trainer.accelerator", "cpu"]


def complaint(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lightning-vfl: error: ")]
    assert len(lines) == 1
    return stop.value.code, lines[0].removeprefix("lightning-vfl: error: ")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        (["--model.aggregator", "Meen"], 2, "model.aggregator: 'Meen' is not a known class; did you mean Mean"),
        further(["--model.bottom", "MPL"], 2, "model.bottom: 'MPL' is not a known class; did you mean MLP"),
        further(
            ["--model.downlink", "Marvel"], 2, "model.downlink: 'Marvel' is not a known class; did you mean Marvell"
        ),
        (["--model.widht", "3"], 2, "model: 'widht' is not a setting of SplitVFL; did you mean width"),
        further(["--model.width", "wide"], 2, "model.width: 'wide' is not a whole number"),
        further(["--trainer.max_epochs", "three"], 2, "trainer.max_epochs: three is none of int, null"),
        further(["--trainer.loger", "false"], 2, "unknown option --trainer.loger false; did you mean --trainer.logger"),
        (["--modl.width", "8"], 2, "unknown option --modl.width 8; did you mean --model.width?"),
        (["--data.partitioner", "NamedColumns"], 2, "NamedColumns needs a value for columns"),
        further(["--model.width", "0"], 1, "width must be at least 1; got 0"),
        further(
            ["--data.partitioner.parties", "40"], 1, "40 parties cannot share 8 rows of pixels; use 1 to 8 parties"
        ),
        further(["--data.batch_size", "5000"], 1, "batch_size must be a whole number from 1 to 1,257; got 5000"),
        (["--model.top.outputs", "3"], 1, "the top MLP outputs (3,) numbers for each record, but 10 are needed"),
        further(
            ["--model.bottom", "ConvNet", "--data.partitioner", "ContiguousColumns"], 1, "choose an image partitioner"
        ),
        (["--model.objective", "Binary"], 1, "use MultiClass"),
        (["--trainer.accumulate_grad_batches", "2"], 1, "raise batch_size instead"),
        (["--config", "protocol/meen"], 1, "no packaged recipe of that name; did you mean protocol/mean"),
        (["--ckpt_path", "gone.ckpt"], 1, "gone.ckpt: no such file"),
        further(
            ["--trainer.accelerator", "tpu"], 1, "torch_xla is needed and not installed; pip install 'torch_xla>=1.13'"
        ),
        (
            ["--trainer.logger", "neptune.Run"],
            2,
            "--trainer.logger: the module neptune is neither installed nor in the",
        ),
        further(
            ["--model.aggregator", "my_project.Own"],
            2,
            "model.aggregator: the module my_project is neither installed nor",
        ),
        (["--model.bottom_of", "3"], 2, "model.bottom_of: 3 is not a mapping; write"),
        (["--data.partitioner", "NamedColumns", "--data.partitioner.columns", "a"], 2, "columns: a is given, but the"),
        (
            ["--trainer.callbacks+", "Stragglers", "--trainer.callbacks.parties", "bank"],
            2,
            "trainer.callbacks.parties: bank is not a list; write '[bank]'",
        ),
        (["--model.bottom_of.1.class_path", "Linear"], 1, "does not exist; write {1: {class_path: ...}}"),
        (["--predictions.path", "p.txt"], 1, "need a .csv or .parquet file; got 'p.txt'"),
    ],
)
def test_one_line_names_the_fix(more, status, message, capsys):
    code, line = complaint(["fit", *GOOD, *more], capsys)
    assert message in line
    assert code == status


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ("dta: {class_path: Digits}", "'dta' is not a setting; did you mean data?"),
        ("trainer: {max_epoch: 3}", "'trainer.max_epoch' is not a setting; did you mean trainer.max_epochs"),
        (
            "model: {class_path: AsyncVFL, init_arg: {width: 3}}",
            "--model: 'init_arg' beside class_path is not known; did you mean init_args?",
        ),
        (
            "trainer: {callbacks+: [{class_path: Stragglers, init_args: {parties: [bank]}}]}",
            "trainer.callbacks.parties: 'bank' is not a whole number",
        ),
        (
            "data:\n  class_path: Digits\n init_args: {}",
            "--config own.yaml: the recipe is not YAML in line 3: did not find expected key; correct the indentation",
        ),
        (
            "model: {width: 8}\nmodel:\n  class_path: SplitVFL",
            "--config own.yaml: the recipe is not YAML in line 2: the key 'model' is given twice; give it once",
        ),
        ("data: {class_path: Digits\n", "own.yaml: the recipe is not YAML in line 2: did not find expected ',' or '}'"),
    ],
)
def test_a_recipe_with_a_typing_error(recipe, line, capsys):
    Path("own.yaml").write_text(recipe)
    assert line in complaint(["fit", *GOOD, "--config", "own.yaml"], capsys)[1]


def test_a_logger_whose_package_is_missing_is_one_line(monkeypatch, capsys):
    loggers = sys.modules["lightning.pytorch.loggers.mlflow"]
    monkeypatch.setattr(loggers, "_MLFLOW_AVAILABLE", loggers.RequirementCache("mlflow>=9999"))
    code, line = complaint(["fit", *GOOD, "--trainer.logger", "lightning.pytorch.loggers.MLFlowLogger"], capsys)
    assert (code, line) == (1, "the package mlflow is needed and not installed; pip install 'mlflow>=9999'")


def test_one_value_for_a_list_is_told_how_to_write_it(capsys):
    table = ["--data", "CSVTables", "--data.tables", "{a: a.csv}", "--data.label_party=a", "--data.label_column=y"]
    code, line = complaint(["fit", "--config", "protocol/mean", *table, "--data.categorical", "bank_1"], capsys)
    assert (code, line) == (2, "data.categorical: bank_1 is given, but the setting is a list; write [bank_1]")


def test_the_program_finds_classes_in_the_current_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "my_own_project.py").write_text("from lightning_vfl.aggregators import Mean as Average")
    options = ["--model.aggregator", "my_own_project.Average", "--print_config"]
    with pytest.raises(SystemExit) as stop:
        main(["fit", *GOOD, *options])
    assert stop.value.code == 0
    assert "class_path: my_own_project.Average" in capsys.readouterr().out
    assert sys.path[-1] == str(tmp_path)  # installed packages come first


def test_in_python_the_line_is_an_exception(capsys):
    with pytest.raises(UsageError, match=r"'widht' is not a setting of SplitVFL; did you mean width") as told:
        run(["fit", *GOOD, "--model.widht", "3"])
    assert "\n" not in str(told.value)
    with pytest.raises(ConfigurationError, match=r"^width must be at least 1; got 0"):
        run(["fit", *GOOD, "--model.width", "0"])
    with pytest.raises(ConfigurationError, match="the package torch_xla is needed") as told:
        run(["fit", *GOOD, "--trainer.accelerator", "tpu"])
    assert not isinstance(told.value, UsageError)
    assert capsys.readouterr().err.count("lightning-vfl: error") == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--config", "policy/stale"], "DecoupledVFL does not support a waiting rule; nobody waits"),
        pytest.param(
            ["--model.aggregator", "Mean"],
            "its hosts join the latest embeddings; leave the aggregator out",
            marks=pytest.mark.slow,
        ),
        further(["--model.register", "letter"], "model.register"),
        further(["--trainer.max_epochs", "30"], "max_epochs must be at least 31"),
        (["--trainer.callbacks+", "EarlyStopping", "--trainer.callbacks.monitor", "val/loss"], "DuringPhase"),
        pytest.param(
            ["--trainer.callbacks+", "PrivacyBudget", "--trainer.callbacks.target_epsilon", "8"],
            "needs an aggregator that accounts for privacy",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_decoupled_training_says_what_has_no_place_in_it(more, message, capsys):
    recipes = ["--config", "data/digits", "--config", "protocol/dvfl", "--trainer.accelerator", "cpu"]
    assert message in complaint(["fit", *recipes, *more], capsys)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fitt"], "unknown command 'fitt'; did you mean fit?"),
        ([], "no command is given; give one of fit, validate, test, predict, contribution, robustness, export"),
        (["--confg", "data/digits", "fit"], "unknown option --confg; did you mean --config"),
        (["fit", "data/digits"], "unexpected argument data/digits; write --config data/digits"),
        (["fit", "protocol"], "unexpected argument protocol; see --help"),
        (["predict", *GOOD, "--out", "p.csv"], "unknown option --out p.csv; write --predictions.path FILE"),
        (["fit", "--config", "data/digits"], "needs a value for fit.model"),
        (["fit"], "needs a value for fit.data and fit.model; set it in a recipe or as an option"),
        (["audit", "--config", "data/digits", "--config", "protocol/mean"], "audit needs --attacker; see audit --help"),
        (["keys"], "keys needs FOLDER and --parties; see keys --help"),
        (
            ["keys", "--config", "protocol/mean"],
            "--config belongs to a recipe, and this command reads none; leave it out",
        ),
        (["keys", "some", "more", "--foo", "3"], "unexpected argument more; see --help"),
    ],
)
def test_incomplete_commands(arguments, message, capsys):
    code, line = complaint(arguments, capsys)
    assert code == 2
    assert message in line


def test_a_recipe_may_have_a_section_for_each_subcommand(tmp_path, capsys):
    (tmp_path / "all.yaml").write_text("fit: {trainer: {max_epochs: three}}")
    for arguments in (["--config", "all.yaml"], ["--config", "all.yaml", "fit"]):
        assert complaint(arguments, capsys) == (2, "trainer.max_epochs: three is none of int, null")


@pytest.mark.parametrize("command", ["test", further("predict"), further("validate")])
def test_an_untrained_model_is_not_evaluated_silently(command, capsys):
    code, line = complaint([command, *GOOD], capsys)
    assert code == 1
    assert f"{command} needs a trained model; give --ckpt_path" in line


def test_what_is_no_checkpoint_is_said_so(tmp_path, capsys):
    (tmp_path / "x.ckpt").write_text("no checkpoint")
    for path in ("x.ckpt", "."):
        code, line = complaint(["test", *GOOD, "--ckpt_path", path], capsys)
        assert code == 1
        assert "is not a checkpoint; give the .ckpt that fit has written" in line


def test_labels_missing_and_nan_in_features(tmp_path, capsys):
    x = np.arange(40, dtype=float)
    pd.DataFrame({"id": range(40), "a": x, "b": x}).to_csv(tmp_path / "one.csv", index=False)
    pd.DataFrame({"id": range(40), "c": x, "y": [0, 1] * 20}).to_csv(tmp_path / "two.csv", index=False)
    data = ["--data", "CSVTables", "--data.tables", "{one: one.csv, two: two.csv}", "--data.label_party", "two"]
    model = ["--model", "SplitVFL", "--model.aggregator", "Sum", "--trainer.accelerator", "cpu"]
    code, line = complaint(["fit", *data, "--data.label_column", "z", *model], capsys)
    assert code == 1
    assert "no label column 'z'" in line
    pd.DataFrame({"id": range(40), "c": [*x[:-1], np.inf], "y": [0, 1] * 20}).to_csv(tmp_path / "two.csv", index=False)
    code, line = complaint(["fit", *data, "--data.label_column", "y", "--data.test_share", "0.2", *model], capsys)
    assert code == 1
    assert "infinite" in line


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("lightning-vfl 1.")
