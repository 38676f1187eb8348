"""Rows that a script makes one after another and keeps in a CSV file, and the part of a page that it writes."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read(table: Path) -> list[dict[str, str]]:
    """The rows that have been made."""
    if not table.exists():
        return []
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def add(table: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to the file; a new file begins with the names of the columns."""
    fresh = not table.exists()
    with table.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def write_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what is between two marks of a page.

    Raises:
        ValueError: if the page does not have the marks in this order.
    """
    before, first, rest = page.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise ValueError(f"{page} has no {begin} before {end}; put them around the part to be written")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
