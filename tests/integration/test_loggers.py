"""Loggers from the recipe, for real: files on disk, W&B in its offline mode."""

import json
import os
import subprocess
import sys
import time
from zipfile import ZipFile

import pandas as pd
import pytest
from lightning.pytorch.loggers import CometLogger

from lightning_vfl.callbacks import ExperimentRecord
from lightning_vfl.callbacks.logger_records import CometRecord
from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from tests.subjects import Blobs, split, trainer

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


@pytest.mark.slow
def test_tensorboard_logger(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = ["--trainer.logger", "lightning.pytorch.loggers.TensorBoardLogger", "--trainer.logger.save_dir", "tb"]
    run([*BASE, *QUIET, *logger])
    (file,) = (tmp_path / "tb").rglob("events.*")
    events = EventAccumulator(str(file)).Reload()
    assert len(events.Scalars("val/accuracy")) == 2
    assert events.Tags()["images"] == ["learning curve"]
    assert "summary of fit/text_summary" in events.Tags()["tensors"]


def loud(test):
    """wandb and comet leave their own sockets and files open; mlflow and comet use what others deprecate."""
    kinds = ("pytest.PytestUnraisableExceptionWarning", "DeprecationWarning", "FutureWarning", "ResourceWarning")
    further = ("ignore:You are using the plain ModelCheckpoint callback:UserWarning", "ignore:.*pkg_resources.*")
    for line in (*(f"ignore::{kind}" for kind in kinds), *further):
        test = pytest.mark.filterwarnings(line)(test)
    return test


def wandb_records(folder):
    """Everything that an offline run has written, as wandb's own messages; a process of wandb's own writes the file."""
    patience = time.monotonic() + 30
    while True:
        records = list(read_records(folder))
        if any(record.HasField("exit") for record in records):
            return records
        assert time.monotonic() < patience
        time.sleep(0.1)


def read_records(folder):
    """The records that are in the file so far."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (folder / "wandb").rglob("*.wandb")
    content, held, place = file.read_bytes(), b"", 7  # after the header: LevelDB's log format
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        held += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield Record.FromString(held)
            held = b""


@loud
@pytest.mark.slow
def test_wandb_logger_offline(tmp_path, wandb_offline):
    logger = ["--trainer.logger", "WandbLogger"]
    logger += ["--trainer.logger.save_dir", str(tmp_path), "--trainer.logger.project", "vfl"]
    logger += ["--trainer.logger.log_model", "all", "--config", "faults/fedvs_stragglers"]
    done = run([*BASE, *QUIET, *logger])
    history = done.trainer.logger.experiment
    assert history.summary["val/accuracy"] == pytest.approx(float(done.trainer.callback_metrics["val/accuracy"]))
    assert history.summary["comm/up_bytes"] == done.model.standing()["comm/up_bytes"]
    config = dict(history.config)
    assert config["width"] == 64
    assert config["data"]["class_path"] == "lightning_vfl.datamodules.BreastCancer"
    assert config["data"]["init_args"]["batch_size"] == 32
    assert config["trainer"]["max_epochs"] == 2
    assert config["model"]["init_args"]["aggregator"]["class_path"] == "lightning_vfl.aggregators.Mean"
    assert [fault.split("(")[0] for fault in config["faults"]] == ["Stragglers"]
    history.finish()
    (record,) = tmp_path.rglob("record-fit.json")
    assert record.parent == tmp_path / "vfl" / history.id  # of this run alone
    assert (record.parent / "config.yaml").is_file()
    records = wandb_records(tmp_path)
    axes = {record.metric.name: record.metric.step_metric for record in records if record.HasField("metric")}
    assert axes["val/accuracy"] == axes["train/loss"] == "clock/virtual_seconds"
    assert axes["by_bytes/val/accuracy"] == "comm/up_bytes"
    logged = {item.key or item.nested_key[0] for r in records for item in r.history.item}
    assert {"val/accuracy", "by_bytes/val/accuracy", "comm/up_bytes", "summary of fit", "learning curve"} <= logged
    kinds = {record.request.log_artifact.artifact.type or record.artifact.type for record in records}
    assert "model" in kinds  # checkpoints, by choice: log_model


@pytest.mark.slow
@loud
def test_mlflow_logger_with_files(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # as mlflow asks
    run([*BASE, *QUIET, "--trainer.logger", "MLFlowLogger", "--trainer.logger.save_dir", str(tmp_path / "ml")])
    check_mlflow(f"file:{tmp_path}/ml")


@pytest.mark.slow
@loud
def test_mlflow_logger_with_a_database(tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    place = f"sqlite:///{tmp_path}/ml.db"
    run([*BASE, *QUIET, "--trainer.logger", "MLFlowLogger", "--trainer.logger.tracking_uri", place])
    check_mlflow(place)


def check_mlflow(place):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(place)
    (kept,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert kept.data.metrics["comm/up_bytes"] == 2 * 398 * 64 * 4 * 3
    assert kept.data.params["data/class_path"] == "lightning_vfl.datamodules.BreastCancer"
    assert kept.data.params["trainer/max_epochs"] == "2"
    assert kept.info.status == "FINISHED"
    kinds = {file.path for file in client.list_artifacts(kept.info.run_id)}
    assert {"summary_of_fit.md", "learning_curve.png"} <= kinds


@pytest.mark.slow
@loud
def test_a_fit_is_resumed_into_one_mlflow_run(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    place = f"sqlite:///{tmp_path}/ml.db"
    logger = ["--trainer.logger", "MLFlowLogger", "--trainer.logger.tracking_uri", place]
    first = run([*BASE, *QUIET, *logger])
    mine = first.trainer.logger.run_id
    (path,) = tmp_path.rglob("*.ckpt")
    again = [*BASE, *QUIET, *logger, "--trainer.logger.run_id", mine, "--ckpt_path", str(path)]
    with pytest.raises(ConfigurationError, match=f"the MLflow run {mine} has evaluate = auto, this fit has plain, and"):
        run([*again, "--model.evaluate", "plain"])
    run([*again, "--trainer.max_epochs", "4"])
    client = MlflowClient(place)
    (kept,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert kept.info.status == "FINISHED"
    assert kept.data.params["trainer/max_epochs"] == "2"
    assert kept.data.tags["resumed.trainer/max_epochs"] == "4"
    history = client.get_metric_history(mine, "val/accuracy")
    assert [metric.step for metric in history] == sorted({metric.step for metric in history})
    assert len(history) == 4  # every epoch once


@pytest.mark.slow
@loud
def test_a_second_offline_run_of_one_id_is_refused_before_training(tmp_path, wandb_offline):
    logger = ["--trainer.logger", "WandbLogger", "--trainer.logger.save_dir", str(tmp_path)]
    logger += ["--trainer.logger.offline", "true", "--trainer.logger.version", "mine"]
    first = run([*BASE, *QUIET, *logger])
    first.trainer.logger.experiment.finish()
    with pytest.raises(ConfigurationError, match=r"cannot continue the run mine offline, because .*; run wandb sync"):
        run([*BASE, *QUIET, *logger, "--trainer.max_epochs", "3"])
    assert len(list((tmp_path / "wandb").glob("offline-run-*-mine"))) == 1


def test_the_rate_that_was_found_is_in_the_record_of_the_run(tmp_path):
    found = run(
        [*BASE, *QUIET, "--trainer.callbacks", "LearningRateFinder", "--trainer.callbacks.num_training_steps", "30"]
    )
    (record,) = tmp_path.rglob("record-fit.json")
    assert ["learning rate found", f"{found.model.lr:.6g}"] in json.loads(record.read_text())["summary"]


@pytest.mark.slow
@loud
def test_comet_logger_offline(tmp_path, monkeypatch):
    pytest.importorskip("comet_ml")
    logger = ["--trainer.logger", "CometLogger"]
    folder = ["--trainer.logger.dict_kwargs.offline_directory", str(tmp_path / "comet")]
    monkeypatch.setenv("COMET_START_ONLINE", "0")
    done = run([*BASE, *QUIET, *logger, *folder])
    done.trainer.logger.experiment.end()
    (file,) = (tmp_path / "comet").glob("*.zip")
    with ZipFile(file) as archive:
        said = archive.read("messages.json").decode()
    assert all(word in said for word in ("comm/up_bytes", "data|class_path", "summary_of_fit.csv", "learning curve"))
    with pytest.raises(ConfigurationError, match="online: false stores nothing; leave online out"):
        CometRecord(CometLogger(online=False)).begin([])


@pytest.mark.slow
@loud
def test_several_loggers_at_once(tmp_path, monkeypatch, wandb_offline):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    loggers = [
        {"class_path": "CSVLogger", "init_args": {"save_dir": "csv"}},
        {"class_path": "TensorBoardLogger", "init_args": {"save_dir": "tb"}},
        {"class_path": "WandbLogger", "init_args": {"save_dir": str(tmp_path)}},
        {"class_path": "MLFlowLogger", "init_args": {"save_dir": str(tmp_path / "ml")}},
    ]
    done = run([*BASE, *QUIET, "--trainer.logger", json.dumps(loggers)])
    assert len(done.trainer.loggers) == 4
    assert done.trainer.loggers[2].experiment.summary["comm/up_bytes"] == 2 * 398 * 64 * 4 * 3
    assert [*(tmp_path / "csv").rglob("metrics.csv")]
    assert [*(tmp_path / "tb").rglob("events.*")]
    check_mlflow(f"file:{tmp_path}/ml")


def test_from_python_the_record_names_the_objects(tmp_path):
    module, data = split(), Blobs(batch_size=9)
    t = trainer(tmp_path, callbacks=[ExperimentRecord()])
    t.fit(module, data)
    recipe = ExperimentRecord().recipe_of(t, module)
    assert recipe["data"]["batch_size"] == 9
    assert recipe["data"]["partitioner"] == repr(data.partitioner)
    assert recipe["model"]["parts"]["aggregator"] == "Mean()"
    assert recipe["trainer"]["max_epochs"] == 2


NEEDS = {
    "WandbLogger": ("wandb", "W&B has no API key; run wandb login, or add --trainer.logger.offline true"),
    "CometLogger": ("comet_ml", "Comet has no API key; set COMET_API_KEY, or COMET_START_ONLINE=0"),
    "MLFlowLogger": ("mlflow", "add --trainer.logger.tracking_uri sqlite:///runs.db"),
}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("logger", NEEDS)
def test_an_account_that_is_missing_is_one_line(logger, tmp_path):
    """In a process of its own: wandb, comet and mlflow keep what an earlier run of the process was given."""
    package, line = NEEDS[logger]
    pytest.importorskip(package)
    known = ("WANDB_", "COMET_", "MLFLOW_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(known)}
    command = [sys.executable, "-W", "ignore", "-m", "lightning_vfl", *BASE, *QUIET, "--trainer.logger", logger]
    done = subprocess.run(
        command, env=environment | {"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    (told,) = (told for told in done.stderr.splitlines() if told.startswith("lightning-vfl: error: "))
    assert line in told
    assert "Traceback" not in done.stderr
