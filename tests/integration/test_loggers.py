"""Loggers from the recipe, for real: files on disk, W&B in its offline mode."""

import time

import pandas as pd
import pytest

from lightning_vfl.cli import run

BASE = ["fit", "--config", "data/breast_cancer", "--config", "protocol/mean", "--trainer.max_epochs", "2"]
QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_csv_logger_is_the_default(tmp_path):
    run([*BASE, *QUIET, "--trainer.log_every_n_steps", "5"])
    (file,) = tmp_path.rglob("metrics.csv")
    table = pd.read_csv(file)
    assert {"train/loss", "train/loss_epoch", "val/auroc", "comm/up_bytes"} <= set(table.columns)
    standing = ["clock/virtual_seconds", "progress/passes", "comm/up_bytes", "comm/down_bytes", "comm/peer_bytes"]
    assert set(standing) <= set(table.columns)
    spent = table.dropna(subset=["comm/up_bytes"])
    assert spent["comm/up_bytes"].is_monotonic_increasing
    assert spent["comm/up_bytes"].iloc[0] == 5 * 32 * 64 * 4 * 3  # with the training loss, every 5 rounds of 32 records
    for needed in ("train/loss", "val/accuracy"):  # each can be plotted against what it has cost
        assert table.dropna(subset=[needed])[standing].notna().all(axis=None)
    ends = table.dropna(subset=["val/accuracy"])["comm/up_bytes"].tolist()
    assert ends == [398 * 64 * 4 * 3, 2 * 398 * 64 * 4 * 3]


def test_tensorboard_logger(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = ["--trainer.logger", "lightning.pytorch.loggers.TensorBoardLogger", "--trainer.logger.save_dir", "tb"]
    run([*BASE, *QUIET, *logger])
    (file,) = (tmp_path / "tb").rglob("events.*")
    events = EventAccumulator(str(file)).Reload()
    assert len(events.Scalars("val/accuracy")) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # wandb leaves its own sockets open
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_wandb_logger_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = ["--trainer.logger", "lightning.pytorch.loggers.WandbLogger", "--trainer.logger.offline", "true"]
    logger += ["--trainer.logger.save_dir", str(tmp_path), "--trainer.logger.project", "vfl"]
    done = run([*BASE, *QUIET, *logger])
    history = done.trainer.logger.experiment
    assert history.summary["val/accuracy"] == pytest.approx(float(done.trainer.callback_metrics["val/accuracy"]))
    assert history.summary["comm/up_bytes"] == 2 * 398 * 64 * 4 * 3
    assert history.config["width"] == 64
    history.finish()
    (file,) = (tmp_path / "wandb").rglob("*.wandb")
    patience = time.monotonic() + 30  # it is written by a process of wandb's own
    while file.stat().st_size <= 1000 and time.monotonic() < patience:
        time.sleep(0.1)
    assert file.stat().st_size > 1000
