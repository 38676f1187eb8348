"""What a round on Lagrange-coded shares costs: FedVS against the plain mean, both through the Trainer.

28 parties with 28 features each, K = 6, T = 1, width 64, 43 coded rows (258 records), D = 1. Fits of a few steps each
are run in turn in one process; a step is timed from batch to batch. The arithmetic floor is what the float64 products
alone take: R parties, each 43 x 812 by 812 x 64, in as many limbs as the modulus needs.

    python -m benchmarks.fedvs_step [--json FILE] [--turns T] [--accelerator gpu]
"""

import resource
import time
import warnings
from collections.abc import Callable
from functools import partial
from math import log
from multiprocessing import get_context
from statistics import median

import numpy as np
import torch

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.steps import WARM, RandomFloats, Steps, settle, take_steps
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, LagrangeCoded, Mean
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.field.limbs import plan
from lightning_vfl.networks import MLP, PartyBank, PolynomialNetwork
from lightning_vfl.protocols.place import needed
from lightning_vfl.types import RoundNames, Stage
from lightning_vfl.waiting import Threshold, WaitForAll

PARTIES, COLUMNS, BLOCKS, PRIVACY, WIDTH, ROWS = 28, 28, 6, 1, 64, 43


def build(aggregator: Aggregator, data: RandomFloats) -> SplitVFL:
    """The module of one kind of round."""
    torch.manual_seed(0)
    coded = isinstance(aggregator, LagrangeCoded)
    module = SplitVFL(
        aggregator,
        partial(PolynomialNetwork, degree=1),
        partial(MLP, hidden=(64,)),
        WIDTH,
        waiting=Threshold() if coded else WaitForAll(),
        seed=0,
        party_shapes=[(COLUMNS,)] * data.parties,
        num_classes=10,
    )
    module.configure_model()
    return module


def sharing(_: int = 0) -> tuple[float, float]:
    """Seconds and GiB of sharing 60,000 records; for a process of its own."""
    torch.set_num_threads(2)
    keep_freed_memory()
    data = RandomFloats(PARTIES, 60_000, BLOCKS * ROWS, COLUMNS)
    data.setup("fit")
    module = build(LagrangeCoded(blocks=BLOCKS, privacy=PRIVACY), data)
    setup = needed(module.aggregator.setup)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    module.set_up_all(setup, data.records("train"), RoundNames(0, Stage.FIT, 0))
    seconds = time.perf_counter() - began
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def fit(aggregator: Aggregator, data: RandomFloats, accelerator: str, looped: bool = False) -> Steps:
    """A fit of some steps."""
    module = build(aggregator, data)
    if looped:
        module.bottoms = PartyBank(list(module.bottoms.parties), batch_from=10**6)
    return take_steps(module, data, accelerator)


def floor(parties: int, needed: int, modulus: int, device: str) -> float:
    """Seconds of a round's float64 products, and of nothing else."""
    terms = parties * (COLUMNS + 1)
    split = plan(terms, modulus)
    a = torch.randn(needed, split.few.count * ROWS, terms, dtype=torch.float64, device=device)
    b = torch.randn(needed, terms, split.many.count * WIDTH, dtype=torch.float64, device=device)
    times = []
    for _ in range(60):
        began = time.perf_counter()
        for start in range(0, terms, split.chunk):
            torch.bmm(a[..., start : start + split.chunk], b[:, start : start + split.chunk])
        settle()
        times.append(time.perf_counter() - began)
    return median(times[WARM:])


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=5, help="how often each kind of round is fitted")
    parser.add_argument("--accelerator", default="cpu", choices=("cpu", "gpu"), help="where both kinds of round run")
    chosen = parser.parse_args()
    where = chosen.accelerator
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(2)
    rows, goals = [], []

    data = RandomFloats(PARTIES, 60_000, BLOCKS * ROWS, COLUMNS)
    data.setup("fit")
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # each in a fresh process, one after the other
        shared = pool.map(sharing, range(5), chunksize=1)
    coded = partial(LagrangeCoded, blocks=BLOCKS, privacy=PRIVACY)
    kinds: dict[str, Callable[[], Steps]] = {
        "mean, looped bottoms": lambda: fit(Mean(), data, where, looped=True),
        "mean, batched bottoms": lambda: fit(Mean(), data, where),
        "coded": lambda: fit(coded(rerandomise=False), data, where),
        "coded, rerandomised": lambda: fit(coded(), data, where),
        "equivalent": lambda: fit(coded(execution="equivalent"), data, where),
    }
    taken: dict[str, list[Steps]] = {kind: [] for kind in kinds}
    for _ in range(chosen.turns):
        for kind, run in kinds.items():
            taken[kind].append(run())
    needed = coded().wire.needed(PARTIES)
    least = floor(PARTIES, needed, coded().field.modulus, "cuda" if where == "gpu" else where)
    seconds = {kind: [fit.step for fit in fits] for kind, fits in taken.items()}
    looped, batched = seconds["mean, looped bottoms"], seconds["mean, batched bottoms"]
    for kind, own in seconds.items():
        against = Pairs(own, looped), Pairs(own, batched)
        rows.append(
            {
                "round": kind,
                "ms/step": 1e3 * median(own),
                "/ looped mean": against[0].ratio,
                "spread": against[0].spread,
                "/ batched mean": against[1].ratio,
                "spread ": against[1].spread,
                "floor ms": 1e3 * least if "coded" in kind else None,
            }
        )
    goals.append(Goal("coded step over the mean's, looped bottoms", Pairs(seconds["coded"], looped).ratio, 3.5))
    goals.append(Goal("coded step over the mean's, batched bottoms", Pairs(seconds["coded"], batched).ratio, 11))
    goals.append(Goal("seconds to share 60,000 records, median of 5", median(s for s, _ in shared), 8))
    goals.append(Goal("GiB that sharing adds to the process, at most", max(gib for _, gib in shared), 2))

    growth = {}
    for parties in (4, 8, 16, 32, 64):
        small = RandomFloats(parties, 6_000, 128, COLUMNS)
        small.setup("fit")
        aggregator = LagrangeCoded(rerandomise=False)
        growth[parties] = median([fit(aggregator, small, where).step for _ in range(3)])
        k = aggregator.setup.arrangement(6_000, parties, 0, Stage.FIT).count
        rows.append({"round": f"coded, M = {parties}, K = {k}, 128 records", "ms/step": 1e3 * growth[parties]})
    slope = np.polyfit([log(m) for m in growth], [log(s) for s in growth.values()], 1)[0]
    rows.append({"round": f"growth from M = 4 to 64: M^{slope:.2f}"})
    last = log(growth[64] / growth[16]) / log(4)
    rows.append({"round": f"growth from M = 16 to 64: M^{last:.2f}"})
    report(rows, goals, chosen.json)


if __name__ == "__main__":
    main()
