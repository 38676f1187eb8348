"""Attacks on the reported ε of a record: tell from what the server sees which of two neighbouring data sets was used.

The two data sets differ in one record's value at one party. The attacker knows everything else, the weights and the
scale of the noise included, but not the noise. It computes a number from what it sees, and says "the second data set"
above a threshold. With probabilities p and q of saying so on the second and on the first data set, (ε, δ)-privacy means
p ≤ e^ε q + δ. So repeated trials give a lower bound on ε.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import log
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Trainer
from scipy.stats import beta
from torch import Tensor, nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, LocalGaussian
from lightning_vfl.datamodules import (
    ContiguousColumns,
    Given,
    Layout,
    Normaliser,
    Split,
    Standardise,
    VerticalDataModule,
)
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.datamodules.records.records import Request
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude
from lightning_vfl.privacy import Budget, Noise, Sigma
from lightning_vfl.schedules.batches import Shuffled
from lightning_vfl.types import Roll, RoundNames, Stage, VerticalBatch
from tests.attacks.row import Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

DELTA = 1e-5
RECORDS, TARGET, WIDTH = 400, 0, 2
FAR = 1000.0  # what one record's value can be where nothing bounds it


class TwoWorlds(VerticalDataModule):
    """Records of two parties with one column each; the target's value at party 0 is all that differs.

    Args:
        value: the target's feature at party 0.
        normaliser: how features are scaled.
        batch_size: rows of a batch.
        others: the other records' features, every second pair of them negative at party 0.
        seed: names the order of the records.
    """

    known_bounds = (-1.0, 1.0)

    def __init__(
        self, value: float, normaliser: Normaliser, batch_size: int = RECORDS, others: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__(None, normaliser, batch_size, seed)
        self.value, self.others = value, others

    @property
    def layout(self) -> Layout:
        return Layout((2,))

    @property
    def num_classes(self) -> int:
        return 2

    def default_partitioner(self) -> ContiguousColumns:
        return ContiguousColumns(2)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        x = torch.full((RECORDS, 2), self.others)
        x[torch.arange(RECORDS) % 4 > 1, 0] *= -1  # as many with either label
        x[TARGET, 0] = self.value
        return {name: Split(x.clone(), torch.arange(RECORDS) % 2, np.arange(RECORDS)) for name in names}

    def everything(self) -> VerticalBatch:
        """All training records as one batch."""
        self.setup("fit")
        return self.records("train")[Request(torch.arange(RECORDS), None, None)]


class OneWeight(nn.Module):
    """A bottom with one weight w, x to (w x, -w x), and possibly a norm behind it; the same in every trial."""

    def __init__(self, shape: tuple[int, ...], width: int, norm: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.tensor(1.0)), norm()

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1) to (B, 2)."""
        out: Tensor = self.norm(self.weight * x * torch.tensor([1.0, -1.0]))
        return out


class FirstNumbers(nn.Module):
    """A server's top without anything to train: the sum of each party's first number."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, z: Tensor) -> Tensor:
        """(B, 4) to (B, 1)."""
        return z[:, ::WIDTH].sum(1, keepdim=True)


def protocol(noise: Noise, norm: Callable[[], nn.Module] = nn.Identity, rate: float = 0.0, seed: int = 0) -> SplitVFL:
    """Two parties that send noisy embeddings, clipped to norm 1, which the server sees one by one.

    The draws are seeded, so that a trial gives the same numbers in every run. The attacker does not use the seed.
    """
    return SplitVFL(
        LocalGaussian(noise, clip=1.0, inner=Concat(), draws="seeded"),
        bottom=partial(OneWeight, norm=norm),
        top=FirstNumbers,
        width=WIDTH,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
        seed=seed,
    )


def fitted(module: SplitVFL, data: VerticalDataModule) -> SplitVFL:
    """The module after one epoch of a Lightning trainer."""
    with TemporaryDirectory() as folder:  # the ledger is written there
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            default_root_dir=folder,
        )
        trainer.fit(module, datamodule=data)
    return module


def refusal(module: SplitVFL, data: VerticalDataModule) -> str:
    """The error that ends a fit before training; "": it trains."""
    try:
        fitted(module, data)
    except ConfigurationError as error:
        return str(error)
    return ""


def reported(module: SplitVFL, data: VerticalDataModule, unit: str = "party-record") -> float:
    """ε that the accountant of the module reports after one epoch."""
    accountant = fitted(module, data).privacy.accountant
    if accountant is None:
        raise RuntimeError("the module does not account for privacy")
    return accountant.epsilon(DELTA, unit)


# ---- a lower bound on ε from trials


def lower_bound(first: "Numbers", second: "Numbers") -> float:
    """A lower bound on ε at ``DELTA``, right with probability 0.95, from the attacker's number on the two data sets.

    One half of the trials chooses a threshold in each of the two directions, the other half measures both rates.

    References:
        Clopper, Pearson, "The Use of Confidence or Fiducial Limits", Biometrika 26, 1934.
    """
    bounds = [0.0]
    for rare, often in ((first, second), (-second, -first)):
        (choose_rare, rare_left), (choose_often, often_left) = (np.array_split(own, 2) for own in (rare, often))
        places = np.quantile(np.concatenate([choose_rare, choose_often]), np.linspace(0.02, 0.98, 49))
        best = max(places, key=lambda place: _bound_at(place, choose_rare, choose_often))
        bounds.append(_bound_at(best, rare_left, often_left))
    return max(bounds)


def _bound_at(threshold: float, rare: "Numbers", often: "Numbers", risk: float = 0.05 / 4) -> float:
    """log((p - δ) / q), p from below and q from above; each of four such bounds is wrong with a quarter of the risk."""
    hits, false = int((often > threshold).sum()), int((rare > threshold).sum())
    p = beta.ppf(risk, hits, len(often) - hits + 1) if hits else 0.0
    q = beta.ppf(1 - risk, false + 1, len(rare) - false) if false < len(rare) else 1.0
    return log((p - DELTA) / q) if p > DELTA else 0.0


# ---- the attacks


class Found(NamedTuple):
    """Reported ε of a record, lower bounds of the same attack without and with the protection, and ε of the party."""

    reported: float
    before: float
    now: float
    party: float


def one_round(
    trials: int, noise: Noise, values: tuple[float, float], make: Callable[[], Normaliser], norm: Any
) -> float:
    """The bound from the uploads of one round with all records, whose weights have not been trained."""
    seen, means = [], []
    for value in values:
        data, module = TwoWorlds(value, make()), protocol(noise, norm)
        batch = data.everything()
        module.build_for(data)
        module.train()
        means.append(_clipped(module.bottoms(batch.features)[0].detach()))
        seen.append(torch.stack([_uploads(module, batch, trial) for trial in range(trials)]))
    along = means[1] - means[0]  # the likelihood ratio grows with the view in this direction
    first, second = ((view.double() * along).sum((1, 2)).numpy() for view in seen)
    return lower_bound(first, second)


def _uploads(module: SplitVFL, batch: VerticalBatch, trial: int) -> Tensor:
    """(N, 2) what party 0 sends of all records, in a round of its own."""
    roll = Roll.everyone(2)
    brought = module.contribute(module.bottoms, batch, roll)
    value, _ = module.exchange(batch, brought, RoundNames(0, Stage.FIT, trial), roll, Exclude())
    return value[:, :WIDTH].detach()


def _clipped(h: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(h.double(), dim=1, keepdim=True)
    return h.double() / norm.clamp(min=1.0)


def normaliser(trials: int, sigma: float = 4.6) -> Found:
    """Through a normaliser that is fitted to the training records: one far value moves all others."""
    public = partial(Standardise, public=True)  # the declaration lets the old way run
    before = one_round(trials, Sigma(sigma), (0.0, FAR), public, nn.Identity)
    now = one_round(trials, Sigma(sigma), (-1.0, 1.0), Given, nn.Identity)
    figures = (reported(protocol(Sigma(sigma)), TwoWorlds(0.0, Given()), unit) for unit in ("party-record", "party"))
    record, party = figures
    return Found(record, before, now, party)


def batch_norm(trials: int, sigma: float = 4.6) -> Found:
    """Through a batch norm in the bottom, which normalises every record by all of its batch."""
    before = one_round(trials, Sigma(sigma), (0.0, FAR), Given, partial(nn.BatchNorm1d, WIDTH))
    group = partial(nn.GroupNorm, 1, WIDTH)
    now = one_round(trials, Sigma(sigma), (-1.0, 1.0), Given, group)
    figures = (
        reported(protocol(Sigma(sigma), group), TwoWorlds(0.0, Given()), unit) for unit in ("party-record", "party")
    )
    record, party = figures
    return Found(record, before, now, party)


def weights(trials: int, sigma: float = 7.75, rate: float = 20000.0, rows: int = 200) -> Found:
    """Through the weights: the record's gradient moves the bottom, and with it the later uploads of all other records.

    Each trial is an epoch of training. The server knows the gradients that it has sent, so it knows the weights that
    either data set would have led to, and compares how well they explain the uploads.
    """
    seed = next(seed for seed in range(1000) if TARGET in _order(seed, rows)[0])
    worlds = [TwoWorlds(value, Given(), rows, others=0.02, seed=seed) for value in (-0.6, 0.6)]
    batches = [data.everything() for data in worlds]
    module = protocol(Sigma(sigma), rate=rate)
    module.build_for(worlds[0])
    numbers: list[list[float]] = [[], []]
    for trial in range(trials):
        for world, batch in enumerate(batches):
            views = _epoch(module, batch, _order(seed, rows), rate, trial)
            explained = [_log_likelihood(views, own, _order(seed, rows), rate, sigma) for own in batches]
            numbers[world].append(explained[1] - explained[0])
    record, party = (reported(protocol(Sigma(sigma), rate=rate), worlds[0], unit) for unit in ("party-record", "party"))
    bound = lower_bound(np.array(numbers[0]), np.array(numbers[1]))
    return Found(record, bound, bound, party)


def _order(seed: int, rows: int) -> list[list[int]]:
    """The records of each round of the first epoch, which the server knows."""
    return [ids.tolist() for ids, _ in Shuffled(RECORDS, rows, seed, False).epoch(0)]


def _epoch(module: SplitVFL, batch: VerticalBatch, order: list[list[int]], rate: float, trial: int) -> list[Tensor]:
    """What the server sees in an epoch from the first weights on: rounds as the protocol runs them, and SGD."""
    module.train()
    for parameter in module.bottoms.parameters():
        nn.init.ones_(parameter)
    views: list[Tensor] = []
    hook = module.top.register_forward_pre_hook(lambda _, given: views.append(given[0].detach().clone()))
    optimizer = torch.optim.SGD(module.bottoms.parameters(), lr=rate)
    for number, ids in enumerate(order):
        names = RoundNames(trial, Stage.FIT, number)
        output = module.run_round(_rows(batch, ids), names, Roll.everyone(2), module.missing)[0]
        optimizer.zero_grad()
        module.objective.loss(output, _labels(batch)[ids]).backward()
        optimizer.step()
    hook.remove()
    return views


def _rows(batch: VerticalBatch, ids: list[int]) -> VerticalBatch:
    return VerticalBatch(tuple(x[ids] for x in batch.features), _labels(batch)[ids], batch.record_ids[ids])


def _labels(batch: VerticalBatch) -> Tensor:
    if batch.labels is None:
        raise ConfigurationError("the attack needs labels")
    return batch.labels


def _log_likelihood(
    views: list[Tensor], batch: VerticalBatch, order: list[list[int]], rate: float, sigma: float
) -> float:
    """Of what the server has seen of party 0, had that held this batch; up to a constant."""
    weight, total, signs = 1.0, 0.0, np.array([1.0, -1.0])
    every, labels = batch.features[0][:, 0].double().numpy(), _labels(batch).double().numpy()
    for ids, view in zip(order, views, strict=True):
        x, z = every[ids], view.double().numpy()
        h = weight * x[:, None] * signs
        norm = np.linalg.norm(h, axis=1)
        total -= float(((z[:, :WIDTH] - h / np.maximum(norm, 1.0)[:, None]) ** 2).sum()) / (2 * sigma**2)
        sent = (1 / (1 + np.exp(-z[:, 0] - z[:, WIDTH])) - labels[ids]) / len(ids)  # of the mean loss, first numbers
        weight -= rate * float((sent * x * (norm <= 1)).sum())  # a clipped embedding only loses length: no gradient
    return total


def calls(trials: int, times: int = 400) -> Found:
    """Through ``module(features)`` on a training record: many answers average the noise away. Each row is a trial."""
    module = protocol(Budget(5.0, DELTA))
    module.build_for(TwoWorlds(0.0, Given()))
    module.eval()
    sums = []
    for value in (-1.0, 1.0):
        batch = VerticalBatch((torch.full((trials, 1), value), torch.ones(trials, 1)), None, torch.arange(trials))
        answers = [
            module.output(batch, RoundNames(0, Stage.PREDICT, call)) for call in range(times)
        ]  # what forward did
        sums.append(torch.stack(answers).mean(0).flatten().detach().double().numpy())
    figures = (
        reported(protocol(Budget(5.0, DELTA)), TwoWorlds(0.0, Given()), unit) for unit in ("party-record", "party")
    )
    record, party = figures
    return Found(record, lower_bound(sums[0], sums[1]), 0.0, party)


def rows() -> list[Row]:
    """The rows of the table."""
    sees = f"all noisy uploads of one epoch, {RECORDS} records"
    scaling, norm, moved, called = normaliser(2000), batch_norm(2000), weights(2000), calls(4000)

    def before(found: Found) -> str:
        return f"ε ≥ {found.before:.2f}, reported {found.reported:.3g}"

    def instead(found: Found, of: str) -> str:
        return f"with {of} ε ≥ {found.now:.2f}, reported {found.reported:.3g}"

    return [
        Row(
            "tell a record's value through a normaliser fitted to it",
            sees,
            before(scaling),
            f"refused: fitted normaliser; {instead(scaling, '`Given`')}",
            "ε ≥ 0",
        ),
        Row(
            "tell a record's value through a batch norm in the bottom",
            sees,
            before(norm),
            f"refused: batch statistics in a bottom; {instead(norm, 'a group norm')}",
            "ε ≥ 0",
        ),
        Row(
            "tell a record's value through the weights that it has moved",
            f"{sees}, and the gradients sent",
            before(moved),
            f"ε ≥ {moved.now:.2f}, reported first {moved.party:.3g} of a party; that of a record names its assumption",
            "ε ≥ 0",
        ),
        Row(
            "average 400 answers of `module(features)` on a training record",
            "predictions of protected evaluation",
            before(called),
            "refused: `module(features)` with `evaluate: protocol`",
            "ε ≥ 0",
        ),
    ]
