"""A command that fails leaves no folder without results, and never removes what it has not made."""

from pathlib import Path

import pytest
from lightning.pytorch import Callback

from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError

FIT = ["fit", "--config", "data/digits", "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2"]
DEAR = ["--config", "protocol/pbm", "--trainer.callbacks+", "PrivacyBudget", "--trainer.callbacks.target_epsilon", "1"]


class Fails(Callback):
    def __init__(self, hook):
        setattr(self, hook, self.fail)

    def fail(self, *_):
        raise ConfigurationError("on purpose")


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")


def left():
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


@pytest.mark.parametrize("logger", [[], ["--trainer.logger", "false"]])
def test_a_refused_training_leaves_neither_folder_nor_ledger(logger):
    with pytest.raises(ConfigurationError, match="one round would already cost"):
        run([*FIT, *DEAR, *logger])
    assert [path.name for path in Path().iterdir()] == ["mine.txt"]


def test_other_runs_and_files_stay():
    run([*FIT, "--config", "protocol/mean"])
    Path("runs/empty").mkdir()
    before = left()
    with pytest.raises(ConfigurationError, match="on purpose"):
        run([*FIT, "--config", "protocol/mean"], [Fails("on_train_start")])
    assert left() == before
    assert Path("runs/empty").is_dir()
    assert not Path("runs/lightning_logs/version_1").exists()


def test_charges_and_checkpoints_stay():
    with pytest.raises(ConfigurationError, match="on purpose"):
        run([*FIT, "--config", "protocol/pbm"], [Fails("on_train_batch_end")])
    assert [path for path in left() if path.endswith(".jsonl")]
    with pytest.raises(ConfigurationError, match="on purpose"):
        run([*FIT, "--config", "protocol/mean"], [Fails("on_fit_end")])
    assert [path for path in left() if path.endswith(".ckpt")]


LOGGERS = {"wandb": ["WandbLogger", "--trainer.logger.offline", "true"], "mlflow": ["MLFlowLogger"]}


@pytest.mark.slow
@pytest.mark.parametrize("logger", LOGGERS)
def test_a_refused_training_leaves_no_run_of_a_logger(logger, monkeypatch, request):
    """Neither in a folder that was there, with the run of another training, nor in one of its own."""
    if logger == "wandb":
        request.getfixturevalue("wandb_offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    named = ["--trainer.logger", *LOGGERS[logger]]
    with pytest.raises(ConfigurationError, match="one round would already cost"):
        run([*FIT, *DEAR, *named])
    empty_store = ["runs/0/meta.yaml"] if logger == "mlflow" else []
    assert left() == ["mine.txt", *empty_store]
    done = run([*FIT, "--config", "protocol/mean", *named])
    if logger == "wandb":
        done.trainer.logger.experiment.finish()
    before = left()
    with pytest.raises(ConfigurationError, match="on purpose"):
        run([*FIT, "--config", "protocol/mean", *named], [Fails("on_train_start")])
    assert [path for path in left() if not path.endswith(("debug.log", "debug-internal.log"))] == [
        path for path in before if not path.endswith(("debug.log", "debug-internal.log"))
    ]
    if logger == "mlflow":  # a training that was to go on with the run of another one, which must stay
        again = ["--trainer.logger.run_id", done.trainer.logger.run_id]
        with pytest.raises(ConfigurationError, match="on purpose"):
            run([*FIT, "--config", "protocol/mean", *named, *again], [Fails("on_train_start")])
        assert set(before) <= set(left())
    with pytest.raises(ConfigurationError, match="on purpose"):
        run([*FIT, "--config", "protocol/mean", *named], [Fails("on_train_end")])
    assert len(left()) > len(before)
