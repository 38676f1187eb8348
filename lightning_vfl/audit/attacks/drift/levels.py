"""Columns with few values, read from columns up to rotation."""

import numpy as np
import torch
from torch import Tensor

MOST_LEVELS = 5
MOST_VECTORS = 1000  # records whose differences are formed, and vectors that are kept
NEAR = 12  # nearest ones whose difference is formed, of each record and of each vector
TRIED = 300  # shortest vectors that are tried as axes
ROUNDS = 10
STEADY = 0.1  # what noise may add to a step between levels, and the spread of a level, as a share of this step
SAME = 0.02  # of the median distance of records, under which two vectors are one


def few_valued(columns: Tensor) -> Tensor:
    """(n, c) the columns with few values that are found, as numbers of levels from 0 on; c is at most d.

    The difference of two records that differ in one column alone is a step along this column's axis. Where no two
    records do, sums and differences of such vectors often are: all of them lie on one grid, whose shortest vectors are
    the axes. An axis is a vector along which the records lie on few levels, the nearest of them as far apart as the
    vector is long; a shorter step would mean that the vector is a sum of others. What is found is projected out, so
    that records need not agree in columns that are known.

    Not guaranteed: that all are found. Columns with many values beside them are in every difference.
    """
    if len(columns) < 2:
        return columns.new_empty(len(columns), 0)
    points = columns[:MOST_VECTORS]
    same = SAME * float(torch.cdist(points, points).median())
    vectors = _shortest(_differences(points, same), same)
    few_valued_columns: list[Tensor] = []
    for number in range(ROUNDS):
        if number:
            sums = _differences(torch.cat([vectors, -vectors]), same)
            vectors = _shortest(torch.cat([vectors, sums, _differences(points, same)]), same)
        while (axis := _first_axis(columns, vectors[:TRIED])) is not None:
            direction, levels = axis
            few_valued_columns.append(levels)
            points = points - torch.outer(points @ direction, direction)
            vectors = _shortest(vectors - torch.outer(vectors @ direction, direction), same)
    if not few_valued_columns:
        return columns.new_empty(len(columns), 0)
    return torch.stack(few_valued_columns, 1).double()


def _differences(points: Tensor, same: float) -> Tensor:
    """The differences of each of the distinct points from those that are nearest to it."""
    points = _distinct(points, same)
    near = torch.cdist(points, points).topk(min(NEAR, len(points)), largest=False).indices
    return (points[near] - points[:, None]).flatten(0, 1)


def _shortest(vectors: Tensor, same: float) -> Tensor:
    """The shortest of the distinct vectors that are not zero, each with one of its two signs, from the shortest on."""
    vectors = vectors[vectors.norm(dim=1) > same]
    side = vectors @ torch.arange(1, vectors.shape[1] + 1).to(vectors).sqrt()
    vectors = _distinct(vectors * torch.where(side < 0, -1.0, 1.0).to(vectors)[:, None], same)
    return vectors[vectors.norm(dim=1).argsort()][:MOST_VECTORS]


def _distinct(points: Tensor, same: float) -> Tensor:
    """One of the points in each cell of a grid; two that are alike can be in neighbouring cells."""
    factors = torch.randint(2**62, (points.shape[1],), generator=torch.Generator().manual_seed(0))
    cells = (points / same).round().long() @ factors  # one number for each cell; it wraps around
    _, first = np.unique(cells.numpy(), return_index=True)
    return points[torch.from_numpy(first)]


def _may_be_axes(some: Tensor, vectors: Tensor) -> Tensor:
    """Which vectors some of the records do not rule out as axes, so that few need all records.

    Along an axis, all records lie on at most ``MOST_LEVELS`` levels, which together spread over less than half a step.
    """
    lengths = vectors.norm(dim=1)
    gaps = (some @ (vectors / lengths[:, None]).T).sort(0).values.diff(dim=0)
    half_a_step = STEADY * MOST_LEVELS * lengths
    wide = gaps >= half_a_step
    spread = torch.where(wide, 0.0, gaps).sum(0)
    possible: Tensor = (wide.sum(0) < MOST_LEVELS) & (spread < half_a_step)
    return possible


def _first_axis(columns: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor] | None:
    """The direction (d,) of the first vector that is an axis, and the level (n,) of each record; None: none is."""
    if len(columns) > MOST_VECTORS:
        vectors = vectors[_may_be_axes(columns[:MOST_VECTORS], vectors)]
    if not len(vectors):
        return None
    lengths = vectors.norm(dim=1)
    positions, order = (columns @ (vectors / lengths[:, None]).T).sort(0)  # along each vector
    gaps = positions.diff(dim=0)
    between_levels = gaps > STEADY * lengths
    levels_above = between_levels.sum(0)
    shortest_step = torch.where(between_levels, gaps, float("inf")).amin(0)
    spread_in_levels = torch.where(between_levels, 0.0, gaps).sum(0)

    is_axis = (levels_above >= 1) & (levels_above < MOST_LEVELS)
    is_axis &= shortest_step > (1 - STEADY) * lengths
    is_axis &= spread_in_levels < STEADY * lengths * (levels_above + 1)
    if not bool(is_axis.any()):
        return None
    first = int(is_axis.int().argmax())
    levels = torch.zeros(len(columns), dtype=torch.int64)
    levels[order[1:, first]] = between_levels[:, first].cumsum(0)
    return vectors[first] / lengths[first], levels
