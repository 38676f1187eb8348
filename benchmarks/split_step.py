"""What the trainer costs on top of the arithmetic of split learning.

A training epoch through the Trainer (CSV logger, progress bar drawn on a terminal of its own, every default metric
logged, shuffled batches gathered from memory) against a hand-written PyTorch loop that does the same arithmetic: the
same networks and initial weights, the same bank or the same loop over bottoms, the same fused Adam, but ready slices
of a tensor instead of shuffled batches, no logging, no byte counts. Both run in one process, chunk by chunk in turn.

    python -m benchmarks.split_step [--json FILE] [--epochs E]
"""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.in_turn import InTurn
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, Concat, Mean
from lightning_vfl.callbacks import SparseProgressBar
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.datamodules import ContiguousColumns, Layout, Partitioner, Split, Unchanged, VerticalDataModule
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.networks import MLP, PartyBank

RECORDS, COLUMNS, BATCH, WIDTH, HIDDEN = 60_000, 784, 256, 64, 128
STEPS = RECORDS // BATCH
CHUNK = 39  # a sixth of an epoch, 0.1 to 0.5 s


class RandomFloats(VerticalDataModule):
    """60,000 records of 784 standard normal floats and ten classes: the shapes of FashionMNIST."""

    @property
    def layout(self) -> Layout:
        return Layout((COLUMNS,))

    @property
    def num_classes(self) -> int:
        return 10

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(4)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(RECORDS, COLUMNS, generator=generator)
        y = torch.randint(10, (RECORDS,), generator=generator)
        return {"train": Split(x, y, np.arange(RECORDS))}


def hand_loop(bank: PartyBank, top: nn.Module, join: str, data: RandomFloats, optimizers: str) -> Iterator[None]:
    """The same arithmetic by hand; one step for every ``next``."""
    records = data.records("train")
    labels = records.labels
    if labels is None:
        raise ValueError("the benchmark's records have labels")
    features = torch.cat(records.rows(torch.arange(STEPS * BATCH)), dim=1)
    owners = [list(network.parameters()) for network in (*bank.parties, top)]
    groups = owners if optimizers == "one a party" else [[p for owner in owners for p in owner]]
    adams = [torch.optim.Adam(group, lr=1e-3, fused=True) for group in groups]
    loss_of = nn.CrossEntropyLoss()
    while True:
        for start in range(0, STEPS * BATCH, BATCH):
            columns = features[start : start + BATCH].split(records.widths, dim=1)  # type: ignore[no-untyped-call]
            h: tuple[Tensor, ...] = bank(columns)
            z = torch.cat(h, 1) if join == "concat" else torch.stack(h).mean(0)
            loss = loss_of(top(z), labels[start : start + BATCH])
            for adam in adams:
                adam.zero_grad()
            loss.backward()
            for adam in adams:
                adam.step()
            yield


def build(aggregator: Aggregator, top: Callable[[int], nn.Module], data: RandomFloats, looped: bool) -> SplitVFL:
    """The module, built, with its bottoms banked or looped."""
    torch.manual_seed(0)
    bottom = partial(MLP, hidden=(HIDDEN,))
    module = SplitVFL(aggregator, bottom, top, WIDTH, seed=0, party_shapes=data.party_shapes, num_classes=10)
    module.configure_model()
    if looped:
        module.bottoms = PartyBank(list(module.bottoms.parties), batch_from=10**6)
    return module


def measure(parties: int, join: str, looped: bool, epochs: int, alone: bool = False) -> tuple[InTurn, SplitVFL]:
    """A fit of some epochs, with hand-written rivals in between or alone."""
    data = RandomFloats(ContiguousColumns(parties), Unchanged(), BATCH, drop_last=True)
    data.setup("fit")
    top = partial(MLP, hidden=(128,)) if join == "concat" else partial(MLP, hidden=(64,))
    aggregator: Aggregator = Concat() if join == "concat" else Mean()
    module, twin, second = (build(aggregator, top, data, looped) for _ in range(3))
    rivals = {
        "one": hand_loop(twin.bottoms, twin.top, join, data, "one"),
        "one a party": hand_loop(second.bottoms, second.top, join, data, "one a party"),
    }
    if not looped:
        third = build(aggregator, top, data, looped=True)
        rivals["looped"] = hand_loop(third.bottoms, third.top, join, data, "one")
    in_turn = InTurn({} if alone else rivals, CHUNK)
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as screen:
        bar = SparseProgressBar(console_kwargs={"force_terminal": True, "file": screen})
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            logger=CSVLogger(folder),
            callbacks=[in_turn, bar],
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(module, datamodule=data)
    return in_turn, module


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=3, help="epochs of each measurement, six chunks each")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(2)
    rows, goals = [], []
    # The goals are against the stricter loop, with one optimiser for all; the ratio to a loop with one optimiser a
    # party, as one would write it, stands beside it in every row.
    for parties, join, looped, limit in (
        (4, "mean", True, 1.08),
        (28, "mean", True, 1.08),
        (28, "mean", False, 1.08),
        (2, "concat", True, 1.15),
        (4, "concat", True, 1.08),
        (8, "concat", True, 1.08),
    ):
        timed, _ = measure(parties, join, looped, chosen.epochs)
        pairs, strict = timed.pairs("one a party"), timed.pairs("one")
        rows.append(
            {
                "parties": parties,
                "aggregate": join,
                "bottoms": "looped" if looped else "banked",
                "trainer s/epoch": STEPS * timed.step(timed.own),
                "hand s/epoch": STEPS * timed.step(timed.other["one a party"]),
                "trainer/hand": pairs.ratio,
                "spread": pairs.spread,
                "one optimiser s/epoch": STEPS * timed.step(timed.other["one"]),
                "trainer/one optimiser": strict.ratio,
                "pairs": len(pairs.a),
            }
        )
        kind = "looped" if looped else "banked"
        goals.append(Goal(f"trainer over one optimiser, M = {parties}, {join}, {kind} bottoms", strict.ratio, limit))
        if not looped:
            bank = Pairs(timed.other["one"][1:], timed.other["looped"][1:])
            goals.append(Goal(f"bank over loop, M = {parties}, hand-written step", bank.ratio, 0.85))
        if join == "concat" and parties == 4:
            own = measure(parties, join, looped, 2 * chosen.epochs, alone=True)[0].own
            best = min(sum(own[i : i + STEPS // CHUNK]) for i in range(1, len(own) - STEPS // CHUNK + 1))
            goals.append(Goal("seconds of the fastest epoch, M = 4, 60,000 x 784, concat, alone", best, 0.72))
    report(rows, goals, chosen.json)


if __name__ == "__main__":
    main()
