"""``robustness``: of a trained model, by trainings, and between methods."""

from pathlib import Path

import pandas as pd
import pytest

from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError

FIT = ["--config", "data/breast_cancer", "--config", "protocol/mean", "--trainer.max_epochs", "1"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_the_grid_of_a_trained_model_is_printed_and_compared(capsys):
    run(["fit", *FIT])
    run(["robustness", "--ckpt_path", "best"])
    folder = Path("runs/lightning_logs/version_1")
    table = pd.read_csv(folder / "robustness.csv")
    assert set(table["fault"]) == {
        *("nothing", "absent", "Noise", "DroppedColumns", "ShiftedUnits", "StaleTable", "Misaligned")
    }
    assert len(table[table["metric"] == "test/accuracy"]) == 1 + 3 * 7
    assert (folder / "robustness.svg").is_file()
    printed = capsys.readouterr().out
    assert "party 2: worse by" in printed
    assert "runs/lightning_logs/version_1/robustness.svg" in printed
    assert "in brackets: 0 is in the 95 % interval" in printed
    clear = (table["low"] > 0) | (table["high"] < 0)
    assert 0 < clear.sum() < len(table)
    few = ["--corrupt", "Noise:1", "--misalign", "0.5", "--parties", "1"]
    run(["robustness", "--ckpt_path", "best", *few, "--methods", str(folder)])
    here = Path("runs/lightning_logs/version_2")
    narrow = pd.read_csv(here / "robustness.csv")
    both = table.merge(narrow, on=["party", "fault", "strength", "metric"])
    assert len(both) == len(narrow)
    assert (both["value_x"] == both["value_y"]).all()
    compared = pd.read_csv(here / "methods.csv")
    assert compared["method"].tolist() == ["SplitVFL with Mean (version_1)", "SplitVFL with Mean (version_2)"]
    assert set(compared) == {"method", "undisturbed", "Noise 1", "Misaligned 0.5"}
    with pytest.raises(ConfigurationError, match=r"version_0 has no robustness.csv; run lightning-vfl robustness"):
        run(["robustness", "--ckpt_path", "best", *few, "--methods", "runs/lightning_logs/version_0"])
    with pytest.raises(ConfigurationError, match="--parties names party 7, but the last is 2"):
        run(["robustness", "--ckpt_path", "best", "--parties", "7"])
    with pytest.raises(ConfigurationError, match="Blur needs pictures"):
        run(["robustness", "--ckpt_path", "best", "--corrupt", "Blur:1"])


@pytest.mark.slow  # trains four models
def test_trainings_with_a_disturbance_are_runs_with_its_callback():
    few = ["--parties", "1", "--absent", "--corrupt", "Noise:2", "--misalign", "1"]
    run(["robustness", *FIT, "--by", "retraining", *few])
    folder = Path("runs/robustness")
    table = pd.read_csv(folder / "robustness.csv")
    table = table[table["metric"] == "test/accuracy"].set_index("fault")["value"]
    names = {"nothing": "undisturbed", "absent": "1-absent", "Noise": "1-Noise-2", "Misaligned": "1-Misaligned-1"}
    for fault, name in names.items():
        rows = pd.read_parquet(folder / "runs" / name / "seed-0" / "result.parquet").set_index("metric")
        assert table[fault] == rows["value"]["test/accuracy"]
    assert len(set(table)) > 1


def test_a_trained_model_is_needed():
    with pytest.raises(ConfigurationError, match="give --ckpt_path best, or --by retraining"):
        run(["robustness", *FIT])
