"""What masking a sum costs in training: a step of MaskedSum against one of Sum, both through the Trainer.

FashionMNIST's shape (784 columns, B = 256, width 64) cut among M parties, MLP bottoms with 128 hidden units. All M
parties are in one process, where a pair computes its keystream once, so the work grows with the M (M - 1) / 2 pairs of
a round. The microseconds over M² are those of the keystreams with their additions (a goal), and those that a masked
step takes longer than one of ``Sum`` (a column). Fits of a few steps each are run in turn in one process.

    python -m benchmarks.masked_step [--json FILE] [--turns T]
"""

import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.steps import WARM, RandomFloats, Steps, take_steps
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, MaskedSum, Sum
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.crypto import PairKeystream
from lightning_vfl.networks import MLP

COLUMNS, ROWS, WIDTH = 784, 256, 64


def run(aggregator: Aggregator, data: RandomFloats) -> Steps:
    """A fit with this aggregator."""
    torch.manual_seed(0)
    module = SplitVFL(aggregator, partial(MLP, hidden=(128,)), partial(MLP, hidden=(64,)), WIDTH, active=0, seed=0)
    return take_steps(module, data)


def streams(parties: int) -> float:
    """Seconds of a round's keystreams, one for each pair, and of nothing else: the floor of masking."""
    keystream, twin = PairKeystream(bytes(32)), PairKeystream(bytes(32))
    values, others, times = np.zeros(ROWS * WIDTH, np.uint32), np.zeros(ROWS * WIDTH, np.uint32), []
    for turn in range(60):
        began = time.perf_counter()
        for number in range(parties * (parties - 1) // 2):
            keystream.add_between(values, others, turn * parties**2 + number, twin)
        times.append(time.perf_counter() - began)
    return median(times[WARM:])


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=15, help="how often each kind of round is fitted")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(2)
    kinds: dict[str, Callable[[], Aggregator]] = {
        "sum": Sum,
        "masked": MaskedSum,
        "equivalent": partial(MaskedSum, execution="equivalent"),
        "masked, recovery": partial(MaskedSum, recovery="auto"),
    }
    rows, goals = [], []
    for parties in (4, 8, 16, 32, 64):
        data = RandomFloats(parties, 60_000 if parties == 4 else 20_480, ROWS, COLUMNS // parties)
        data.setup("fit")
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(chosen.turns if parties == 4 else 3):
            for kind, make in kinds.items():
                if parties > 16 and "recovery" in kind:
                    continue
                taken[kind].append(run(make(), data).step)
        floor = streams(parties)
        for kind, own in taken.items():
            if not own:
                continue
            against = Pairs(own, taken["sum"])
            rows.append(
                {
                    "M": parties,
                    "round": kind,
                    "ms/step": 1e3 * median(own),
                    "/ sum": against.ratio,
                    "spread": against.spread,
                    "keystreams ms": 1e3 * floor if kind.startswith("masked") else None,
                    "us / M^2": 1e6 * (median(own) - median(taken["sum"])) / parties**2 if kind == "masked" else None,
                }
            )
        goals.append(Goal(f"microseconds of masks over M squared, M = {parties}", 1e6 * floor / parties**2, 10))
        if parties == 4:
            goals.append(Goal("step of MaskedSum over that of Sum", Pairs(taken["masked"], taken["sum"]).ratio, 1.2))
    report(rows, goals, chosen.json)


if __name__ == "__main__":
    main()
