"""What PBM-VFL's draws cost: the sampler beside torch's and numpy's, and a step beside that of the masked sum.

The sampler draws Binomial(16, p) for the shapes of the paper's embeddings (a batch of 100 or 128 records, width 16, 4
to 10 parties) and for FashionMNIST's at width 64. Steps go through the Trainer, fits of a few steps in turn.

    python -m benchmarks.pbm [--json FILE] [--turns T]
"""

import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.steps import RandomFloats, Steps, take_steps
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, MaskedSum, PoissonBinomial
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.crypto import Keystream
from lightning_vfl.fast_streams import FastStream
from lightning_vfl.networks import MLP
from lightning_vfl.privacy.binomial import Line, binomial_of

LEVELS, COLUMNS, ROWS, WIDTH, PARTIES = 16, 196, 256, 64, 4
SHAPES = ((5, 100, 16), (10, 100, 16), (4, 128, 16), (4, 256, 64))


def seconds(draw: Callable[[], object], calls: int) -> float:
    """Of one draw."""
    began = time.perf_counter()
    for _ in range(calls):
        draw()
    return (time.perf_counter() - began) / calls


def draw_ours(p: torch.Tensor, words: Callable[[int], Any], ties: Callable[[int], Any] | None = None) -> None:
    """Binomial draws of the aggregator."""
    drawn = torch.empty(p.shape, dtype=torch.int64)
    binomial_of(p, Line(1.0, 0.0, 0.0, 1.0), LEVELS, words, drawn, ties=ties)


def run(aggregator: Aggregator, data: RandomFloats) -> Steps:
    """A fit with this aggregator; bottoms end in tanh."""
    torch.manual_seed(0)
    bottom = partial(MLP, hidden=(128,), output_activation=torch.nn.Tanh)
    return take_steps(SplitVFL(aggregator, bottom, partial(MLP, hidden=(64,)), WIDTH, seed=0), data)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=15, help="how often each kind of round is fitted")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(2)
    rows, goals, secret = [], [], Keystream().words
    for shape in SHAPES:
        p = 0.5 + 0.25 * torch.tanh(torch.randn(shape, dtype=torch.float64))
        trials, generator = torch.full(shape, float(LEVELS), dtype=torch.float64), np.random.default_rng(0)
        samplers: dict[str, Callable[[], object]] = {
            "ours": lambda p=p: draw_ours(p, FastStream(0, "benchmark").words),  # type: ignore[misc]
            "ours, secret": lambda p=p: draw_ours(p, secret, secret),  # type: ignore[misc]
            "torch.binomial": lambda p=p, trials=trials: torch.binomial(trials, p),  # type: ignore[misc]
            "numpy": lambda p=p, generator=generator: generator.binomial(LEVELS, p.numpy()),  # type: ignore[misc]
        }
        taken: dict[str, list[float]] = {name: [] for name in samplers}
        for draw in samplers.values():
            draw()
        for _ in range(15):
            for name, draw in samplers.items():
                taken[name].append(seconds(draw, 10))
        for name, own in taken.items():
            against = Pairs(taken["torch.binomial"], own)
            rows.append(
                {
                    "what": f"draws of {'x'.join(map(str, shape))}",
                    "by": name,
                    "us": 1e6 * median(own),
                    "M draws/s": p.numel() / median(own) / 1e6,
                    "x torch.binomial": against.ratio,
                    "spread": against.spread,
                }
            )
        slower = min(Pairs(taken["torch.binomial"], taken[name]).ratio for name in ("ours", "ours, secret"))
        goals.append(Goal(f"throughput over torch.binomial, {'x'.join(map(str, shape))}", slower, 9, "higher"))
    data = RandomFloats(PARTIES, 60_000, ROWS, COLUMNS)
    data.setup("fit")
    kinds: dict[str, Callable[[], Aggregator]] = {
        "masked": MaskedSum,
        "poisson binomial, seeded": partial(PoissonBinomial, draws="seeded"),
        "poisson binomial": PoissonBinomial,
    }
    steps: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(chosen.turns):
        for kind, make in kinds.items():
            steps[kind].append(run(make(), data).step)
    ratio = Pairs(steps["poisson binomial"], steps["masked"])
    for kind, own in steps.items():
        rows.append({"what": f"step, M = {PARTIES}, 256 x 64", "by": kind, "us": 1e6 * median(own)})
    rows[-1]["spread"] = ratio.spread
    goals.append(Goal("step over that of MaskedSum", ratio.ratio, 1.25))
    report(rows, goals, chosen.json)


if __name__ == "__main__":
    main()
