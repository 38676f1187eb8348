"""Columns with few values, read from columns up to rotation."""

import torch
from torch import Tensor

MOST_LEVELS = 5
STEADY = 0.03  # the spread around a level, in distances of neighbouring levels
ALIKE = 0.99  # cosine from which two directions are one
NEAR = 12  # nearest records whose difference is tried for each record


def few_valued(columns: Tensor) -> Tensor:
    """(n, c) the columns with few values that are found, as numbers of levels from 0 on; c may be 0.

    The difference of two records that differ in one column alone points along this column's axis. Along an axis, the
    records lie on few, equally clear levels.
    """
    n = len(columns)
    distances = torch.cdist(columns, columns)
    scale = float(distances.median())
    distances[distances < 1e-3 * scale] = float("inf")  # duplicates
    near = distances.topk(min(NEAR, n - 1), largest=False).indices
    differences = columns[near] - columns[:, None]
    directions = torch.nn.functional.normalize(differences.flatten(0, 1), dim=1)
    directions = directions[distances.gather(1, near).flatten().isfinite()]
    axes: list[Tensor] = []
    found: list[Tensor] = []
    for direction in directions:
        if axes and float((torch.stack(axes) @ direction).abs().max()) > ALIKE:
            continue
        axes.append(direction)
        levels = _levels(columns @ direction)
        if levels is not None:
            found.append(levels)
    return torch.stack(found, 1).double() if found else torch.empty(n, 0, dtype=torch.float64)


def _levels(values: Tensor) -> Tensor | None:
    """(n,) the level of each value; None: the values do not lie on few levels."""
    order = values.argsort()
    gaps = values[order].diff()
    span = float(values.max() - values.min())
    wide = gaps > span / (4 * MOST_LEVELS)
    count = int(wide.sum()) + 1
    if not 2 <= count <= MOST_LEVELS:
        return None
    level = torch.empty(len(values), dtype=torch.int64)
    level[order] = torch.cat([torch.zeros(1, dtype=torch.int64), wide.cumsum(0)])
    middle = torch.zeros(count, dtype=values.dtype).index_add_(0, level, values) / level.bincount()
    spread = float((values - middle[level]).abs().max())
    return level if spread < STEADY * 10 * float(middle.diff().abs().min()) else None
