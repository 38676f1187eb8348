"""Columns from uploads that drift: the server knows no record, and the parties' initial weights are secret.

The server follows the protocol. Between two visits of a record its upload changes by gradients that the server itself
has sent, so that sums under masks tell the columns up to rotation, and columns with few values exactly.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_vfl import AsyncVFL, CascadeVFL, SplitVFL, VFLModule
from lightning_vfl.aggregators import (
    Concat,
    LagrangeCoded,
    LagrangeShared,
    LocalGaussian,
    MaskedSum,
    Mean,
    PoissonBinomial,
)
from lightning_vfl.audit.attack import Seen
from lightning_vfl.audit.attacks.drift.heard import drifted, served_steps
from lightning_vfl.audit.attacks.drift.measure import nearest_right
from lightning_vfl.audit.case import Case
from lightning_vfl.callbacks import Audit
from lightning_vfl.datamodules import Split
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.networks import Linear, PolynomialNetwork
from lightning_vfl.privacy import Sigma
from tests.attacks.row import Row
from tests.attacks.told import Told, explained_with, told
from tests.subjects import Blobs, trainer

RECORDS, PARTIES, COLUMNS, WIDTH, EPOCHS = 1050, 3, 10, 64, 12
FULL_RANK = PARTIES * COLUMNS + 1  # known records that determine an affine map
SWEEP = (1, 15, 30, 60)  # known records: 1, half as many as columns, as many, twice as many
SGD = partial(torch.optim.SGD, lr=0.1)
Making = Callable[[int], VFLModule]


class Columns(Blobs):
    """1,050 training records with 30 correlated columns; labels from a hidden direction."""

    records_in_all = RECORDS * 5 // 3
    columns = PARTIES * COLUMNS
    few_values: ClassVar[bool] = False
    draw = 7  # the seed of the records

    @property
    def num_classes(self) -> int | None:
        return 2

    def drawn(self) -> tuple[Tensor, Tensor]:
        """All features and labels."""
        draw = torch.Generator().manual_seed(self.draw)
        n = self.records_in_all
        shared = torch.randn(n, 8, generator=draw) @ torch.randn(8, self.columns, generator=draw) / 8**0.5
        x = shared + 0.7 * torch.randn(n, self.columns, generator=draw)
        if self.few_values:  # -1, 0, 1 as the columns of Phishing
            edges = x.quantile(torch.tensor([0.3, 0.5]), dim=0)
            x = (x > edges[0]).float() + (x > edges[1]).float() - 1
        return x, (x @ torch.randn(self.columns, generator=draw) + torch.randn(n, generator=draw) > 0).long()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        x, y = self.drawn()
        ends = {"train": (0, RECORDS), "val": (RECORDS, RECORDS * 4 // 3)}
        made = {}
        for name in names:
            begin, end = ends.get(name, (RECORDS * 4 // 3, self.records_in_all))
            made[name] = Split(x[begin:end], y[begin:end], np.arange(begin, end), None)
        return made


class FewValues(Columns):
    """The same with the values -1, 0 and 1 alone."""

    few_values: ClassVar[bool] = True


class Result(NamedTuple):
    """What an attack by drift has found.

    Args:
        told: what the drift tells.
        uploads: the share of nearest records that are right by the uploads as they are.
        regression: by number of known records, R² of a regression on all uploads.
        accuracy: of the training, on the validation records.
    """

    told: Told
    uploads: float
    regression: dict[int, float]
    accuracy: float


def split(aggregator: Callable[[], Any], bottom: Any = Linear, **settings: Any) -> Making:
    """``SplitVFL`` by seed."""
    all_settings: dict[str, Any] = {"width": WIDTH, "optimizer": SGD} | settings
    return lambda seed: SplitVFL(aggregator(), bottom, seed=seed, **all_settings)


def trained(
    making: Making, data: type[Columns] = Columns, epochs: int = EPOCHS, seed: int = 0, attacker: str = "server"
) -> tuple[Case, float]:
    """A real training under an audit, and its accuracy on the validation records."""
    torch.manual_seed(seed)
    module, records = making(seed), data(batch_size=32)
    records.draw = 7 + seed
    listening = Audit(attacker, [])
    with tempfile.TemporaryDirectory() as folder:
        fit = trainer(folder, max_epochs=epochs, num_sanity_val_steps=0, callbacks=[listening])
        fit.fit(module, datamodule=records)
    return listening._case, float(fit.callback_metrics["val/accuracy"])


def attack(making: Making, data: type[Columns] = Columns, **settings: Any) -> Result:
    """What the server, or another attacker, makes of a training; settings as in ``trained``."""
    case, accuracy = trained(making, data, **settings)
    seen, known = case.seen(), (*SWEEP, FULL_RANK)
    solution = drifted(seen)
    ids = solution.ids
    truth = case.truth.everything(but=seen.attacker.parties)[ids]
    uploads = all_uploads(seen, ids)
    return Result(
        told(solution.columns, truth, known),
        float(nearest_right(solution.shown, truth).double().mean()),
        {k: explained_with(uploads, truth, k) for k in known},
        accuracy,
    )


def all_uploads(seen: Seen, ids: Tensor, visits: int = EPOCHS) -> Tensor:
    """(n, visits * W) the first uploads of these records that are read, side by side; fewer if there are fewer."""
    read = []
    for served, _ in served_steps(seen):
        every = torch.cat([step.ids for step in served.steps])
        values = torch.cat([step.upload for step in served.steps])
        order = torch.argsort(every, stable=True)
        begin = torch.searchsorted(every[order], ids)
        fewest = int(torch.bincount(every)[ids].min())
        read += [values[order[begin + visit]] for visit in range(min(visits, fewest))]
    return torch.cat(read, 1)


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """The mean over the seeds, and the range where it shows."""
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{format(mean(values), form)} ({low} to {high})"


def over(results: Sequence[Result], number: Callable[[Result], float], form: str = ".3f") -> str:
    """``spread`` of a number of each result."""
    return spread([number(result) for result in results], form)


def row(name: str, results: Sequence[Result], now: str = "the same: masks hide no sum", sweep: bool = False) -> Row:
    """The row of one setting; without ``sweep``, known records are as many as determine an affine map."""
    correlation = over(results, lambda result: result.told.correlation)
    near = over(results, lambda result: result.told.neighbours, ".0%")
    plain = over(results, lambda result: result.uploads, ".0%")
    few = results[0].told.few
    exact = f", {over(results, lambda result: result.told.exact, '.0f')} of {few} columns exact" if few else ""
    known = sorted((*SWEEP, FULL_RANK)) if sweep else [FULL_RANK]
    numbers = [spread([result.told.with_known[k] for result in results]) for k in known]
    beside = [spread([result.regression[k] for result in results]) for k in known]
    said = (
        f"inner products correlate {correlation}, {near} of nearest records right (uploads as they are {plain}){exact}"
        f"; R² {' / '.join(numbers)} with {' / '.join(map(str, known))} known records (a regression on all "
        f"uploads {' / '.join(beside)}); validation accuracy {over(results, lambda result: result.accuracy)}; "
        f"{len(results)} seed{'s' * (len(results) > 1)}"
    )
    return Row(f"columns from drift: {name}", "the server: uploads, and the gradients that it sent", said, now, "0")


def seeds(making: Making, data: type[Columns] = Columns, count: int = 1, **settings: Any) -> list[Result]:
    """The attack on trainings that differ by the seed of records, weights and batches."""
    return [attack(making, data, seed=seed, **settings) for seed in range(count)]


def noisy(sigma: float) -> LocalGaussian:
    """Embeddings with noise, drawn from a seed so that the row repeats."""
    return LocalGaussian(Sigma(sigma), clip=8.0, draws="seeded")


def binomial(levels: int) -> PoissonBinomial:
    """Sums of draws, from a seed so that the row repeats."""
    return PoissonBinomial(levels=levels, beta=0.25, clip=8.0, clip_outside=True, draws="seeded")


def events(seed: int, noise: float = 0.0) -> VFLModule:
    """``AsyncVFL``: a batch and one party an event."""
    return AsyncVFL(Mean(), bottom=Linear, width=WIDTH, seed=seed, optimizer=SGD, noise=noise)


def cascade(seed: int, **settings: Any) -> VFLModule:
    """``CascadeVFL`` with the aggregator of the settings."""
    return CascadeVFL(bottom=Linear, width=WIDTH, seed=seed, optimizer=SGD, **settings)


def rows() -> list[Row]:
    """Protocols and aggregators, one epoch, narrow sums, noise, Adam, and columns with few values; 12 epochs."""
    clear = "the same"
    masked = partial(MaskedSum, clip=64.0)
    adam = partial(torch.optim.Adam, lr=0.01)
    alone: dict[str, Any] = {"attacker": "party:0"}
    coded = split(partial(LagrangeCoded, blocks=1, privacy=1), PolynomialNetwork)
    shared = split(partial(LagrangeShared, blocks=1, privacy=1))
    return [
        row("`Mean`, width 64", seeds(split(Mean), count=3), clear),
        row("`MaskedSum`, width 64", seeds(split(masked), count=3), sweep=True),
        row("`MaskedSum`, width 64, Adam", seeds(split(masked, optimizer=adam), count=3)),
        row("`MaskedSum`, width 64, one epoch", seeds(split(masked), epochs=1, count=3), sweep=True),
        row("`MaskedSum`, width 16", seeds(split(masked, width=16), count=3)),
        row("`MaskedSum`, width 8", seeds(split(masked, width=8), count=3)),
        row("`LocalGaussian`, noise of 1 (about one deviation)", seeds(split(partial(noisy, 1.0)), count=3), clear),
        row("`LocalGaussian`, noise of 3", seeds(split(partial(noisy, 3.0))), clear),
        row("`MaskedSum`, width 64, columns of -1, 0 and 1", seeds(split(masked), FewValues, count=3)),
        row("vFedSec (`layout: segments`), width 64", seeds(split(partial(masked, layout="segments"), active=0))),
        row("FedVS (`LagrangeCoded`, T = 1), width 64", seeds(coded), "the same: codes hide no mean"),
        row("`LagrangeShared` (T = 1), width 64", seeds(shared), "the same: codes hide no mean"),
        row("`PoissonBinomial` (b = 16, β = .25), width 64", seeds(split(partial(binomial, 16))), clear),
        row("`PoissonBinomial` (b = 1024, β = .25), width 64", seeds(split(partial(binomial, 1024))), clear),
        row("`AsyncVFL`, width 64", seeds(events), clear),
        row("`AsyncVFL(noise=1.0)`, width 64", seeds(partial(events, noise=1.0)), clear),
        row(
            "`CascadeVFL(variant=single)`, the active party, others' columns",
            seeds(partial(cascade, aggregator=Concat(), variant="single"), **alone),
            clear,
        ),
        row(
            "`CascadeVFL(MaskedSum, variant=single)`, the active party, others' columns",
            seeds(partial(cascade, aggregator=masked(), variant="single"), **alone),
        ),
        row(
            "`CascadeVFL`, one of three active parties, others' columns",
            seeds(partial(cascade, aggregator=Concat()), **alone),
            clear,
        ),
        row(
            "`CascadeVFL(variant=single)`, the active party and the collaborator, others' columns",
            seeds(partial(cascade, aggregator=Concat(), variant="single"), attacker="server+party:0"),
            clear,
        ),
        row(
            "`CascadeVFL`, one of three active parties and the collaborator, others' columns",
            seeds(partial(cascade, aggregator=Concat()), attacker="server+party:0"),
            clear,
        ),
        row(
            "`CascadeVFL`, two of three active parties, the third's columns",
            seeds(partial(cascade, aggregator=Concat()), attacker="party:0+party:1"),
            clear,
        ),
        row(
            "`CascadeVFL`, two of three active parties and the collaborator, the third's columns",
            seeds(partial(cascade, aggregator=Concat()), attacker="server+party:0+party:1"),
            clear,
        ),
    ]
