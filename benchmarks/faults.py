"""What fault sampling, waiting rules, clock and meter add to a training step at M = 28.

A training without faults runs through the Trainer; in turn with it, chunk by chunk in one process, the same rounds are
planned under faults and entered in the books, without being computed: sample two requests, decide who is in, advance
the clock, count the bytes. The ratio is the share of a step that unreliable parties cost on top of the arithmetic. For
AsyncVFL it is the event queue and the books of an event, against its own, much shorter step.

    python -m benchmarks.faults [--json FILE] [--epochs E]
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

import torch
from lightning.pytorch import Trainer

from benchmarks.harness import Goal, arguments, report
from benchmarks.in_turn import InTurn
from benchmarks.split_step import BATCH, RECORDS, WIDTH, RandomFloats
from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.datamodules import ContiguousColumns, Unchanged
from lightning_vfl.networks import MLP
from lightning_vfl.simulation import Crashes, FaultModel, PartyDropout, Stragglers
from lightning_vfl.types import VerticalBatch
from lightning_vfl.waiting import WaitForAll

PARTIES, CHUNK = 28, 39
LIMIT = 0.05

MODELS: dict[str, Sequence[FaultModel]] = {
    "no faults": (),
    "stragglers": (Stragglers(),),
    "party dropout": (PartyDropout(0.3, 0.1, announced=False),),
    "guest crashes": (Crashes("guests", 0.3, 0.1),),
    "stragglers, dropout and crashes": (
        Stragglers(),
        PartyDropout(0.3, 0.1, announced=False),
        Crashes("guests", 0.3, 0.1),
        Crashes("connections", 0.3, 0.1),
        Crashes("hosts", 0.3, 0.1),
    ),
}


Protocol = TypeVar("Protocol", SplitVFL, AsyncVFL)


def build(kind: type[Protocol], data: RandomFloats, models: Sequence[FaultModel] = (), **settings: Any) -> Protocol:
    """A protocol with the networks of the speed goals, under these faults."""
    torch.manual_seed(0)
    networks = {"bottom": partial(MLP, hidden=(128,)), "top": partial(MLP, hidden=(64,)), "width": WIDTH}
    settings = {"party_shapes": data.party_shapes, "num_classes": 10, **networks, **settings}
    module = kind(Mean(), seed=0, **settings)
    module.configure_model()
    for model in models:
        module.faults.add(model)
    return module


def planned(models: Sequence[FaultModel], data: RandomFloats) -> Iterator[None]:
    """Rounds of SplitVFL, planned and entered in the books; one for every ``next``."""
    module = build(SplitVFL, data, models, waiting=WaitForAll(timeout=10.0))
    batch = VerticalBatch((), None, torch.arange(BATCH))
    for number in count():
        module.books.enter(module.plan_round(batch, number), module.costs.of_round(BATCH))
        yield


def queued(models: Sequence[FaultModel], data: RandomFloats) -> Iterator[None]:
    """Events of AsyncVFL, queued and entered in the books."""
    module = build(AsyncVFL, data, models)
    schedule = module.schedule(data.records("train"), BATCH, 0)
    schedule.steps = CHUNK  # a plan a chunk, not one of thousands of events in the middle of one
    for epoch in count():
        for _, event in schedule.epoch(epoch):
            if event is not None:
                module.reached(event)
                module.enter_event(event)
            yield
        schedule.advance(CHUNK)


def measure(module: SplitVFL | AsyncVFL, rivals: dict[str, Iterator[None]], data: RandomFloats, steps: int) -> InTurn:
    """A faultless training of so many steps, with planned rounds in between."""
    in_turn = InTurn(rivals, CHUNK)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_steps=steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[in_turn],
            default_root_dir=folder,
        )
        trainer.fit(module, datamodule=data)
    return in_turn


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=3, help="epochs of 234 rounds of each measurement")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(2)
    data = RandomFloats(ContiguousColumns(PARTIES), Unchanged(), BATCH, drop_last=True)
    data.setup("fit")
    rows, goals = [], []
    trained: tuple[tuple[SplitVFL | AsyncVFL, Callable[..., Iterator[None]]], ...] = (
        (build(SplitVFL, data), planned),
        (build(AsyncVFL, data), queued),
    )
    for module, rival in trained:
        protocol = type(module).__name__
        rivals = {name: rival(models, data) for name, models in MODELS.items()}
        timed = measure(module, rivals, data, chosen.epochs * (RECORDS // BATCH))
        for name in MODELS:
            pairs = timed.pairs(name)
            shares = sorted(b / a for a, b in zip(pairs.a, pairs.b, strict=True))
            share = shares[len(shares) // 2]
            rows.append(
                {
                    "protocol": protocol,
                    "faults": name,
                    "step ms": 1e3 * timed.step(timed.own),
                    "planning ms": 1e3 * timed.step(timed.other[name]),
                    "share": share,
                    "spread": f"{shares[0]:.3f}..{shares[-1]:.3f}",
                    "pairs": len(shares),
                }
            )
            if protocol == "SplitVFL":
                goals.append(Goal(f"planning over a training step, M = {PARTIES}, {name}", share, LIMIT))
    report(rows, goals, chosen.json)


if __name__ == "__main__":
    main()
