"""What an asynchronous event of CascadeVFL costs: its step against that of SplitVFL with the same networks and batch.

Four parties with 28 x 7 strips of FashionMNIST's shape, B = 128: convolutional bottoms as in the studies, then MLPs.
An event computes embeddings twice (a replica's, and the current ones for the Jacobian), differentiates the replica's
top and every current bottom, and copies all parameters once; a step of SplitVFL computes and differentiates once. So
the floor of the ratio is what the arithmetic of a forward more is worth, printed as the hand-written event: the same
without trainer, plan, clock, meter and loader. Fits of a few steps each are run in turn in one process.

    python -m benchmarks.cvfl_step [--json FILE] [--turns T]
"""

import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.steps import STEPS, WARM, RandomFloats, in_turn, take_steps
from lightning_vfl import CascadeVFL, SplitVFL, VFLModule
from lightning_vfl.aggregators import Concat
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.datamodules import Grid, Layout, Partitioner
from lightning_vfl.datamodules.records.records import Request
from lightning_vfl.networks import MLP, ConvNet

ROWS, PARTIES, WIDTH, DECAY = 128, 4, 64, 1e-3
BOTTOMS: dict[str, Callable[..., nn.Module]] = {"ConvNet": ConvNet, "MLP": partial(MLP, hidden=(128,))}
TOP = partial(MLP, hidden=(64,))
SGD = partial(torch.optim.SGD, lr=0.01, fused=True)


class RandomStrips(RandomFloats):
    """Random images of 28 x 28 pixels, in four vertical strips."""

    @property
    def layout(self) -> Layout:
        return Layout((1, 28, 28))

    def default_partitioner(self) -> Partitioner:
        return Grid(1, PARTIES)


def split(data: RandomFloats, bottom: str) -> SplitVFL:
    """The synchronous counterpart."""
    torch.manual_seed(0)
    return SplitVFL(Concat(), BOTTOMS[bottom], TOP, WIDTH, optimizer=SGD, seed=0)


def cascade(data: RandomFloats, bottom: str, **settings: Any) -> CascadeVFL:
    """Four active parties, one of them slow."""
    torch.manual_seed(0)
    settings["slower"] = None if settings else {3: 0.5}
    settings |= {"bottom": BOTTOMS[bottom], "top": TOP, "width": WIDTH}
    return CascadeVFL(Concat(), optimizer=SGD, seed=0, **settings)


def by_hand(data: RandomFloats, bottom: str) -> float:
    """Median seconds of an event with nothing around it."""
    torch.manual_seed(0)
    bottoms = [BOTTOMS[bottom](shape, WIDTH) for shape in data.party_shapes]
    top = MLP(PARTIES * WIDTH, 10, hidden=(64,))
    old, old_top = deepcopy(bottoms), deepcopy(top)
    own = [p for network in bottoms for p in network.parameters()]
    networks: list[Tensor] = [*own, *top.parameters()]
    replica: list[Tensor] = [*(p for network in old for p in network.parameters()), *old_top.parameters()]
    sgd = SGD(networks)
    records = data.records("train")
    batches = [records[Request(ids, None, None)] for ids in torch.split(torch.arange(STEPS * ROWS), ROWS)]
    times = []
    for batch in batches:
        x, y = batch.features, batch.labels
        if y is None:
            raise ValueError("the benchmark's records have labels")
        began = time.perf_counter()
        with torch.no_grad():
            h = [network(strip) for network, strip in zip(old, x, strict=True)]
        leaves = [embedding.requires_grad_() for embedding in h]
        loss = nn.functional.cross_entropy(old_top(torch.cat(leaves, 1)), y)
        gradients = torch.autograd.grad(loss, [*leaves, *old_top.parameters()])
        now = [network(strip) for network, strip in zip(bottoms, x, strict=True)]
        sgd.zero_grad()
        torch.autograd.backward([*now, *top.parameters()], list(gradients))
        torch._foreach_add_([p.grad for p in own if p.grad is not None], [p.detach() for p in own], alpha=DECAY)
        sgd.step()
        with torch.no_grad():
            torch._foreach_copy_(replica, networks)
        times.append(time.perf_counter() - began)
    return median(times[WARM:])


def step_of(make: Callable[..., VFLModule], data: RandomFloats, bottom: str) -> float:
    """Median seconds of a step of a fit."""
    return take_steps(make(data, bottom), data).step


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=15, help="how often each kind of step is fitted")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(2)
    data = RandomStrips(PARTIES, 60_000, ROWS, 196)
    data.setup("fit")

    rows, goals = [], []
    for bottom in BOTTOMS:
        kinds: dict[str, Callable[[], float]] = {
            "SplitVFL": partial(step_of, split, data, bottom),
            "CascadeVFL, async": partial(step_of, cascade, data, bottom),
            "CascadeVFL, centralized": partial(step_of, partial(cascade, variant="centralized"), data, bottom),
            "event by hand": partial(by_hand, data, bottom),
        }
        taken = in_turn(kinds, chosen.turns)
        for kind, own in taken.items():
            pairs = Pairs(own, taken["SplitVFL"])
            row = {"bottoms": bottom, "step": kind, "ms": 1e3 * median(own)}
            rows.append(row | {"/ SplitVFL": pairs.ratio, "spread": pairs.spread})
        ratio = Pairs(taken["CascadeVFL, async"], taken["SplitVFL"]).ratio
        limit = 1.5 if bottom == "MLP" else 2.0
        goals.append(Goal(f"asynchronous event over a step of SplitVFL, {bottom} bottoms", ratio, limit))
    report(rows, goals, chosen.json, by="bottoms")


if __name__ == "__main__":
    main()
