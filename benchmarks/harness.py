"""What all benchmarks share: paired ratios, a table, and JSON.

Shared machines have slow phases of seconds to minutes. So two things are compared by running them in turn in short
chunks, taking the ratio of every pair, and quoting the median of the ratios with their spread.
"""

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch


@dataclass(frozen=True)
class Goal:
    """One figure with its limit; ``better`` says which side of the limit is good."""

    what: str
    measured: float
    limit: float
    better: str = "lower"

    @property
    def met(self) -> bool:
        return self.measured <= self.limit if self.better == "lower" else self.measured >= self.limit


@dataclass(frozen=True)
class Pairs:
    """Seconds of two things measured in turn."""

    a: Sequence[float]
    b: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        return sorted(x / y for x, y in zip(self.a, self.b, strict=True))

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def spread(self) -> str:
        return f"{self.ratios[0]:.2f}..{self.ratios[-1]:.2f}"


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with ``--json FILE``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


def report(rows: Sequence[Mapping[str, Any]], goals: Sequence[Goal], file: Path | None, by: str | None = None) -> None:
    """Print the rows and the goals, and write them; ``by``: a table for each value of that column."""
    for title in dict.fromkeys(row.get(by, "") for row in rows) if by else [""]:
        part = [{key: row[key] for key in row if key != by} for row in rows if not by or row.get(by, "") == title]
        print(f"{title}\n" if title else "", end="")
        _print(part)
        print("\n" if title else "", end="")
    for goal in goals:
        side = "at most" if goal.better == "lower" else "at least"
        print(f"{'met   ' if goal.met else 'MISSED'}  {goal.what}: {goal.measured:.3f}, {side} {goal.limit:g}")
    if file is not None:
        data = {"goals": [{**asdict(g), "met": g.met} for g in goals], "rows": list(rows), "machine": machine()}
        file.write_text(json.dumps(data, indent=1) + "\n")


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *[[_cell(row.get(column)) for column in columns] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if abs(value) < 1e5 else f"{value:,.0f}"
