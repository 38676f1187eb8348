"""A fit from the command line, killed without warning, goes on to the bits of an uninterrupted one."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.subjects import same

RECIPES = ("data/digits", "faults/fedvs_stragglers")
PROTOCOLS = {"SplitVFL with stale embeddings": ("protocol/mean", "policy/stale"), "AsyncVFL": ("protocol/vafl",)}
SAVER = {
    "dirpath": "kept",
    "every_n_train_steps": 7,
    "save_last": True,
    "save_top_k": 0,
    "enable_version_counter": False,
}
CALLBACK = json.dumps({"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": SAVER})


def command(protocol, *more):
    recipes = [part for name in (RECIPES[0], *PROTOCOLS[protocol], RECIPES[1]) for part in ("--config", name)]
    quiet = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]
    epochs = "4" if protocol == "AsyncVFL" else "12"
    saver = ["--trainer.max_epochs", epochs, f"--trainer.callbacks+={CALLBACK}"]
    return [sys.executable, "-m", "lightning_vfl", "fit", *recipes, *quiet, *saver, *more]


def run(folder, *arguments):
    done = subprocess.run(command(*arguments), cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(folder / "kept" / "last.ckpt", weights_only=True)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_fit_goes_on_to_the_same_bits(tmp_path, protocol):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    expected = run(whole, protocol)

    process = subprocess.Popen(command(protocol), cwd=killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    last = killed / "kept" / "last.ckpt"
    since = time.monotonic()
    while not (last.exists() and last.stat().st_mtime > 0):
        assert process.poll() is None
        assert time.monotonic() - since < 120
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    step = torch.load(last, weights_only=True)["global_step"]
    assert 0 < step < expected["global_step"]

    resumed = run(killed, protocol, "--ckpt_path", str(last))
    for part in ("state_dict", "optimizer_states", "global_step"):
        assert same(resumed[part], expected[part]), part
    books, wanted = resumed["lightning_vfl"], expected["lightning_vfl"]
    assert {name for name in wanted if not same(books[name], wanted[name])} <= {"rounds"}  # a repeated sanity check
    assert books["rounds"]["fit"] == wanted["rounds"]["fit"]
