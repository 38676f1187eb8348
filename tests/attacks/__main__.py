"""Run attacks and write docs/results/attacks.md: ``python -m tests.attacks [NAME ...] [--print]``.

Every module of this folder that has a function ``rows() -> list[Row]`` is one family of attacks. The rows of all
families are kept in docs/results/tables/attacks.json, so families can be run one after the other.
"""

import argparse
import json
import pkgutil
import sys
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from tests import attacks
from tests.attacks.row import Row

RESULTS = Path(__file__).parents[2] / "docs" / "results"
HEAD = "| attack | what the attacker sees | success before | success now | chance |\n| --- | --- | --- | --- | --- |"
ABOUT = """<!-- made by python -m tests.attacks from attacks.json -->

# Attacks and their success

<!-- no block of this page is run: it has none -->

The tests attack every protection of this package. `python -m tests.attacks` runs all attacks and makes this page, and
`python -m tests.attacks NAME` runs one family. "Before" is the success without the protection of this version;
"chance" is the success of an attacker who sees nothing. [Who learns what](../protection.md) says what follows from it.
"""


def families() -> list[str]:
    """The modules with attacks, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(attacks.__path__))
    return [name for name in names if name not in ("__main__", "row") and not name.startswith("test_")]


def kept() -> dict[str, list[Row]]:
    """The rows of every family that has been run, from attacks.json."""
    file = RESULTS / "tables" / "attacks.json"
    return {name: [Row(**row) for row in rows] for name, rows in json.loads(file.read_text(encoding="utf-8")).items()}


def page(rows: dict[str, list[Row]]) -> str:
    """The page of all families."""
    parts = [ABOUT]
    for name in sorted(rows):
        parts.append(f"\n## {name}\n\n{HEAD}\n" + "".join(f"{row.markdown()}\n" for row in rows[name]))
    return "".join(parts)


def main() -> None:
    """Run the attacks; without names, all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks")
    parser.add_argument("names", nargs="*", choices=[[], *families()], help="families of attacks (default: all)")
    parser.add_argument("--print", action="store_true", help="print the rows and write nothing")
    given = parser.parse_args()
    for name in given.names or families():
        began = time.monotonic()
        rows = import_module(f"tests.attacks.{name}").rows()
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        print("\n".join(row.markdown() for row in rows))
        if not given.print:
            write(kept() | {name: rows})


def write(rows: dict[str, list[Row]]) -> None:
    """Keep the rows and make the page of them."""
    plain = {name: [asdict(row) for row in rows[name]] for name in sorted(rows)}
    (RESULTS / "tables" / "attacks.json").write_text(
        json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (RESULTS / "attacks.md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
