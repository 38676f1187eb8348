"""The ledger beside a run: where it is, when it is found again, and what is said where it is not."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_vfl.callbacks import RunSummary
from lightning_vfl.callbacks.run_summary import summary_lines
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import PrivacyLedger
from lightning_vfl.rounds.exchange import Exchange
from tests.attacks.ledger import RECORDS, charged, private
from tests.integration.processes import in_one_and_in_two
from tests.subjects import Blobs, trainer

pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")


def fit(folder, steps, module=None, ckpt_path=None, **settings):
    """Train up to so many steps; the checkpoint is FOLDER/STEPS.ckpt."""
    module = module or private()
    t = trainer(folder, max_epochs=-1, max_steps=steps, limit_val_batches=0, **settings)
    t.fit(module, datamodule=Blobs(batch_size=10), ckpt_path=ckpt_path)
    t.save_checkpoint(folder / f"{steps}.ckpt")
    return module, t


def ledgers(folder):
    return sorted(Path(folder).rglob("privacy-*.jsonl"))


def told(module, t):
    return dict(summary_lines(t, module, ()))["privacy ledger"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of 4 rounds of 10 records, which has been moved away from where it was made."""
    folder = tmp_path_factory.mktemp("made") / "run"
    folder.mkdir()
    fit(folder, 4)
    return folder.rename(folder.with_name("kept"))


@pytest.fixture
def run(made, tmp_path):
    """A copy of the run, its checkpoint and its ledger."""
    folder = shutil.copytree(made, tmp_path / "run")
    (ledger,) = ledgers(folder)
    return folder, folder / "4.ckpt", ledger


def test_it_lies_in_the_folder_that_holds_the_checkpoints(tmp_path, run):
    assert run[2].parent == run[0]
    module, t = fit(tmp_path, 1, logger=CSVLogger(tmp_path, "name"))
    (ledger,) = (path for path in ledgers(tmp_path) if path.parent != run[0])
    assert ledger.parent == tmp_path / "name" / "version_0"
    assert told(module, t) == str(ledger)


def test_a_run_folder_can_be_moved(tmp_path, run):
    moved = tmp_path / "moved"
    run[0].rename(moved)
    module, t = fit(moved, 6, ckpt_path=moved / "4.ckpt")
    assert charged(module).sum() == 40 + 20
    assert told(module, t) == str(moved / run[2].name)
    deep = moved / "a" / "b"
    deep.mkdir(parents=True)
    shutil.move(moved / "6.ckpt", deep)
    again = tmp_path / "again"
    moved.rename(again)
    module, _ = fit(again, 7, ckpt_path=again / "a" / "b" / "6.ckpt")
    assert charged(module).sum() == 40 + 20 + 10
    assert len(ledgers(tmp_path)) == 1


def test_a_charge_is_on_the_disk_before_anything_of_its_round_is_uploaded(tmp_path, monkeypatch):
    happened, flush, upload = [], os.fsync, Exchange.run

    def flushed(file):
        flush(file)
        happened.append("on the disk")

    def uploads(self):
        happened.append("uploaded")
        return upload(self)

    module = private()
    module.on_fit_start = lambda start=module.on_fit_start: (start(), happened.clear())
    monkeypatch.setattr("os.fsync", flushed)
    monkeypatch.setattr(Exchange, "run", uploads)
    trainer(tmp_path, max_steps=4, limit_val_batches=0).fit(module, datamodule=Blobs(batch_size=10))
    assert happened == ["on the disk", "uploaded"] * 4


def test_a_full_disk_is_told_before_anything_is_uploaded(tmp_path, monkeypatch):
    module = private()

    def full(file):
        raise OSError(28, "No space left on device")

    module.on_train_start = lambda start=module.on_train_start: (start(), monkeypatch.setattr("os.fsync", full))
    monkeypatch.setattr(Exchange, "run", lambda self: pytest.fail("uploaded"))
    with pytest.raises(ConfigurationError, match=r"cannot be written \(No space left on device\), so no more records"):
        trainer(tmp_path, max_steps=4, limit_val_batches=0).fit(module, datamodule=Blobs(batch_size=10))


def test_two_branches_of_one_checkpoint_are_both_charged(run):
    for sums in (60, 80):
        module, _ = fit(run[0], 6, ckpt_path=run[1])
        assert charged(module).sum() == sums
    total = PrivacyLedger.read(run[2])[1].state_dict()["counts"].sum()
    assert total == 80


def test_a_second_fit_of_the_same_module_goes_on_in_the_same_ledger(tmp_path, run):
    module, _ = fit(run[0], 2)
    before = ledgers(tmp_path)
    fit(tmp_path, 3, module)
    assert charged(module).sum() == 20 + 30
    assert ledgers(tmp_path) == before


def test_a_missing_ledger_is_refused_with_the_way_out(tmp_path, run):
    run[2].unlink()
    with pytest.raises(ConfigurationError, match=r"put it back to .*run/privacy-\w+.jsonl or beside .* lost to count"):
        fit(run[0], 6, ckpt_path=run[1])
    module, t = fit(run[0], 6, private(privacy_ledger="lost"), ckpt_path=run[1])
    assert charged(module).sum() == 40 + 20
    assert "rounds after that are not charged" in told(module, t)
    (new,) = ledgers(tmp_path)
    assert new.name != run[2].name
    module, t = fit(run[0], 7, ckpt_path=run[0] / "6.ckpt")  # what was lost stays lost
    assert charged(module).sum() == 40 + 20 + 10
    assert "rounds after that are not charged" in told(module, t)


def test_a_checkpoint_from_before_there_were_ledgers_is_accepted(run):
    checkpoint = torch.load(run[1], weights_only=True)
    del checkpoint["lightning_vfl"]["privacy"]["ledger"]
    torch.save(checkpoint, run[0] / "old.ckpt")
    module, t = fit(run[0], 6, ckpt_path=run[0] / "old.ckpt")
    assert charged(module).sum() == 40 + 20
    assert "rounds after that are not charged" in told(module, t)


def test_a_ledger_that_has_charged_less_than_the_checkpoint_is_refused(run):
    lines = run[2].read_bytes().splitlines(keepends=True)
    run[2].write_bytes(b"".join(lines[:-1]))
    with pytest.raises(ConfigurationError, match="has fewer charges than the checkpoint"):
        fit(run[0], 6, ckpt_path=run[1])
    run[2].write_bytes(b"".join(lines))
    fit(run[0] / "other", 2)
    (other,) = (path for path in ledgers(run[0]) if path != run[2])
    with pytest.raises(ConfigurationError, match="belongs to another run"):
        fit(run[0], 6, private(privacy_ledger=str(other)), ckpt_path=run[1])


def test_a_fit_can_go_on_in_a_ledger_that_is_named(tmp_path, run):
    """A run that was killed before its first checkpoint starts again, and its releases stay charged."""
    module, _ = fit(tmp_path, 2, private(privacy_ledger=str(run[2])))
    assert charged(module).sum() == 40 + 20
    assert ledgers(tmp_path) == [run[2]]


def test_a_loaded_model_tells_what_the_server_has_seen_by_now(run):
    fit(run[0], 6, ckpt_path=run[1])
    module, t = private(), trainer(run[0])
    t.test(module, datamodule=Blobs(batch_size=10), ckpt_path=run[1], verbose=False)
    assert charged(module).sum() == 40 + 20
    assert told(module, t) == str(run[2])
    run[2].unlink()
    module = private()
    t.test(module, datamodule=Blobs(batch_size=10), ckpt_path=run[1], verbose=False)
    assert charged(module).sum() == 40
    assert told(module, t) == "none found; rounds after the checkpoint are not charged"


def test_fast_dev_run_keeps_no_file_and_counts_all_the_same(tmp_path, run):
    module = private()
    t = trainer(tmp_path, fast_dev_run=2)
    t.fit(module, datamodule=Blobs(batch_size=10))
    assert charged(module).sum() == 20
    assert told(module, t) == "none; this run kept no file"
    assert ledgers(tmp_path) == [run[2]]
    fit(tmp_path, 1, module)
    (ledger,) = (path for path in ledgers(tmp_path) if path != run[2])
    assert PrivacyLedger.read(ledger)[1].state_dict()["counts"].sum() == 30
    trainer(tmp_path, fast_dev_run=2).fit(module, datamodule=Blobs(batch_size=10))  # it has a ledger by now
    assert PrivacyLedger.read(ledger)[1].state_dict()["counts"].sum() == 50


def test_folders_that_are_no_files_of_this_machine_are_refused(tmp_path):
    module, t = private(), trainer(tmp_path)
    t._default_root_dir = "s3://bucket/run"
    with pytest.raises(ConfigurationError, match="must be in a local folder; got s3://bucket/run"):
        t.fit(module, datamodule=Blobs(batch_size=10))


def test_the_summary_names_the_ledger(tmp_path, capsys):
    fit(tmp_path, 1, callbacks=[RunSummary()])
    said = re.sub(r"[│\s]", "", capsys.readouterr().out)  # a long path is folded
    assert f"privacyledger{ledgers(tmp_path)[0]}" in said


# ---- several processes


def train_and_resume(folder, devices):
    """Two processes: rank zero writes, and the accountants of all agree, after a resume too."""
    strategy = "ddp" if devices > 1 else "auto"
    settings = {"devices": devices, "strategy": strategy, "enable_checkpointing": False}
    for steps, start in ((4, None), (6, 4)):
        path = None if start is None else folder / f"{start}.ckpt"
        t = trainer(folder, max_epochs=-1, max_steps=steps, limit_val_batches=0, **settings)
        module = private()
        t.fit(module, datamodule=Blobs(batch_size=10 // devices), ckpt_path=path)
        t.save_checkpoint(folder / f"{steps}.ckpt")
        torch.save(charged(module), folder / f"{steps}.{t.global_rank}.pt")
        if devices > 1:
            t.strategy.barrier()


@pytest.mark.slow
@pytest.mark.processes
def test_two_processes_keep_one_ledger(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    in_one_and_in_two(train_and_resume, one, two)
    for steps in (4, 6):
        alone, first, second = (
            torch.load(path, weights_only=False)
            for path in (one / f"{steps}.0.pt", two / f"{steps}.0.pt", two / f"{steps}.1.pt")
        )
        assert (alone == first).all()
        assert (first == second).all()
    (ledger,) = ledgers(two)
    assert PrivacyLedger.read(ledger)[1].state_dict()["counts"].sum() == first.sum() == 60


# ---- a real kill

CHILD = """
import json, os, sys
from pathlib import Path
from unittest.mock import patch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_vfl.aggregators.secure.masked_wire import MaskedServer
from tests.attacks.ledger import private
from tests.subjects import Blobs, trainer

folder = Path(sys.argv[1])
seen = os.open(folder / "seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
decode = MaskedServer.decode

def decoded(self, messages, view):
    os.write(seen, json.dumps(view.rows.ids.tolist()).encode() + b"\\n")
    return decode(self, messages, view)

newest = max(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns, default=None)
ledger = next(map(str, folder.glob("privacy-*.jsonl")), "auto")
saver = ModelCheckpoint(folder, "{step}", every_n_train_steps=7, save_top_k=-1)
t = trainer(folder, max_epochs=40, callbacks=[saver], enable_checkpointing=True, limit_val_batches=0)
with patch.object(MaskedServer, "decode", decoded):
    t.fit(private(privacy_ledger="auto" if newest else ledger), datamodule=Blobs(batch_size=10), ckpt_path=newest)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_process_has_charged_what_the_server_has_seen(tmp_path):
    """SIGKILL at three moments that nobody has chosen, then a fit to the end."""
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path)]
    root = Path(__file__).parents[2]
    seen, target = tmp_path / "seen", 0
    for _ in range(3):
        process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        target += 400  # bytes: some ten rounds
        since = time.monotonic()
        while not (seen.exists() and seen.stat().st_size >= target):
            assert process.poll() is None
            assert time.monotonic() - since < 120
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        target = seen.stat().st_size
    assert subprocess.run(command, cwd=root, capture_output=True, timeout=300).returncode == 0
    times = Counter(i for line in seen.read_text().splitlines() for i in json.loads(line))
    (ledger,) = ledgers(tmp_path)
    counts = PrivacyLedger.read(ledger)[1].state_dict()["counts"].sum(0).tolist()
    assert sum(times.values()) > 40 * RECORDS
    assert all(times[i] <= counts[i] for i in range(RECORDS))
    assert sum(counts) - sum(times.values()) <= 3 * 10
