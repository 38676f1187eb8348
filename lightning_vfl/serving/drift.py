"""How far the numbers of production are from those of training."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST = 100  # records before there is a figure


class Drift:
    """The standardised distance of a mean of the latest records from that of training, over all columns.

    It is the root of the mean, over columns, of ((mean now - mean in training) / standard deviation in training)². The
    mean now gives a record the weight 1 - 1 / ``records`` for every record that follows. Without drift, the distance is
    about √(1 / (2 ``records``)).

    Args:
        training: (N, D) the numbers of training.
        records: over about how many records the mean is taken.
    """

    def __init__(self, training: "NDArray[np.floating]", records: int = 1000) -> None:
        numbers = training.reshape(len(training), -1).astype(np.float64)
        self._mean: Floats = numbers.mean(0)
        spread = numbers.std(0)
        self._spread: Floats = np.where(spread > 0, spread, 1.0)
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


def training_predictions(path: Path) -> "Floats":
    """(N, C) the probabilities or values in a file that ``lightning-vfl predict`` has written.

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
    return numbers.to_numpy(np.float64)
