"""``fit --ckpt_path best|last``: of the newest run, unless a ModelCheckpoint of the recipe has a folder of its own."""

import inspect
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from lightning_vfl.cli import run
from lightning_vfl.commands.command import Command
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.errors import ConfigurationError
from tests.unit.commands.test_run_config import SHORT

ONE = '[{"class_path": "LabelsByNorm"}]'


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_fit_goes_on_from_the_newest_run():
    run(["fit", *SHORT])
    for epochs, pick in ((2, "last"), (3, "best")):
        resumed = run(["fit", *SHORT, "--trainer.max_epochs", str(epochs), "--ckpt_path", pick])
        assert resumed.given.ckpt_path.endswith(f"epoch={epochs - 2}-step={epochs - 1}.ckpt")
        assert resumed.trainer.global_step == epochs


def test_an_audit_is_no_run_of_fit():
    fitted = run(["fit", *SHORT])
    run(["audit", *SHORT, "--attacker", "server", "--attacks", ONE])
    best = fitted.trainer.checkpoint_callback.best_model_path
    assert run(["test", *SHORT, "--ckpt_path", "best"]).given.ckpt_path == best
    Path(best).unlink()
    with pytest.raises(ConfigurationError, match="--ckpt_path best: there is no checkpoint of fit below runs; give"):
        run(["test", *SHORT, "--ckpt_path", "best"])


def test_without_a_run_nothing_is_trained():
    with pytest.raises(ConfigurationError, match="--ckpt_path last: there is no checkpoint below runs; give"):
        run(["fit", *SHORT, "--ckpt_path", "last"])


@pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available:UserWarning")
def test_a_folder_of_the_recipe_is_left_to_the_trainer():
    own = ["--trainer.callbacks+", "ModelCheckpoint", "--trainer.callbacks.dirpath", "own"]
    started = run(["fit", *SHORT, *own, "--trainer.callbacks.save_last", "true", "--ckpt_path", "last"])
    assert started.given.ckpt_path == "last"
    assert started.trainer.global_step == 1


@pytest.mark.parametrize("hint", [float | int | None, int | float | None], ids=str)
def test_a_whole_number_of_batches_is_no_share_whatever_was_imported_first(monkeypatch, hint):
    """``typing`` may give Lightning the ``Union[float, int]`` of another package for its ``Union[int, float]``."""
    monkeypatch.setattr(Command, "parser", inspect.unwrap(Command.parser))  # the tests build the options once
    monkeypatch.setitem(inspect.unwrap(Trainer.__init__).__annotations__, "limit_train_batches", hint)
    for given, read in (("1", 1), ("1.0", 1.0), ("0.5", 0.5)):
        batches = VFLCLI(["fit", *SHORT, "--trainer.limit_train_batches", given]).given.trainer.limit_train_batches
        assert (batches, type(batches)) == (read, type(read))
