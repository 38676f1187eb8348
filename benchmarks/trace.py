"""Which functions of the toolkit a warm training step calls, and in which files they are.

A step in the middle of an epoch, in which nothing is logged and no bar is drawn, is traced by ``sys.setprofile``. A
call is a Python function of the toolkit that begins; a generator begins anew at each of its values, and is counted so.
What torch, Lightning and numpy call is printed beside it as one number each.

    python -m benchmarks.trace [--json FILE] [--calls mean]
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import lightning_vfl
import lightning_vfl.callbacks
import lightning_vfl.datamodules
from benchmarks.harness import Goal, arguments, report
from benchmarks.steps import RandomFloats, take_steps
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, LagrangeCoded, MaskedSum, Mean
from lightning_vfl.networks import MLP, PolynomialNetwork

PACKAGES = {  # in a checkout, two of them lie beside the first
    str(Path(package.__file__ or "").parent) + "/": package.__name__
    for package in (lightning_vfl, lightning_vfl.callbacks, lightning_vfl.datamodules)
}
PARTIES, COLUMNS, BATCH = 4, 8, 32
STEP = 31  # warm; no logging step and no update of the bar
GENERATORS = "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"

Call = tuple[str, str]
"""The file of a function and its name."""


class Traced(Callback):
    """The calls of one step, from the end of the step before to its own end."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        sys.setprofile(self._note if batch_idx == STEP - 1 else None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.calls.append((frame.f_code.co_filename, frame.f_code.co_qualname))


def traced(aggregator: Aggregator, bottom: Callable[..., Any]) -> list[Call]:
    """The calls of a warm step, of all packages."""
    data = RandomFloats(PARTIES, 60 * BATCH, BATCH, COLUMNS)
    trace = Traced()
    take_steps(SplitVFL(aggregator, bottom, width=4, seed=0), data, callbacks=[trace])
    return [call for call in trace.calls if call[0] != __file__]


def of_toolkit(calls: list[Call]) -> list[Call]:
    """Those of the toolkit, with the files named from the package on."""
    return [
        (f"{package}/{name.removeprefix(folder)}", function)
        for name, function in calls
        for folder, package in PACKAGES.items()
        if name.startswith(folder)
    ]


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", default="", help="also list the calls of this row, in order")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    kinds: dict[str, tuple[Callable[[], Aggregator], Callable[..., Any], int]] = {
        "mean": (Mean, MLP, 70),
        "masked": (MaskedSum, MLP, 160),
        "coded": (lambda: LagrangeCoded(1, 1), PolynomialNetwork, 200),
    }
    rows, goals = [], []
    for kind, (make, bottom, limit) in kinds.items():
        everything = traced(make(), bottom)
        calls = of_toolkit(everything)
        files = [name for name, _ in calls]
        by_package = Counter(
            package
            for name, _ in everything
            for package in ("lightning", "torch")
            if f"/site-packages/{package}/" in name
        )
        rows.append(
            {
                "aggregator": kind,
                "calls": len(calls),
                "without comprehensions": sum(not function.endswith(GENERATORS) for _, function in calls),
                "files": len(set(files)),
                "changes of file": sum(a != b for a, b in pairwise(files)),
                "of Lightning": by_package["lightning"],
                "of torch": by_package["torch"],
            }
        )
        goals.append(Goal(f"calls of a warm step, {kind}", len(calls), limit))
        if kind == "mean":
            goals.append(Goal("files of a warm step, mean", len(set(files)), 14))
        if kind == chosen.calls:
            for name, function in calls:
                print(f"{name}: {function}")
    report(rows, goals, chosen.json)


if __name__ == "__main__":
    main()
