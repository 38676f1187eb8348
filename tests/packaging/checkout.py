"""Copies of the checkout, and programs run in them as a user would: nothing of this process leaks in."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
WINGS = ("callbacks", "configs", "datamodules")

# what leads a program from its own environment to ours, or a `make` to the one that runs these tests
_LEAKS = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")


def copy_checkout(folder: Path) -> Path:
    """Every file that is tracked or could be, without what builds and runs have left behind."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # a file deleted but not yet committed is still listed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run(words: Sequence[str | Path], folder: Path, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """A program run in a folder, standard error among its output."""
    environment = {name: value for name, value in os.environ.items() if name not in _LEAKS}
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


def succeed(words: Sequence[str | Path], folder: Path, timeout: float = 600) -> str:
    """The output of a program that has to end with status 0."""
    done = run(words, folder, timeout)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}"
    return done.stdout
