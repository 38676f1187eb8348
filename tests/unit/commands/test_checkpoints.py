"""``--ckpt_path``: a file, the folder of a run, or the best or last checkpoint of the newest run."""

import os
import re

import pytest
import torch

from lightning_vfl.commands.checkpoints import COMMAND, Pick, find_checkpoint
from lightning_vfl.errors import ConfigurationError


def save(path, age, *best, command=None):
    """A file of the form of Lightning's checkpoints, from so many seconds ago; ``best`` of its ModelCheckpoints."""
    path.parent.mkdir(parents=True, exist_ok=True)
    states = {f"ModelCheckpoint{n}": {"best_model_path": f"/moved/{name}"} for n, name in enumerate(best)}
    content = {"pytorch-lightning_version": "2.6", "callbacks": {"EarlyStopping": {}, **states}}
    torch.save(content | ({} if command is None else {COMMAND: command}), path)
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))
    return str(path)


@pytest.fixture
def runs(tmp_path):
    for version, age in ((0, 500), (1, 100), (2, 300)):
        folder = tmp_path / f"lightning_logs/version_{version}/checkpoints"
        save(folder / "a.ckpt", age + 30, "a.ckpt")
        save(folder / "b.ckpt", age + 20, "b.ckpt")
        save(folder / "c.ckpt", age + 10, "b.ckpt")
    return tmp_path


def test_best_and_last_are_of_the_run_that_was_saved_last(runs):
    newest = runs / "lightning_logs/version_1/checkpoints"
    assert find_checkpoint("best", [runs]) == str(newest / "b.ckpt")
    assert find_checkpoint("last", [runs]) == str(newest / "c.ckpt")


@pytest.mark.parametrize("inside", ["", "checkpoints"])
def test_the_folder_of_a_run(runs, inside):
    folder = runs / "lightning_logs/version_2"
    assert find_checkpoint(str(folder / inside), []) == str(folder / "checkpoints/b.ckpt")
    assert find_checkpoint(str(folder / inside), [], Pick.LAST) == str(folder / "checkpoints/c.ckpt")
    assert find_checkpoint("last", [folder / inside]) == str(folder / "checkpoints/c.ckpt")


def test_a_file_name_with_a_slash_makes_folders_below_that_of_the_run(tmp_path):
    """``filename: "{epoch}-{val/accuracy:.2f}"``: two epochs with the same accuracy have the same last name."""
    folder = tmp_path / "lightning_logs/version_0/checkpoints"
    best = "checkpoints/epoch=1-val/accuracy=0.90.ckpt"
    for epoch, age in ((0, 30), (1, 20), (2, 10)):
        save(folder / f"epoch={epoch}-val/accuracy=0.90.ckpt", age, best)
    for given, roots in (("best", [tmp_path]), (str(folder), []), (str(folder.parent), [])):
        assert find_checkpoint(given, roots) == str(folder.parent / best)
    assert find_checkpoint("last", [tmp_path]) == str(folder / "epoch=2-val/accuracy=0.90.ckpt")


def test_lightnings_last_checkpoint_is_the_last(runs):
    folder = runs / "lightning_logs/version_0/checkpoints"
    last = save(folder / "last.ckpt", 9999, "a.ckpt")
    assert find_checkpoint(str(folder), [], Pick.LAST) == last
    assert find_checkpoint(str(folder), []) == str(folder / "a.ckpt")


def test_runs_of_other_commands_are_passed_over(runs):
    newest = runs / "lightning_logs/version_1/checkpoints"
    own = {name: save(runs / f"lightning_logs/{name}/x.ckpt", 0, command=name) for name in ("audit", "serve")}
    assert find_checkpoint("best", [runs]) == str(newest / "b.ckpt")
    assert find_checkpoint("last", [runs], command="serve") == own["serve"]


def test_several_roots_are_searched(runs, tmp_path):
    other = save(tmp_path / "elsewhere/demo/best.ckpt", 5, "best.ckpt")
    assert find_checkpoint("best", [tmp_path / "missing", runs, tmp_path / "elsewhere"]) == other


def test_a_single_checkpoint_is_the_best(tmp_path):
    only = save(tmp_path / "epoch=3.ckpt", 0)
    assert find_checkpoint(str(tmp_path), []) == find_checkpoint(only, []) == only


def test_each_mistake_has_a_line(tmp_path):
    (tmp_path / "x.ckpt").write_text("no checkpoint")
    (tmp_path / "empty").mkdir()
    for name in ("a", "b"):
        save(tmp_path / f"two/{name}.ckpt", 0, "a.ckpt", "b.ckpt")
        save(tmp_path / f"none/{name}.ckpt", 0, "gone.ckpt")
    for given, message in (
        ("last", f"--ckpt_path last: there is no checkpoint below {tmp_path / 'empty'}; give a .ckpt file"),
        (str(tmp_path / "empty"), "empty: the folder has no checkpoint; give the folder of a run of fit"),
        (str(tmp_path / "gone.ckpt"), "gone.ckpt: no such file; give best, last, the folder of a run, or"),
        ("bst", "--ckpt_path bst: no such file; did you mean best or last?"),
        ("a.ckpt", f"--ckpt_path a.ckpt: no such file; did you mean {tmp_path / 'none/a.ckpt'}?"),
        (str(tmp_path / "x.ckpt"), "x.ckpt is not a checkpoint; give the .ckpt that fit has written"),
        (str(tmp_path / "two"), "which checkpoint is the best is not known; give one of "),
        (str(tmp_path / "none"), "which checkpoint is the best is not known; give one of "),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(message)) as told:
            find_checkpoint(given, [tmp_path if given == "a.ckpt" else tmp_path / "empty"])
        assert "\n" not in str(told.value)
