"""What the trainer costs on top of the arithmetic of split learning.

A training epoch through the Trainer (CSV logger, progress bar drawn on a terminal of its own, every default metric
logged, shuffled batches gathered from memory) against a hand-written PyTorch loop that does the same arithmetic: the
same networks and initial weights, the same bank or the same loop over bottoms, the same fused Adam, but ready slices
of a tensor instead of shuffled batches, no logging, no byte counts. Both run in one process, chunk by chunk in turn.

The rows ``plain`` compare with what Lightning itself costs: a plain ``LightningModule`` with the same networks, the
same fused Adam, the same logger and bar, and batches that are gathered in a new order every epoch. It logs its loss
where the toolkit does, in every fiftieth step; the rows ``plain, logs every step`` are those of one that calls
``self.log`` in every step. Fits of one epoch are run in turn. The machine may be shared, so the ratio is that of
the fastest tenth of the steps of all fits: the 10th percentile of one over that of the other. With one thread, the
seconds of these rows are CPU seconds of the process, which other programs change least.

    python -m benchmarks.split_step [--json FILE] [--epochs E] [--only plain] [--threads T]
"""

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.in_turn import InTurn
from benchmarks.steps import Steps
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


class Shuffled:
    """Batches of columns by party and labels, gathered in a new order every epoch."""

    def __init__(self, data: RandomFloats) -> None:
        records = data.records("train")
        if records.labels is None:
            raise ValueError("the benchmark's records have labels")
        self.widths = list(records.widths)
        self.features, self.labels = torch.cat(records.rows(torch.arange(RECORDS)), dim=1), records.labels

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        for ids in torch.randperm(RECORDS)[: STEPS * BATCH].view(STEPS, BATCH):
            columns = self.features.index_select(0, ids).split(self.widths, dim=1)  # type: ignore[no-untyped-call]
            yield columns, self.labels.index_select(0, ids)


class Plain(LightningModule):
    """Split learning as one writes it without a toolkit: no parties, no messages, no counts.

    Args:
        twin: a module whose networks it has.
        join: ``concat`` or ``mean``.
        every: logs its loss in every so many steps.
    """

    def __init__(self, twin: SplitVFL, join: str, every: int) -> None:
        super().__init__()
        self.bottoms, self.top, self.join, self.every = nn.ModuleList(twin.bottoms.parties), twin.top, join, every

    def training_step(self, batch: tuple[tuple[Tensor, ...], Tensor], batch_idx: int) -> Tensor:
        columns, labels = batch
        h = [bottom(x) for bottom, x in zip(self.bottoms, columns, strict=True)]
        z = torch.cat(h, 1) if self.join == "concat" else torch.stack(h).mean(0)
        loss = nn.functional.cross_entropy(self.top(z), labels)
        if batch_idx % self.every == 0:
            self.log("train/loss", loss, batch_size=BATCH)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def fit(module: LightningModule, data: LightningDataModule | Shuffled, epochs: int, callback: Callback) -> None:
    """A training with a CSV logger and a progress bar on a terminal of its own."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as screen:
        bar = SparseProgressBar(console_kwargs={"force_terminal": True, "file": screen})
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            logger=CSVLogger(folder),
            callbacks=[callback, bar],
            enable_model_summary=False,
            default_root_dir=folder,
        )
        if isinstance(data, LightningDataModule):
            trainer.fit(module, datamodule=data)
        else:
            trainer.fit(module, train_dataloaders=data)


def beside_plain(parties: int, join: str, turns: int) -> list[dict[str, Any]]:
    """Rows of fits of one epoch, with the toolkit and as plain modules, in turn."""
    data, aggregator, top = workload(parties, join)
    batches, taken = Shuffled(data), dict[str, list[float]]()
    for turn in range(turns):
        kinds: dict[str, tuple[LightningModule, LightningDataModule | Shuffled]] = {
            "SplitVFL": (build(aggregator, top, data, looped=True), data),
            "plain": (Plain(build(aggregator, top, data, looped=True), join, 50), batches),
            "plain, logs every step": (Plain(build(aggregator, top, data, looped=True), join, 1), batches),
        }
        order = list(kinds) if turn % 2 == 0 else list(reversed(kinds))
        for kind in order:
            steps = Steps(time.process_time if torch.get_num_threads() == 1 else time.perf_counter)
            fit(*kinds[kind], 1, steps)
            taken.setdefault(kind, []).extend(steps.gaps)
    own = taken["SplitVFL"]
    return [
        {
            "parties": parties,
            "aggregate": join,
            "module": kind,
            "ms/step, fastest tenth": 1e3 * fastest_tenth(gaps),
            "ms/step, median": 1e3 * median(gaps),
            "trainer/module": fastest_tenth(own) / fastest_tenth(gaps),
            "medians": median(own) / median(gaps),
        }
        for kind, gaps in taken.items()
    ]


def fastest_tenth(seconds: Sequence[float]) -> float:
    """The 10th percentile."""
    return float(np.quantile(seconds, 0.1))


def workload(parties: int, join: str) -> tuple[RandomFloats, Aggregator, Callable[[int], nn.Module]]:
    """The records of so many parties, the aggregator and the maker of the top."""
    data = RandomFloats(ContiguousColumns(parties), Unchanged(), BATCH, drop_last=True)
    data.setup("fit")
    if join == "concat":
        return data, Concat(), partial(MLP, hidden=(128,))
    return data, Mean(), partial(MLP, hidden=(64,))


def measure(parties: int, join: str, looped: bool, epochs: int, alone: bool = False) -> tuple[InTurn, SplitVFL]:
    """A fit of some epochs, with hand-written rivals in between or alone."""
    data, aggregator, top = workload(parties, join)
    module, twin, second = (build(aggregator, top, data, looped) for _ in range(3))
    rivals = {
        "one": hand_loop(twin.bottoms, twin.top, join, data, "one"),
        "one a party": hand_loop(second.bottoms, second.top, join, data, "one a party"),
    }
    if not looped:
        third = build(aggregator, top, data, looped=True)
        rivals["looped"] = hand_loop(third.bottoms, third.top, join, data, "one")
    in_turn = InTurn({} if alone else rivals, CHUNK)
    fit(module, data, epochs, in_turn)
    return in_turn, module


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=3, help="epochs of each measurement, six chunks each")
    parser.add_argument("--only", choices=("loop", "plain"), help="only the rows of this comparison")
    parser.add_argument("--threads", type=int, default=2, help="of torch; 1 where others use the machine")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(chosen.threads)
    rows, goals = list[dict[str, Any]](), list[Goal]()
    if chosen.only != "loop":
        for parties, join, limit in ((4, "mean", 1.0), (2, "concat", 1.05), (4, "concat", 1.0), (8, "concat", 1.0)):
            beside = beside_plain(parties, join, 2 * chosen.epochs)
            rows += [{"against": "plain LightningModule"} | row for row in beside]
            ratio = next(row["trainer/module"] for row in beside if row["module"] == "plain")
            goals.append(Goal(f"trainer over a plain module, M = {parties}, {join}", ratio, limit))
    if chosen.only != "plain":
        against_the_loop(chosen.epochs, rows, goals)
    report(rows, goals, chosen.json, by="against")


def against_the_loop(epochs: int, rows: list[dict[str, Any]], goals: list[Goal]) -> None:
    """Add the rows of the comparison with a hand-written loop, with one optimiser a party and with one for all."""
    for parties, join, looped in (
        (4, "mean", True),
        (28, "mean", True),
        (28, "mean", False),
        (2, "concat", True),
        (4, "concat", True),
        (8, "concat", True),
    ):
        timed, _ = measure(parties, join, looped, epochs)
        pairs, strict = timed.pairs("one a party"), timed.pairs("one")
        rows.append(
            {
                "against": "hand-written loop",
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
        if not looped:
            bank = Pairs(timed.other["one"][1:], timed.other["looped"][1:])
            goals.append(Goal(f"bank over loop, M = {parties}, hand-written step", bank.ratio, 0.85))
        if join == "concat" and parties == 4:
            own = measure(parties, join, looped, 2 * epochs, alone=True)[0].own
            best = min(sum(own[i : i + STEPS // CHUNK]) for i in range(1, len(own) - STEPS // CHUNK + 1))
            goals.append(Goal("seconds of the fastest epoch, M = 4, 60,000 x 784, concat, alone", best, 0.72))


if __name__ == "__main__":
    main()
