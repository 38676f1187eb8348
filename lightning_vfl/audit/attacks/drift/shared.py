"""Columns that two sums share, or that the attacker has itself, taken out of columns up to rotation."""

import torch
from torch import Tensor

EMPTY = 1e-3  # of the largest singular value, under which a direction has no columns


def without(columns: Tensor, known: Tensor) -> Tensor:
    """(n, d') ``columns`` less those among them that ``known`` (n, k) is also made of.

    Both are linear in columns of the same records. Where a column is in both, some direction of the one equals some
    direction of the other for every record. ``columns`` are up to a rotation, so that the columns that are left are
    orthogonal to these directions. Noise leaves no such direction, and then nothing is taken out.
    """
    one, other = _basis(columns), _basis(known)
    both = torch.cat([one / one.norm(), other / other.norm()], 1)
    _, sizes, directions = torch.linalg.svd(both, full_matrices=False)
    common = directions[sizes < EMPTY * sizes[0], : one.shape[1]]
    shared = torch.linalg.svd(common, full_matrices=False).Vh
    result: Tensor = one - one @ shared.T @ shared
    return result


def _basis(columns: Tensor) -> Tensor:
    """(n, r) the centred columns in their r directions that are not empty."""
    columns = columns - columns.mean(0)
    _, sizes, directions = torch.linalg.svd(columns, full_matrices=False)
    basis: Tensor = columns @ directions[sizes > EMPTY * sizes[0]].T
    return basis
