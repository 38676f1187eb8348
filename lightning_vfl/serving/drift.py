"""How far the numbers of production are from those of training."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Moments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST = 100  # records before there is a figure


class Drift:
    """How far the mean of the latest records is from that of training, over all columns.

    It is the root mean square of standardised mean differences: the root of the mean, over columns, of ((mean now -
    mean in training) / standard deviation in training)². The mean now gives a record the weight 1 - 1 / ``records`` for
    every record that follows. Without drift, the distance is about √(1 / (2 ``records``)).

    Args:
        training: the moments of the D numbers of each record of training.
        records: over about how many records the mean is taken.
    """

    def __init__(self, training: Moments, records: int = 1000) -> None:
        self._mean: Floats = np.array(training.mean)
        deviation = np.array(training.deviation)
        varies = deviation > 1e-6 * np.abs(self._mean)  # less is rounding of float32
        self._spread: Floats = np.where(varies, deviation, 1.0)
        self._keep = 1 - 1 / records
        self._sum: Floats = np.zeros_like(self._mean)
        self._weight = 0.0
        self._count = 0

    def add(self, values: "NDArray[np.floating]") -> None:
        """Count records: (B, D), or (B,) of one column."""
        numbers = values.reshape(len(values), -1).astype(np.float64)
        weights = self._keep ** np.arange(len(numbers))[::-1]
        fade = self._keep ** len(numbers)
        self._sum = self._sum * fade + weights @ numbers
        self._weight = self._weight * fade + float(weights.sum())
        self._count += len(numbers)

    @property
    def distance(self) -> float | None:
        """The distance; None: fewer than 100 records have come."""
        if self._count < LEAST:
            return None
        moved = (self._sum / self._weight - self._mean) / self._spread
        return float(np.sqrt(np.mean(moved**2)))


def moments_of(numbers: "NDArray[np.floating]") -> Moments:
    """The moments of (N, ...) numbers of N records."""
    rows = numbers.reshape(len(numbers), -1).astype(np.float64)
    return Moments(len(rows), tuple(rows.mean(0).tolist()), tuple(rows.std(0).tolist()))


def training_predictions(path: Path) -> Moments:
    """The moments of the probabilities or values in a file that ``lightning-vfl predict`` has written.

    Raises:
        ConfigurationError: for a file that has none.
    """
    import pandas as pd  # takes 0.5 s

    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--training {path} cannot be read: {error}") from None
    numbers = table[[name for name in map(str, table) if name.split("_")[0] in ("probability", "value")]].dropna()
    if numbers.empty:
        raise ConfigurationError(f"--training {path} has no predictions; give a file of lightning-vfl predict")
    return moments_of(numbers.to_numpy(np.float64))
