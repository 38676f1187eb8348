"""``python -m tests.golden [CASE ...] [--write]``: train the golden runs, compare them with the committed digests."""

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


def main() -> int:
    """Exit status 1 if a digest differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument("names", nargs="*", help="cases (default: all)")
    parser.add_argument("--write", action="store_true", help="write golden.json anew")
    parser.add_argument("--elsewhere", action="store_true", help="train on a device that stands in for a GPU")
    given = parser.parse_args()
    quick.before_imports()
    from tests.golden import train

    quick.after_imports()
    train.take_exact_square_roots()
    if given.write:
        whole = {"machine": platform.machine(), "runs": digests(given.names)}
        FILE.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        return 0
    if given.elsewhere:
        return int(not compare(digests(given.names, elsewhere=True), "golden runs on another device"))
    return int(not compare(digests(given.names), "golden runs"))


def compare(made: dict[str, dict[str, Any]], what: str) -> bool:
    """Print which digests differ from the committed ones, and by how much; whether none does."""
    from tests.golden.digest import largest_difference

    committed = json.loads(FILE.read_text(encoding="utf-8"))["runs"]
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


if __name__ == "__main__":
    anywhere = processor.without(processor.dispatched()) | processor.OTHERS
    if os.environ != anywhere:  # numpy tells of an unknown name by this warning, and goes on
        os.execve(sys.executable, [sys.executable, *processor.REFUSE, "-m", "tests.golden", *sys.argv[1:]], anywhere)
    if processor.in_use():
        raise SystemExit(f"numpy still uses kernels of this processor: {', '.join(processor.in_use())}")
    raise SystemExit(main())
