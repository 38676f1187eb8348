"""The curves of several seeds as a mean with a band."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]

MOST_POINTS = 500  # more points are not visible in a column of a paper, and make the SVG large


class Band(NamedTuple):
    """Mean and standard deviation (n - 1) of the seeds' values at each x; the deviation is 0 for one seed.

    ``together``: all seeds were measured at the same points, so that the points may be joined by straight lines.
    """

    x: Values
    mean: Values
    sd: Values
    seeds: int
    together: bool


def held(x: ArrayLike, y: ArrayLike, at: ArrayLike) -> Values:
    """The curve's last value at or before each point; NaN before its start.

    Examples:
        >>> held([1.0, 2.0], [10.0, 20.0], [0.5, 1.0, 1.9, 5.0]).tolist()
        [nan, 10.0, 10.0, 20.0]
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    position = np.searchsorted(x, np.asarray(at, dtype=np.float64), side="right") - 1
    return np.where(position >= 0, y[position], np.nan)


def band(curves: Sequence[tuple[ArrayLike, ArrayLike]]) -> Band:
    """One band from the (x, y) of each seed, x ascending.

    The band goes from the point where all seeds have started to the point where the last seed ends. A seed that has
    ended counts with its last value, so that every mean is over all seeds. In between, the band has every x at which a
    seed was measured.
    """
    xs = [np.asarray(x, dtype=np.float64) for x, _ in curves]
    start, end = max(x[0] for x in xs), max(x[-1] for x in xs)
    every = np.unique(np.concatenate(xs))
    grid = every[(every >= start) & (every <= end)]
    if len(grid) > MOST_POINTS:
        grid = np.linspace(start, end, MOST_POINTS)
    values = np.stack([held(x, y, grid) for x, y in curves])
    deviation = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(grid))
    together = len(grid) == max(int(((x >= start) & (x <= end)).sum()) for x in xs)
    return Band(grid, values.mean(axis=0), deviation, len(curves), together)
