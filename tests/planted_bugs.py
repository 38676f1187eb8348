"""Bugs that the tests have to catch: each is planted in a copy of the checkout, where the tests named for it must fail.

``python -m tests.planted_bugs`` plants all of them and fails if one is not caught; with numbers, those of that number.
To save time, only the test files named for a bug are run, up to their first failure; they are part of the suite. The
named files have to pass in the copy before anything is planted.
"""

import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from time import monotonic

from tests.bugs import BUGS, Bug
from tests.packaging.checkout import WINGS, copy_checkout

TIMEOUT = 1800  # seconds for the tests of one bug, and for those of all bugs before one is planted (about 600)


class Copies:
    """Copies of the checkout whose own files are imported: wings are linked into the package."""

    def __init__(self, root: Path, number: int) -> None:
        self._free: Queue[Path] = Queue()
        for i in range(number):
            tree = copy_checkout(root / f"copy{i}")
            for wing in WINGS:
                (tree / "lightning_vfl" / wing).symlink_to(Path("..") / wing)
            self._free.put(tree)

    def environment(self, tree: Path) -> dict[str, str]:
        """No compiled files: they would be taken for those of a changed file of the same size and second."""
        ours = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        return {**os.environ, **ours, "NUMBA_CACHE_DIR": str(tree.parent / f"{tree.name}-numba")}

    def run(self, code: Sequence[str], bug: Bug | None = None) -> tuple[int, str]:
        """Exit status and output of Python in a copy, in which the bug is planted for that time."""
        tree = self._free.get()
        try:
            if bug is None:
                return self._run(code, tree)
            path = tree / bug.file
            before = path.read_text(encoding="utf-8")
            path.write_text(before.replace(bug.text, bug.instead), encoding="utf-8")
            try:
                return self._run(code, tree)
            finally:
                path.write_text(before, encoding="utf-8")
        finally:
            self._free.put(tree)

    def _run(self, code: Sequence[str], tree: Path) -> tuple[int, str]:
        try:
            done = subprocess.run(
                [sys.executable, *code],
                cwd=tree,
                env=self.environment(tree),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return -1, f"no end after {TIMEOUT} s"
        return done.returncode, done.stdout


def pytest_of(files: Sequence[str]) -> list[str]:
    """The arguments of Python that run these test files up to the first failure."""
    named = ["-m", ""] if any("::" in name for name in files) else []  # a test that is named may be a slow one
    return ["-m", "pytest", "-qx", "-p", "no:cacheprovider", *named, *(f"tests/{name}" for name in files)]


def found_wrong(copies: Copies, bug: Bug) -> str:
    """What is wrong with a bug or its tests; empty: the bug is caught."""
    status, printed = copies.run(pytest_of(bug.tests.split()), bug)
    if status == 1:
        return ""
    if status == 0:
        return "NOT CAUGHT"
    return f"the tests have not run (status {status}): {printed[-500:]}"


def sound(copies: Copies, bugs: Sequence[Bug]) -> str:
    """Why planting would say nothing; empty: the copy's own code is tested, and passes."""
    code = "from lightning_vfl import callbacks, configs, datamodules, rounds as core\n"
    code += "print(*(Path(m.__file__).is_relative_to(Path.cwd()) for m in (callbacks, configs, datamodules, core)))"
    status, printed = copies.run(["-c", f"from pathlib import Path\n{code}"])
    if status or printed.split() != ["True"] * 4:
        return f"a copy does not import its own files: {printed}"
    files = sorted({name for bug in bugs for name in bug.tests.split()})
    status, printed = copies.run(pytest_of(files))
    return f"the tests fail without a bug: {printed[-2000:]}" if status else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the bugs; the exit status is 1 if one of them is not caught."""
    parser = ArgumentParser(prog="python -m tests.planted_bugs", description="Plant bugs that the tests have to catch.")
    parser.add_argument("numbers", nargs="*", type=int, help=f"which of the {len(BUGS)} bugs, from 1 (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="bugs at a time (default: one a core)")
    said = parser.parse_args(arguments)
    bugs = [BUGS[number - 1] for number in said.numbers] or list(BUGS)
    root = Path(__file__).parents[1]
    for bug in bugs:
        if (times := (root / bug.file).read_text(encoding="utf-8").count(bug.text)) != 1:
            print(f"{bug.file} has {times} times, not once: {bug.text!r}; correct tests/bugs")
            return 1
    begun, missed = monotonic(), 0
    with TemporaryDirectory() as folder, ThreadPoolExecutor(said.jobs) as pool:
        copies = Copies(Path(folder), said.jobs)
        if trouble := sound(copies, bugs):
            print(trouble)
            return 1
        for bug, wrong in zip(bugs, pool.map(lambda bug: found_wrong(copies, bug), bugs), strict=True):
            missed += bool(wrong)
            print(f"{BUGS.index(bug) + 1:3} {wrong or 'caught'}: {bug.file}: {bug.wrong}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)} planted bugs caught in {monotonic() - begun:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
