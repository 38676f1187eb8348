"""All measures of what columns up to rotation tell of the true ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_vfl.audit.attacks.drift.levels import few_valued
from lightning_vfl.audit.attacks.drift.measure import EQUAL, affine_guesses, exact_columns, nearest_right

SAME = 1e-3  # of the mean distance, under which two records are called duplicates
CLOSE = 0.05  # a cell is recovered if its error is at most this share of its column's deviation


@dataclass(frozen=True)
class Told:
    """What guesses (n, d') tell of the true columns (n, d).

    Args:
        correlation: of the inner products of any two records with those of the truth.
        neighbours: the share of records whose nearest record is right.
        affine: R² of the best affine map to the truth.
        with_known: by k, R² of all other records with the affine map that k known records give.
        duplicates: the share of pairs of equal records that are found, and the share of found pairs that are right;
            NaN where there are none.
        exact: the number of columns with two to five values that are read without an error.
        few: the number of such columns.
        cells: the share of cells within 5 % of their column's deviation under the best affine map.
    """

    correlation: float
    neighbours: float
    affine: float
    with_known: dict[int, float]
    duplicates: tuple[float, float]
    exact: int
    few: int
    cells: float


def told(guesses: Tensor, truth: Tensor, known: tuple[int, ...] = ()) -> Told:
    """All measures of guesses (n, d'); the known records are the first k."""
    guesses = guesses - guesses.mean(0)
    truth = truth - truth.mean(0)
    first, second = torch.triu_indices(len(truth), len(truth), 1)  # all pairs of records
    products = torch.stack([(columns @ columns.T)[first, second] for columns in (guesses, truth)])
    distances = torch.stack([torch.cdist(columns, columns)[first, second] for columns in (guesses, truth)])

    guessed_equal, equal = distances < SAME * distances.mean(1, keepdim=True)
    both = float((guessed_equal & equal).sum())
    duplicates_found = both / float(equal.sum()) if equal.any() else float("nan")
    duplicates_right = both / float(guessed_equal.sum()) if guessed_equal.any() else float("nan")

    inputs = torch.cat([guesses, torch.ones(len(guesses), 1, dtype=guesses.dtype)], 1)
    affine_map = torch.linalg.pinv(inputs, rtol=1e-9) @ truth
    error = (inputs @ affine_map - truth).abs()
    deviation = truth.std(0)
    cells = (error <= CLOSE * deviation)[:, deviation > EQUAL]
    exact, few = exact_columns(few_valued(guesses), truth)
    return Told(
        correlation=float(torch.corrcoef(products)[0, 1]),
        neighbours=float(nearest_right(guesses, truth).double().mean()),
        affine=1 - float(error.square().sum() / truth.square().sum()),
        with_known={k: explained_with(guesses, truth, k) for k in known},
        duplicates=(duplicates_found, duplicates_right),
        exact=exact,
        few=few,
        cells=float(cells.double().mean()),
    )


def explained_with(inputs: Tensor, truth: Tensor, known: int) -> float:
    """R² of all other records after a regression from the first ``known`` records (at least 2)."""
    guesses = affine_guesses(inputs, truth[:known], torch.arange(known))[known:]
    rest = truth[known:]
    return 1 - float((guesses - rest).square().sum() / (rest - rest.mean(0)).square().sum())
