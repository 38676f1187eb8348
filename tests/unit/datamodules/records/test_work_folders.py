"""Laws of folders in which tables are prepared: those of killed processes go, those in use and those of others stay."""

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.datamodules import CSVTables
from lightning_vfl.datamodules.records import work_folders
from lightning_vfl.datamodules.records.work_folders import WorkFolder

pytestmark = pytest.mark.processes
USES = """
import os, sys, time
from lightning_vfl.datamodules.records.work_folders import WorkFolder
folder = WorkFolder(sys.argv[1])
(folder.path / "features").write_bytes(b"x" * 100)
{more}
print(folder.path, flush=True)
time.sleep(600)
"""
FORKS = """
if child := os.fork():
    print(child, flush=True)
else:
    time.sleep(600)
"""


@contextmanager
def user(place: Path, more: str = "") -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that uses a folder; with what it prints, the folder as the last line."""
    command = [sys.executable, "-c", USES.format(more=more), str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise TypeError("it has no output")
        lines = [process.stdout.readline().strip() for _ in range(2 if more else 1)]
        try:
            yield process, lines
        finally:
            process.kill()


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_the_folder_of_a_killed_process_is_removed_at_the_next_start_and_those_in_use_are_not(tmp_path):
    with user(tmp_path) as (killed, (left,)), user(tmp_path) as (_, (used,)):
        mine = WorkFolder(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {Path(left).name, Path(used).name, mine.path.name}
        kill(killed)
        assert Path(left, "features").exists()
        other = WorkFolder(tmp_path)
        assert {*tmp_path.iterdir()} == {Path(used), mine.path, other.path}
        assert Path(used, "features").exists()
    del mine, other


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the states of processes are read from /proc")
def test_a_folder_that_a_forked_process_still_reads_is_in_use(tmp_path):
    with user(tmp_path, FORKS) as (killed, (child, left)):
        kill(killed)
        WorkFolder(tmp_path)
        assert Path(left, "features").exists()
        os.kill(int(child), signal.SIGKILL)
        with suppress(FileNotFoundError, ProcessLookupError):  # a zombie holds nothing
            while Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
                pass
        WorkFolder(tmp_path)
        assert not Path(left).exists()


def abandoned(place: Path) -> Path:
    """What a killed process leaves."""
    with user(place) as (process, (left,)):
        kill(process)
    return Path(left)


def test_folders_of_others_stay(tmp_path, monkeypatch):
    own = abandoned(tmp_path)
    named_alike = tmp_path / "lightning-vfl-results"
    named_alike.mkdir()
    (named_alike / "figure.png").touch()
    otherwise = shutil.copytree(own, tmp_path / "experiment")
    elsewhere = shutil.copytree(own, tmp_path / "lightning-vfl-elsewhere")
    (elsewhere / "in-use.lock").write_text(f"not {platform.node()}")
    (tmp_path / "kept").mkdir()
    target = shutil.copytree(own, tmp_path / "kept" / "target")
    (tmp_path / "lightning-vfl-link").symlink_to(target)
    (tmp_path / "lightning-vfl-file").touch()
    lock_is_a_link = shutil.copytree(own, tmp_path / "lightning-vfl-linked")
    (lock_is_a_link / "in-use.lock").unlink()
    (lock_is_a_link / "in-use.lock").symlink_to(otherwise / "in-use.lock")
    me = os.getuid()
    monkeypatch.setattr(work_folders.os, "getuid", lambda: me + 1)
    WorkFolder(tmp_path)
    assert own.exists()  # of another user
    monkeypatch.undo()
    WorkFolder(tmp_path)
    assert not own.exists()
    for path in (named_alike / "figure.png", otherwise / "features", elsewhere / "features", target / "features"):
        assert path.exists(), path
    assert (tmp_path / "lightning-vfl-link").is_symlink()
    assert (lock_is_a_link / "features").exists()


@pytest.mark.slow
def test_two_processes_prepare_tables_in_one_work_folder_at_a_time(tmp_path):
    """Each has its own records, whichever is made, used and removed first."""
    draw = np.random.default_rng(0)
    pd.DataFrame({"id": range(80), "x": draw.normal(size=80), "y": draw.integers(0, 2, 80)}).to_csv(
        tmp_path / "bank.csv", index=False
    )
    program = """
import sys, torch
from lightning_vfl.datamodules import CSVTables
for seed in range(6):
    data = CSVTables({"bank": sys.argv[1] + "/bank.csv"}, "bank", "y", work_dir=sys.argv[1] + "/work", seed=seed)
    data.setup("fit")
    print(float(data.records("train").features.double().sum()), flush=True)
"""
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [process.communicate()[0].split() for process in running]
    expected = []
    for seed in range(6):
        data = CSVTables({"bank": tmp_path / "bank.csv"}, "bank", "y", seed=seed)
        data.setup("fit")
        expected.append(str(float(data.records("train").features.double().sum())))
    assert told == [expected, expected]
    assert not list((tmp_path / "work").iterdir())
