"""What listening costs in training: a step with the callback Audit against one without.

FashionMNIST's shape (784 columns, B = 256, width 64) cut among 4 parties, MLP bottoms with 128 hidden units; ``Concat``
also with two layers of 1,024, because listening costs the same whatever the networks cost. Fits of a few steps each,
with the server, which receives most, as the attacker and without, are run in turn in one process.
The attacks themselves run after the training and are not timed here.

    python -m benchmarks.audit [--json FILE] [--turns T]
"""

import warnings
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from lightning.pytorch import LightningModule

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.steps import RandomFloats, take_steps
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, Concat, LagrangeCoded, LocalGaussian, MaskedSum, Mean
from lightning_vfl.callbacks import Audit
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.networks import MLP, PolynomialNetwork

COLUMNS, ROWS, WIDTH, PARTIES, RECORDS = 784, 256, 64, 4, 20_480


def module(make: Callable[[], Aggregator], hidden: tuple[int, ...] = (128,)) -> LightningModule:
    """A protocol with this aggregator."""
    torch.manual_seed(0)
    bottom = PolynomialNetwork if make.func is LagrangeCoded else partial(MLP, hidden=hidden)  # type: ignore[attr-defined]
    return SplitVFL(make(), bottom, partial(MLP, hidden=(64,)), WIDTH, seed=0)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=5, help="how often each kind of round is fitted")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(2)
    data = RandomFloats(PARTIES, RECORDS, ROWS, COLUMNS // PARTIES)
    data.setup("fit")
    large = "Concat, 2 x 1,024 hidden"
    kinds: dict[str, Callable[[], Aggregator]] = {
        "Concat": partial(Concat),
        large: partial(Concat),
        "Mean": partial(Mean),
        "MaskedSum": partial(MaskedSum),
        "LocalGaussian": partial(LocalGaussian),
        "LagrangeCoded": partial(LagrangeCoded, blocks=1, privacy=1),
    }
    rows, goals = [], []
    for kind, make in kinds.items():
        hidden = (1024, 1024) if kind == large else (128,)
        alone, heard = list[float](), list[float]()
        for _ in range(chosen.turns):
            alone.append(take_steps(module(make, hidden), data).step)
            heard.append(take_steps(module(make, hidden), data, callbacks=[Audit("server", [])]).step)
        pairs = Pairs(heard, alone)
        rows.append(
            {
                "aggregator": kind,
                "ms/step": 1e3 * median(alone),
                "with Audit": 1e3 * median(heard),
                "ratio": pairs.ratio,
                "spread": pairs.spread,
            }
        )
        goals.append(Goal(f"step of {kind} with Audit over one without", pairs.ratio, 1.1))
    report(rows, goals, chosen.json)


if __name__ == "__main__":
    main()
