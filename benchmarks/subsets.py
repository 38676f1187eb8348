"""What training for subsets of the parties costs: a step of each kind against a plain step of ``SplitVFL``.

Every step is timed through ``SplitVFL.step`` (or ``LaserVFL.step``), the backward pass and the optimiser, in turn with
the plain step, on random batches in memory: 128 records of 784 columns, width 64, one hidden layer of 128 a bottom and
of 64 a top, at 4, 8 and 16 parties.

    python -m benchmarks.subsets [--json FILE] [--pairs N]
"""

import time
import warnings
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.harness import Goal, Pairs, arguments, report
from lightning_vfl import LaserVFL, SplitVFL, VerticalBatch, VFLModule
from lightning_vfl.aggregators import Mean
from lightning_vfl.networks import MLP
from lightning_vfl.protocols import DropParties, TaskSampling
from lightning_vfl.types import RoundNames, Stage

BATCH, COLUMNS, WIDTH, STEPS = 128, 784, 64, 8
KINDS: dict[str, Callable[..., VFLModule]] = {
    "drop by record": lambda **settings: SplitVFL(Mean(), subsets=DropParties(0.3), **settings),
    "task sampling": lambda **settings: SplitVFL(Mean(), subsets=TaskSampling(), **settings),
    "task sampling, disjoint": lambda **settings: SplitVFL(
        Mean(), subsets=TaskSampling(each_size="disjoint"), **settings
    ),
    "task sampling, all": lambda **settings: SplitVFL(Mean(), subsets=TaskSampling(each_size="all"), **settings),
    "LASER heads": lambda **settings: LaserVFL(Mean(), **settings),
}


def chunk(make: Callable[..., VFLModule], parties: int) -> Callable[[], float]:
    """A function that runs some steps and returns the seconds of one."""
    shapes = [(COLUMNS // parties,)] * parties
    torch.manual_seed(0)
    top = partial(MLP, hidden=[64])
    module = make(bottom=partial(MLP, hidden=[128]), top=top, width=WIDTH, party_shapes=shapes, num_classes=10, seed=0)
    module.configure_model()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)
    features = tuple(torch.randn(BATCH, *shape) for shape in shapes)
    batch = VerticalBatch(features, torch.randint(10, (BATCH,)), torch.arange(BATCH))
    rounds = iter(range(10**9))

    def run() -> float:
        begun = time.perf_counter()
        for _ in range(STEPS):
            loss = module.step(batch, RoundNames(0, Stage.FIT, next(rounds))).loss
            optimizer.zero_grad()
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
        return (time.perf_counter() - begun) / STEPS

    return run


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=25)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, goals = [], []
    for parties in (4, 8, 16):
        for name, make in KINDS.items():
            if name == "task sampling, all" and parties > 4:
                continue  # 255 copies of the batch with 8 parties, and refused with more
            one, plain = chunk(make, parties), chunk(partial(SplitVFL, Mean()), parties)
            one(), plain()  # warm up
            pairs = Pairs(*zip(*((one(), plain()) for _ in range(given.pairs)), strict=True))
            ms = sorted(pairs.a)[len(pairs.a) // 2] * 1e3
            rows.append({"parties": parties, "kind": name, "ms": ms, "ratio": pairs.ratio, "spread": pairs.spread})
            if parties == 4 and name == "task sampling":
                goals.append(Goal("task sampling / plain step, 4 parties", pairs.ratio, 1.7))
    report(rows, goals, given.json)


if __name__ == "__main__":
    main()
