"""Every run has a folder of its own, below the folder that the user names."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
import yaml
from lightning.pytorch.loggers.logger import Logger

from lightning_vfl.cli import run
from lightning_vfl.commands.run_config import make_version
from lightning_vfl.errors import ConfigurationError

SHORT = ["--config", "data/breast_cancer", "--config", "protocol/mean", "--trainer.accelerator", "cpu"]
SHORT += ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", "--trainer.limit_val_batches", "1"]
SHORT += ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--summary.enabled=false"]
NO_LOGGER = ["--trainer.logger", "false"]


class OtherLogger(Logger):
    """A logger like that of W&B: ``save_dir`` is shared by all runs, and each run has an id."""

    runs = count()

    def __init__(self, save_dir: str) -> None:
        super().__init__()
        self._save_dir, self._id = save_dir, f"run-{next(self.runs)}"

    save_dir = property(lambda self: self._save_dir)
    name = property(lambda self: "project")
    version = property(lambda self: self._id)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        pass

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        pass


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(name):
    return sorted(str(path.parent) for path in Path().rglob(name))


def test_versions_made_at_the_same_moment_differ(tmp_path):
    (tmp_path / "version_6").mkdir()
    (tmp_path / "version_x").mkdir()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: make_version(tmp_path), range(40)))
    assert sorted(made) == list(range(7, 47))


@pytest.mark.slow
def test_the_default_logger_follows_the_root_folder():
    run(["fit", *SHORT])
    run(["fit", *SHORT, "--trainer.default_root_dir", "mine"])
    folders = ["mine/lightning_logs/version_0", "runs/lightning_logs/version_0"]
    assert written("config.yaml") == written("metrics.csv") == folders
    assert [str(Path(folder).parent) for folder in written("*.ckpt")] == folders
    tested = run(["test", *SHORT, "--ckpt_path", "best", "--trainer.default_root_dir", "mine"])
    assert tested.given.ckpt_path == str(next(Path("mine").rglob("*.ckpt")))
    assert written("config.yaml") == [folders[0], "mine/lightning_logs/version_1", folders[1]]
    again = yaml.safe_load(Path(folders[0], "config.yaml").read_text())
    assert again["trainer"]["default_root_dir"] == "mine"
    repeated = run(["fit", "--config", f"{folders[0]}/config.yaml", "--trainer.default_root_dir", "third"])
    assert written("config.yaml")[-1] == "third/lightning_logs/version_0"
    same = yaml.safe_load(Path("third/lightning_logs/version_0/config.yaml").read_text())
    assert {**same, "trainer": None} == {**again, "trainer": None}
    assert repeated.trainer.max_epochs == 1


@pytest.mark.slow
def test_runs_without_a_logger_do_not_share_a_folder():
    for _ in range(2):
        run(["fit", *SHORT, *NO_LOGGER, "--trainer.default_root_dir", "mine"])
    run(["fit", *SHORT, *NO_LOGGER])
    folders = ["mine", "mine/version_0", "runs/version_0"]
    assert written("config.yaml") == folders
    assert [str(Path(folder).parent) for folder in written("*.ckpt")] == folders


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_no_configuration_is_overwritten_in_a_folder_that_is_named():
    named = ["--trainer.logger.name", "here", "--trainer.logger.version", "first"]
    run(["fit", *SHORT, *named, "--trainer.enable_checkpointing=false"])
    run(["fit", *SHORT, *named, "--trainer.enable_checkpointing=false", "--model.width", "7"])
    widths = {
        path.name: yaml.safe_load(path.read_text())["model"]["init_args"]["width"]
        for path in Path("runs/here/first").glob("config*")
    }
    assert widths == {"config.yaml": 64, "config-v1.yaml": 7}


def test_other_loggers_have_the_configuration_in_the_folder_of_the_run():
    logger = ["--trainer.logger", "tests.unit.commands.test_run_config.OtherLogger"]
    for _ in range(2):
        run(["fit", *SHORT, *logger])
    folders = [f"runs/project/run-{number}" for number in (0, 1)]
    assert written("config.yaml") == folders
    assert [str(Path(folder).parent) for folder in written("*.ckpt")] == folders


def test_a_trial_run_leaves_nothing():
    run(["fit", *SHORT, "--trainer.fast_dev_run", "true"])
    assert not [path for path in Path().rglob("*") if path.is_file()]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    for more in ([], NO_LOGGER):
        with pytest.raises(ConfigurationError, match=r"/file/runs.* cannot be written \(Not a directory\); make room"):
            run(["fit", *SHORT, *more, "--trainer.default_root_dir", str(tmp_path / "file" / "runs")])
