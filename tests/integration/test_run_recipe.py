"""A checkpoint, or the folder of a run, is enough to use a trained model; options on top of its recipe win."""

from pathlib import Path

import pandas as pd
import pytest

from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from tests.further import further

RECIPES = ["--config", "data/digits", "--config", "protocol/mean"]
FIT = [*RECIPES, "--model.bottom.hidden", "[7]", "--data.batch_size", "100", "--trainer.max_epochs", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A working folder with one run of fit."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(["fit", *FIT])
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(runs, monkeypatch):
    monkeypatch.chdir(runs)


def scores(*arguments):
    metrics = run(arguments).trainer.callback_metrics
    return {name: float(value) for name, value in metrics.items()}


def test_a_run_alone_is_tested_as_with_its_recipe():
    with_recipe = scores("test", *FIT, "--ckpt_path", "best")
    assert with_recipe["test/accuracy"] > 0.2
    for given in ("last", "runs/lightning_logs/version_0", *map(str, Path("runs").rglob("*.ckpt"))):
        assert scores("test", "--ckpt_path", given) == with_recipe
    assert set(scores("validate", "--ckpt_path", "best")) > {"val/accuracy"}


def test_options_on_top_of_the_recipe_win():
    cli = run(["test", "--ckpt_path=best", "--data.batch_size", "7", "--trainer.limit_test_batches", "2"])
    assert cli.datamodule.batch_size == 7
    assert cli.trainer.limit_test_batches == 2
    assert cli.given.model.init_args.bottom.init_args.hidden == [7]


def test_a_fit_goes_on_and_an_audit_trains_anew(capsys):
    resumed = run(["fit", "--ckpt_path", "runs/lightning_logs/version_0", "--trainer.max_epochs", "2"])
    assert resumed.trainer.global_step == 26
    one = ["--attacks", '[{"class_path": "MembershipByLoss"}]']
    audited = run(["audit", "--ckpt_path", "runs/lightning_logs/version_0", "--attacker", "server", *one])
    assert audited.given.ckpt_path is None
    assert audited.trainer.current_epoch == 1
    assert "MembershipByLoss" in capsys.readouterr().out


def test_the_report_and_the_halves_of_a_run_are_in_its_folder(monkeypatch):
    monkeypatch.setattr("lightning_vfl.report.page.page", lambda given, *_: str(given))
    run(["report", "best"])
    run(["report", "--ckpt_path", "runs/lightning_logs/version_0"])
    assert Path("runs/lightning_logs/version_0/report.html").is_file()
    with pytest.raises(ConfigurationError, match="report needs one run"):
        run(["report"])


def test_a_file_name_with_a_slash_does_not_hide_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [
        f"--trainer.callbacks.{name}" for name in ("monitor=val/accuracy", "mode=max", "filename={val/accuracy}")
    ]
    fitted = run(["fit", *FIT, "--trainer.callbacks+=ModelCheckpoint", *settings])
    best = fitted.trainer.checkpoint_callback.best_model_path
    assert Path(best).parent.name == "val"
    for given in ("best", best, "runs/lightning_logs/version_0"):
        assert run(["test", "--ckpt_path", given]).given.model.init_args.bottom.init_args.hidden == [7]


def test_a_checkpoint_without_its_folder_needs_a_recipe(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    moved = tmp_path / "a/b/moved.ckpt"
    moved.write_bytes(next(Path("runs/lightning_logs/version_0").rglob("*.ckpt")).read_bytes())
    with pytest.raises(ConfigurationError, match=r"no config.yaml of its fit is beside it; give the recipe"):
        run(["test", "--ckpt_path", str(moved)])
    run(["test", *FIT, "--ckpt_path", str(moved)])
    for name in ("config.yaml", "config-v1.yaml"):
        (tmp_path / "a" / name).write_text("{}")
    with pytest.raises(ConfigurationError, match=r"several runs .* \(config-v1.yaml, config.yaml\); give one"):
        run(["test", "--ckpt_path", str(moved)])


@pytest.mark.parametrize("stand_in", [further("Exclude"), "MeanEmbedding"])
def test_predictions_without_a_party_are_those_that_the_test_scores(stand_in):
    labels = run(["test", "--ckpt_path", "best", "--absent", "[[1, 3]]", "--stand_in", stand_in])
    measured = pd.read_parquet(next(Path(labels.trainer.log_dir).glob("absent.parquet")))
    cli = run(["predict", "--ckpt_path", "best", "--absent", "3", "1", "--stand_in", stand_in])
    table, records = pd.read_csv("predictions.csv"), cli.datamodule.records("predict")
    truth = pd.Series(records.labels.numpy(), index=records.ids)[table["record"]]
    accuracy = measured.set_index("metric")["value"]["test/accuracy"]
    assert (table["decision"].to_numpy() == truth.to_numpy()).mean() == pytest.approx(accuracy, abs=1e-6)
    assert set(table["absent"]) == {"1 3"}


def test_everybody_is_there_without_absent_parties_and_strangers_are_named():
    run(["predict", "--ckpt_path", "best"])
    assert "absent" not in pd.read_csv("predictions.csv")
    with pytest.raises(ConfigurationError, match="there is no party 'bank'"):
        run(["predict", "--ckpt_path", "best", "--absent", "bank"])
