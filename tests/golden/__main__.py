"""``python -m tests.golden [CASE ...] [--write]``: train the golden runs, compare them with the committed digests.

Without arguments, checkpoints of an earlier version have to go on to the same bits as well. `make check` does this.
"""

import argparse
import json
import logging
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests import quick
from tests.golden import processor

FILE = Path(__file__).with_name("golden.json")
OLD = Path(__file__).with_name("checkpoints")  # of an earlier version: name of the case -> file


def main() -> int:
    """Exit status 1 if a digest differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument("names", nargs="*", help="cases (default: all)")
    parser.add_argument("--write", action="store_true", help="write golden.json anew")
    parser.add_argument("--old", action="store_true", help="go on from the committed checkpoints of an earlier version")
    parser.add_argument("--elsewhere", action="store_true", help="train on a device that stands in for a GPU")
    given = parser.parse_args()
    quick.before_imports()
    from tests.golden import train

    quick.after_imports()
    train.take_exact_square_roots()
    if given.write:
        whole = {"machine": platform.machine(), "runs": digests(given.names), "old": digests_from_old()}
        FILE.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        return 0
    if given.elsewhere:
        return int(not compare(digests(given.names, elsewhere=True), "runs", "golden runs on another device"))
    same = given.old or compare(digests(given.names), "runs", "golden runs")
    if given.old or not given.names:
        what = "golden runs that go on from checkpoints of an earlier version"
        same = compare(digests_from_old(), "old", what) and same
    return int(not same)


def compare(made: dict[str, dict[str, Any]], kind: str, what: str) -> bool:
    """Print which digests differ from the committed ones (``runs`` or ``old``), and by how much; whether none does."""
    from tests.golden.digest import largest_difference

    committed = json.loads(FILE.read_text(encoding="utf-8"))[kind]
    differ = {
        name: [part for part, own in run.items() if part != "numbers" and committed.get(name, {}).get(part) != own]
        for name, run in made.items()
    }
    for name, parts in differ.items():
        if parts:
            by = largest_difference(made[name]["numbers"], committed.get(name, {}).get("numbers", {}))
            print(f"{name}: {', '.join(parts)} differ, {by}")
    print(f"{sum(not parts for parts in differ.values())} of {len(made)} {what} have the committed bits")
    return not any(differ.values())


def digests(names: list[str], elsewhere: bool = False) -> dict[str, dict[str, Any]]:
    """The digests of these cases; of all, where none is named."""
    from tests.golden.cases import cases
    from tests.golden.train import run

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    chosen = {name: case for name, case in cases().items() if not names or name in names}
    made = {}
    for name, case in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                made[name] = run(case, Path(folder), elsewhere)
            except Exception as error:
                raise RuntimeError(f"golden run '{name}' ended: {error}") from error
    return made


def digests_from_old() -> dict[str, dict[str, Any]]:
    """The digests of the cases that go on from the committed checkpoints."""
    from tests.golden.cases import cases
    from tests.golden.train import resumed

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    made, known = {}, cases()
    for checkpoint in sorted(OLD.glob("*.ckpt")):
        with tempfile.TemporaryDirectory() as folder:
            made[checkpoint.stem] = resumed(known[checkpoint.stem], Path(folder), checkpoint)
    return made


if __name__ == "__main__":
    anywhere = processor.without(processor.dispatched()) | processor.OTHERS
    if os.environ != anywhere:  # numpy tells of an unknown name by this warning, and goes on
        os.execve(sys.executable, [sys.executable, *processor.REFUSE, "-m", "tests.golden", *sys.argv[1:]], anywhere)
    if processor.in_use():
        raise SystemExit(f"numpy still uses kernels of this processor: {', '.join(processor.in_use())}")
    raise SystemExit(main())
