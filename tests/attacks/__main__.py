"""Run every attack and write the table into docs/protection.md: ``python -m tests.attacks [NAME ...] [--print]``.

Every module of this folder that has a function ``rows() -> list[Row]`` is one family of attacks.
"""

import argparse
import pkgutil
import sys
import time
from importlib import import_module
from pathlib import Path

from tests import attacks
from tests.attacks.row import Row

PAGE = Path(__file__).parents[2] / "docs" / "protection.md"
BEGIN, END = "<!-- attacks: made by python -m tests.attacks -->", "<!-- attacks end -->"
HEAD = "| attack | what the attacker sees | success before | success now | chance |\n| --- | --- | --- | --- | --- |"


def families() -> list[str]:
    """The modules with attacks, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(attacks.__path__))
    return [name for name in names if name not in ("__main__", "row") and not name.startswith("test_")]


def collect(names: list[str]) -> list[Row]:
    """The rows of these families, in order."""
    rows: list[Row] = []
    for name in names:
        began = time.monotonic()
        rows += import_module(f"tests.attacks.{name}").rows()
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return rows


def table(rows: list[Row]) -> str:
    """The Markdown table."""
    return "\n".join([HEAD, *(row.markdown() for row in rows)])


def main() -> None:
    """Run the attacks; without names, all of them, and write the table into the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks")
    parser.add_argument("names", nargs="*", choices=[[], *families()], help="families of attacks (default: all)")
    parser.add_argument("--print", action="store_true", help="print the table and do not write the page")
    given = parser.parse_args()
    made = table(collect(given.names or families()))
    print(made)
    if given.names or given.print:
        return
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
