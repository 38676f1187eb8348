"""How well columns up to rotation tell the true ones."""

import torch
from torch import Tensor

from lightning_vfl.audit.attacks.drift.levels import MOST_LEVELS
from lightning_vfl.audit.attacks.features import ridge_guesses

EQUAL = 1e-9  # relative, of distances that count as ties
EMPTY = 1e-3  # of the largest singular value, under which a direction has no columns
PARTS = 5  # of the known records, to choose a regression
MOST_DISTANCES = 10_000_000  # that are in memory at once


def affine_guesses(columns: Tensor, targets: Tensor, train: Tensor) -> Tensor:
    """(n, W) guesses by the affine map that the known rows ``train`` (k,) give.

    A rotation without noise keeps the place of a record along the differences of the known ones, and its place across
    them is taken to be that of their mean: least squares of the smallest norm. Noise harms a ridge regression less. The
    one that guesses the known rows of five parts better from the other parts is used.
    """
    ways = (_least_squares, ridge_guesses)
    count = min(PARTS, len(train))
    parts = torch.arange(len(train)) % count
    errors = [0.0, 0.0]
    for part in range(count) if count > 1 else ():
        for place, way in enumerate(ways):
            guesses = way(columns, targets[parts != part], train[parts != part])[train[parts == part]]
            errors[place] += float((guesses - targets[parts == part]).square().sum())
    best = ways[0] if errors[0] <= errors[1] else ways[1]
    return best(columns, targets, train)


def _least_squares(columns: Tensor, targets: Tensor, train: Tensor) -> Tensor:
    """Least squares of the smallest norm, in the directions that are not empty, from the mean of the known rows on."""
    inputs = columns - columns[train].mean(0)
    mean = targets.double().mean(0)
    largest_of_all = float(torch.linalg.matrix_norm(columns - columns.mean(0), 2))
    largest = largest_of_all * (len(train) / len(columns)) ** 0.5
    inverse = torch.linalg.pinv(inputs[train], atol=EMPTY * largest)
    result: Tensor = inputs @ (inverse @ (targets.double() - mean)) + mean
    return result


def nearest_right(guesses: Tensor, truth: Tensor, some: Tensor | None = None) -> Tensor:
    """Whether the nearest of all other records by the guesses is a nearest one in truth.

    Args:
        guesses: (n, d').
        truth: (n, d).
        some: (k,) the records that are asked for; None: all.

    Returns:
        (k,) bool.
    """
    asked = torch.arange(len(truth)) if some is None else some
    at_once = max(1, MOST_DISTANCES // len(truth))
    parts = [_nearest_right(guesses, truth, part) for part in torch.split(asked, at_once)]
    return torch.cat(parts)


def _nearest_right(guesses: Tensor, truth: Tensor, some: Tensor) -> Tensor:
    """``nearest_right`` of a few records."""
    chosen = _distances_to_others(guesses, some).argmin(1)
    distances = _distances_to_others(truth, some)
    least = distances.min(1).values
    return distances.gather(1, chosen[:, None])[:, 0] <= least * (1 + EQUAL) + EQUAL


def _distances_to_others(rows: Tensor, some: Tensor) -> Tensor:
    """(k, n) distances of some rows from all rows, infinite from themselves."""
    distances = torch.cdist(rows[some], rows)
    distances[torch.arange(len(some)), some] = float("inf")
    return distances


def exact_columns(levels: Tensor, truth: Tensor) -> tuple[int, int]:
    """How many true columns of two to five values are told apart by a guess (n, c) exactly, and how many there are."""
    right = of = 0
    for column in truth.T:
        values, level = torch.unique(column, return_inverse=True)
        if not 2 <= len(values) <= MOST_LEVELS:
            continue
        of += 1
        right += any(_same_parts(level, guess.long()) for guess in levels.T)
    return right, of


def _same_parts(one: Tensor, other: Tensor) -> bool:
    pairs = torch.unique(torch.stack([one, other]), dim=1).shape[1]
    return bool(pairs == len(torch.unique(one)) == len(torch.unique(other)))
