"""A process ends when the process that started it has ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from lightning_vfl import orphans

# the file alone: its package would import torch and lightning, seconds for each process
CODE = f"import sys; sys.path.insert(0, {str(Path(orphans.__file__).parent)!r}); import orphans; "
CODE += "print('up', flush=True); orphans."


def start(call):
    return subprocess.Popen([sys.executable, "-c", CODE + call], stdout=subprocess.PIPE)


@pytest.mark.processes
def test_a_worker_watches_the_lock_of_its_parent(tmp_path):
    lock = FileLock(tmp_path / "lock")
    with lock:
        watcher = start(f"_watch(0, {str(tmp_path / 'lock')!r})")
        with watcher:
            assert watcher.stdout.readline() == b"up\n"
            assert watcher.poll() is None
            lock.release()
            assert watcher.wait(timeout=20) == 1


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_a_worker_whose_parent_has_gone_already_ends(tmp_path):
    for parent, status in ((os.getpid(), 0), (1_000_000_000, 1)):
        with start(f"end_with_parent({parent}, '')") as worker:
            assert worker.wait(timeout=20) == status


@pytest.mark.processes
def test_a_process_watches_the_number_of_its_parent():
    with start(f"_watch({os.getpid() + 1}, None)") as watcher:  # another parent than the one that is there
        assert watcher.wait(timeout=20) == 1
