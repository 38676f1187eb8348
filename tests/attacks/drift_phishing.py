"""Columns of Phishing Websites behind a masked sum, by drift and by two attacks that do without it.

The rows need the published file; see ``Phishing``. Its columns have the values -1, 0 and 1.
"""

import warnings
from functools import partial

import torch
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import FastICA
from torch import Tensor

from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.audit.attacks.drift.heard import drifted
from lightning_vfl.audit.attacks.drift.levels import few_valued
from lightning_vfl.datamodules import ContiguousColumns, Phishing
from tests.attacks import drift
from tests.attacks.row import Row


class Sites(drift.Columns):
    """1,750 records of Phishing Websites, drawn by a seed, 1,050 of them to train on."""

    def drawn(self) -> tuple[Tensor, Tensor]:
        table = Phishing(ContiguousColumns(3)).read()
        chosen = torch.randperm(len(table.labels), generator=torch.Generator().manual_seed(self.draw))
        chosen = chosen[: self.records_in_all]
        return table.features[chosen], table.labels[chosen]


def separated(uploads: Tensor, truth: Tensor, seed: int) -> tuple[float, int]:
    """Blind source separation of uploads (n, W).

    Returns:
        The largest |correlation| of a component with each column, in the mean over columns; and the number of columns
        for which it is above .95.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged
        model = FastICA(truth.shape[1], whiten="unit-variance", random_state=seed, max_iter=1000)
        components = torch.from_numpy(model.fit_transform(uploads.numpy()))
    both = torch.corrcoef(torch.cat([components, truth], 1).T)[: components.shape[1], components.shape[1] :]
    best = both.abs().amax(0)
    return float(best.mean()), int((best > 0.95).sum())


def named(levels: Tensor, truth: Tensor, public: Tensor) -> tuple[int, float]:
    """Names and values for columns read up to names (n, c), from the frequencies in public records of the same kind.

    Returns:
        The number of columns that are right in every cell under these names, and the share of cells that are right.
    """
    readings = [[_reading(column, other) for other in public.T] for column in levels.long().T]
    costs = [[cost for cost, _ in of_column] for of_column in readings]
    right = torch.zeros_like(truth, dtype=torch.bool)
    for place, name in zip(*linear_sum_assignment(costs), strict=True):
        right[:, name] = readings[place][name][1] == truth[:, name]
    return int(right.all(0).sum()), float(right.double().mean())


def _reading(column: Tensor, other: Tensor) -> tuple[float, Tensor]:
    """How far the frequencies of a public column are from those of a column, and its values for the levels (n,)."""
    values, counts = torch.unique(other, return_counts=True)
    frequencies = torch.bincount(column) / len(column)
    if len(values) != len(frequencies):
        return 9.0, torch.full((len(column),), float("nan"), dtype=other.dtype)
    both = [(values, counts / len(other)), (values.flip(0), counts.flip(0) / len(other))]
    order, usual = min(both, key=lambda one: float((one[1] - frequencies).abs().sum()))
    return float((usual - frequencies).abs().sum()), order[column]


def rows() -> list[Row]:
    """Drift, what public frequencies make of it, and blind source separation of the first uploads."""
    making = drift.split(partial(MaskedSum, clip=64.0))
    made = [drift.row("Phishing, `MaskedSum`, width 64", drift.seeds(making, Sites, count=3))]
    results, separations, usual = [], [], []
    for seed in range(3):
        case, _ = drift.trained(making, Sites, seed=seed)
        ids, columns, *_ = drifted(case.seen())
        truth = case.truth.everything()[ids]
        data = Sites()
        data.draw = 7 + seed
        values = data.drawn()[0].double()  # the bottoms are given standardised ones
        private, public = values[: drift.RECORDS][ids], values[drift.RECORDS :]
        results.append(named(few_valued(columns), private, public))
        usual.append(float((private == public.mode(0).values).double().mean()))
        uploads = drift.all_uploads(case.seen(), ids, visits=1)
        separations.append([separated(one, truth, seed) for one in (uploads, columns)])
    count, cells = ([one[i] for one in results] for i in (0, 1))
    made.append(
        Row(
            "columns from drift: Phishing, names and values by the frequencies in 700 public records",
            "the server: uploads, the gradients that it sent, frequencies of each column; no known record",
            f"{drift.spread(count, '.0f')} of 30 columns right with name and values, "
            f"{drift.spread(cells, '.0%')} of all cells; 3 seeds",
            "the same: masks hide no sum",
            f"{drift.spread(usual, '.0%')} of cells, by the most frequent value of each column",
        )
    )
    for place, name in enumerate(("the first uploads", "the columns from drift")):
        best = drift.spread([one[place][0] for one in separations])
        clear = drift.spread([one[place][1] for one in separations], ".0f")
        made.append(
            Row(
                f"blind source separation (FastICA) of {name}: Phishing, `MaskedSum`, width 64",
                "the server: uploads; no known record",
                f"{clear} of 30 columns with a component that correlates above .95; best correlation of a column on "
                f"average {best}; 3 seeds",
                "the same: masks hide no sum",
                "0",
            )
        )
    return made
