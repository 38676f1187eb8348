"""What has become slower: the ratios of a fresh run against those in ``docs/results``.

Seconds depend on the machine, so only ratios are compared: goals that are ratios, and columns of rows whose names say
so. A benchmark with a ratio that is worse is run once more, and the better of both figures counts. The exit status is 1
if a ratio is worse by more than ``--within``.

    python -m benchmarks.check [NAME ...] [--within 0.10]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMITTED = Path(__file__).parents[1] / "docs" / "results"
MODULES = {"audit_step": "audit", "subsets_step": "subsets"}  # the others have the name of their file
SMALL = 0.05  # shares below this are noise
_NO_NAME = "spread", "spread ", "pairs"  # columns that differ from run to run
NO_RATIOS = ("seconds", "records/s", "GiB", "MB", "CPU overhead")  # goals with a unit, or whose divisor is near 0


@dataclass(frozen=True)
class Ratio:
    """One ratio of a benchmark; ``higher``: a larger one is better."""

    what: str
    value: float
    higher: bool = False

    def worse(self, than: "Ratio") -> float:
        """By which part it is worse: 0.1 is a tenth; negative: it is better."""
        return than.value / self.value - 1 if self.higher else self.value / than.value - 1


def ratios(figures: Mapping[str, Any]) -> dict[str, Ratio]:
    """The ratios of a benchmark's JSON, by what they are."""
    found = [
        Ratio(goal["what"], goal["measured"], goal["better"] == "higher")
        for goal in figures["goals"]
        if not any(word in goal["what"] for word in NO_RATIOS)
    ]
    for row in figures["rows"]:
        named = {name: cell for name, cell in row.items() if isinstance(cell, str | int) and name not in _NO_NAME}
        of = ", ".join(map(str, named.values()))
        found += [
            Ratio(f"{of}: {name}", cell, higher=name.startswith("x "))
            for name, cell in row.items()
            if isinstance(cell, float) and is_ratio(name)
        ]
    return {ratio.what: ratio for ratio in found if ratio.value > SMALL}


def is_ratio(column: str) -> bool:
    """Whether a column of a benchmark's rows is a ratio: ``ratio``, ``a/b`` without a unit, ``/ b``, ``x b``."""
    return column == "ratio" or column.startswith(("/ ", "x ", "trainer/"))


def slower(committed: Mapping[str, Ratio], fresh: Mapping[str, Ratio], within: float) -> list[str]:
    """A line for every ratio that is worse by more than ``within``, the worst first, and for every one that is gone."""
    gone = [f"{what}: it is no longer measured" for what in committed if what not in fresh]
    both = [(fresh[what].worse(before), fresh[what], before) for what, before in committed.items() if what in fresh]
    worst = sorted((entry for entry in both if entry[0] > within), key=lambda entry: -entry[0])
    return gone + [f"{now.what}: {now.value:.3f}, was {before.value:.3f} ({by:+.0%})" for by, now, before in worst]


def better(one: Mapping[str, Ratio], other: Mapping[str, Ratio]) -> dict[str, Ratio]:
    """Of two runs, the better figure of each ratio."""
    both = {**one, **other}
    return {
        w: min((m[w] for m in (one, other) if w in m), key=lambda r: -r.value if r.higher else r.value) for w in both
    }


def measured(name: str) -> dict[str, Ratio]:
    """The ratios of a fresh run of a benchmark.

    Raises:
        subprocess.CalledProcessError: if the benchmark fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        module = f"benchmarks.{MODULES.get(name, name)}"
        subprocess.run([sys.executable, "-m", module, "--json", str(file)], check=True, stdout=subprocess.DEVNULL)
        return ratios(json.loads(file.read_text()))


def main(arguments: Sequence[str] | None = None) -> int:
    known = sorted(file.stem for file in COMMITTED.glob("*.json"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument(
        "--within", type=float, default=0.10, help="what a ratio may be worse by (default: %(default)s)"
    )
    given = parser.parse_args(arguments)
    if strange := [name for name in given.names if name not in known]:
        parser.error(f"{strange[0]} has no figures in docs/results; choose from {', '.join(known)}")
    failed = False
    for name in given.names or known:
        committed = ratios(json.loads((COMMITTED / f"{name}.json").read_text()))
        fresh = measured(name)
        if slower(committed, fresh, given.within):
            fresh = better(fresh, measured(name))
        lines = slower(committed, fresh, given.within)
        failed |= bool(lines)
        print(f"{'WORSE' if lines else 'as good'}  {name}: {len(committed)} ratios")
        for line in lines:
            print(f"       {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
