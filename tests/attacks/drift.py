"""Columns from uploads that drift: the server knows no record, and the parties' initial weights are secret.

The server follows the protocol. Between two visits of a record its upload changes by gradients that the server itself
has sent, so that sums under masks tell the columns up to rotation, and columns with few values exactly.
"""

import tempfile
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import LocalGaussian, MaskedSum, Mean
from lightning_vfl.audit import DriftNeighbours
from lightning_vfl.audit.attacks.drift.heard import drifted
from lightning_vfl.audit.attacks.drift.measure import Told, explained_with, told
from lightning_vfl.audit.attacks.feature_reconstruction import aggregates_by_record
from lightning_vfl.callbacks import Audit
from lightning_vfl.datamodules import Split
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.networks import Linear
from lightning_vfl.privacy import Sigma
from tests.attacks.row import Row
from tests.subjects import Blobs, trainer

RECORDS, PARTIES, COLUMNS, WIDTH, EPOCHS = 1050, 3, 10, 64, 12
FULL_RANK = PARTIES * COLUMNS + 1  # known records that determine an affine map


class Columns(Blobs):
    """1,050 training records with 30 correlated columns; labels from a hidden direction."""

    records_in_all = RECORDS * 5 // 3
    columns = PARTIES * COLUMNS
    few_values: ClassVar[bool] = False

    @property
    def num_classes(self) -> int | None:
        return 2

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        draw = torch.Generator().manual_seed(7)
        n = self.records_in_all
        shared = torch.randn(n, 8, generator=draw) @ torch.randn(8, self.columns, generator=draw) / 8**0.5
        x = shared + 0.7 * torch.randn(n, self.columns, generator=draw)
        if self.few_values:  # -1, 0, 1 as the columns of Phishing
            edges = x.quantile(torch.tensor([0.3, 0.5]), dim=0)
            x = (x > edges[0]).float() + (x > edges[1]).float() - 1
        y = (x @ torch.randn(self.columns, generator=draw) + torch.randn(n, generator=draw) > 0).long()
        ends = {"train": (0, RECORDS), "val": (RECORDS, RECORDS * 4 // 3)}
        made = {}
        for name in names:
            begin, end = ends.get(name, (RECORDS * 4 // 3, n))
            made[name] = Split(x[begin:end], y[begin:end], np.arange(begin, end), None)
        return made


class FewValues(Columns):
    """The same with the values -1, 0 and 1 alone."""

    few_values: ClassVar[bool] = True


class Result(NamedTuple):
    """What the drift tells, what a regression on all uploads tells by the number of known records, and seconds."""

    told: Told
    regression: dict[int, float]
    seconds: float
    accuracy: float


def attack(
    aggregator: Any,
    data: type[Columns] = Columns,
    width: int = WIDTH,
    epochs: int = EPOCHS,
    known: tuple[int, ...] = (FULL_RANK,),
    optimizer: Any = None,
) -> Result:
    """A real training, and what the server makes of it."""
    torch.manual_seed(0)
    optimizer = optimizer or partial(torch.optim.SGD, lr=0.1)
    module = SplitVFL(aggregator, Linear, width=width, seed=0, optimizer=optimizer)
    listening = Audit("server", [DriftNeighbours()])
    with tempfile.TemporaryDirectory() as folder:
        fit = trainer(folder, max_epochs=epochs, num_sanity_val_steps=0, callbacks=[listening])
        fit.fit(module, datamodule=data(batch_size=32))
    case = listening._given()
    ids, columns, _ = drifted(case.seen())
    truth = case.truth.everything()[ids]
    uploads, rows, _ = aggregates_by_record(case.seen())
    beside = {k: explained_with(rows, case.truth.everything()[uploads], k) for k in known}
    accuracy = float(fit.callback_metrics["val/accuracy"])
    return Result(told(columns, truth, known), beside, listening.findings[0].seconds, accuracy)


def row(name: str, result: Result, now: str = "the same: masks hide the summands, not what their sum tells") -> Row:
    """The row of one result; known records are as many as determine an affine map."""
    found = result.told
    exact = f", {found.exact} of {found.few} columns exact" if found.few else ""
    k = FULL_RANK
    said = (
        f"inner products correlate {found.correlation:.3f}, {found.neighbours:.0%} of nearest records right{exact}; "
        f"R² {found.with_known[k]:.3f} with {k} known records (a regression on all uploads {result.regression[k]:.3f})"
    )
    return Row(f"columns from drift: {name}", "the server: uploads, and the gradients that it sent", said, now, "0")


def rows() -> list[Row]:
    """Masks, one epoch, narrow sums, noise, Adam, and columns with few values; 3 parties of 10 columns, 12 epochs."""
    clear = "the same"
    return [
        row("`Mean`, width 64", attack(Mean()), clear),
        row("`MaskedSum`, width 64", attack(MaskedSum(clip=64.0))),
        row("`MaskedSum`, width 64, Adam", attack(MaskedSum(clip=64.0), optimizer=partial(torch.optim.Adam, lr=0.01))),
        row("`MaskedSum`, width 64, one epoch", attack(MaskedSum(clip=64.0), epochs=1)),
        row("`MaskedSum`, width 16", attack(MaskedSum(clip=64.0), width=16)),
        row("`MaskedSum`, width 8", attack(MaskedSum(clip=64.0), width=8)),
        row("`LocalGaussian`, noise of 1 (about one deviation)", attack(noisy(1.0)), clear),
        row("`LocalGaussian`, noise of 3", attack(noisy(3.0)), clear),
        row("`MaskedSum`, width 64, columns of -1, 0 and 1", attack(MaskedSum(clip=64.0), FewValues)),
    ]


def noisy(sigma: float) -> LocalGaussian:
    """Embeddings with noise, drawn from a seed so that the row repeats."""
    return LocalGaussian(Sigma(sigma), clip=8.0, draws="seeded")
