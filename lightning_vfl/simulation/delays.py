"""Distributions of message delays, as functions of one uniform draw."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.checks import within
from lightning_vfl.simulation.portable import exp, log, normal_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Draws = NDArray[np.float64]
    Ranks = NDArray[np.int64]

_SMALLEST = 2.0**-54  # replaces a draw of 0, whose normal quantile is -inf


class Delay(ABC):
    """A distribution of delays; slower parties of the same kind have a higher rank.

    ``tests/unit/simulation/test_delays.py`` tests these laws for every subclass. Seconds are finite and 0 or more for
    all draws in [0, 1) and all ranks. Seconds do not decrease with the draw or with the rank. Slowdowns are 1 or more.
    Seconds have the same bits on every processor: use ``lightning_vfl.simulation.portable`` for logarithms and powers.
    """

    @abstractmethod
    def seconds(self, u: "Draws", rank: "Ranks") -> "Draws":
        """The delays (n,) of n parties: their quantiles at ``u``, uniform draws in [0, 1).

        ``rank`` is 0 for ordinary parties, 1, 2, … for slow ones in order of slowness.
        """

    def slowdown(self, rank: "Ranks") -> "Draws":
        """The factors (n,) on the parties' computing time."""
        return np.ones(len(rank))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name.lstrip('_')}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({settings})"


class Exponential(Delay):
    """Exponentially distributed delays.

    Args:
        mean: seconds.
        step: added to the mean for every rank.

    Examples:
        >>> Exponential(0.1, step=0.1).seconds(np.array([0.5, 0.5]), np.array([0, 1])).round(4).tolist()
        [0.0693, 0.1386]
    """

    def __init__(self, mean: float, step: float = 0.0) -> None:
        self.mean = _at_least(0.0, "mean", mean)
        self.step = _at_least(0.0, "step", step)

    def seconds(self, u: "Draws", rank: "Ranks") -> "Draws":
        left = 1 - u  # exact, because draws are multiples of 2⁻⁵³
        return _shifted(self.mean, self.step, rank) * np.abs(log(left))


class Constant(Delay):
    """A constant delay.

    Args:
        seconds: the delay.
        step: added to the delay for every rank.

    Examples:
        >>> Constant(0.5, step=1.0).seconds(np.array([0.1, 0.9]), np.array([0, 2])).tolist()
        [0.5, 2.5]
    """

    def __init__(self, seconds: float, step: float = 0.0) -> None:
        self._seconds = _at_least(0.0, "seconds", seconds)
        self.step = _at_least(0.0, "step", step)

    def seconds(self, u: "Draws", rank: "Ranks") -> "Draws":
        return _shifted(self._seconds, self.step, rank)


class Uniform(Delay):
    """Uniformly distributed delays.

    Args:
        low: the shortest delay in seconds.
        high: the longest delay in seconds, ``low`` or more.
        step: added to ``low`` and ``high`` for every rank.

    Examples:
        >>> Uniform(1.0, 3.0, step=1.0).seconds(np.array([0.5, 0.5]), np.array([0, 1])).tolist()
        [2.0, 3.0]
    """

    def __init__(self, low: float, high: float, step: float = 0.0) -> None:
        self.low = _at_least(0.0, "low", low)
        self.high = _at_least(self.low, "high", high)
        self.step = _at_least(0.0, "step", step)

    def seconds(self, u: "Draws", rank: "Ranks") -> "Draws":
        return _shifted(self.low, self.step, rank) + (self.high - self.low) * u


class LogNormal(Delay):
    """Log-normally distributed delays: most are short, a few are very long.

    Args:
        median: seconds.
        sigma: standard deviation of the logarithm.
        step: added to the median for every rank.

    Examples:
        >>> LogNormal(0.2, sigma=1.0).seconds(np.array([0.5, 0.9]), np.array([0, 0])).round(4).tolist()
        [0.2, 0.7204]
    """

    def __init__(self, median: float, sigma: float, step: float = 0.0) -> None:
        self.median = _at_least(0.0, "median", median)
        # e^(8.3 · 50) is 1e180: seconds stay finite, also in sums and products
        self.sigma = float(within("sigma of LogNormal", sigma, 0, 50, advice="delays must not overflow"))
        self.step = _at_least(0.0, "step", step)

    def seconds(self, u: "Draws", rank: "Ranks") -> "Draws":
        normal = normal_quantile(np.maximum(u, _SMALLEST))
        return _shifted(self.median, self.step, rank) * exp(self.sigma * normal)


class ComputeBound(Delay):
    """Slower computing, without a delay of messages.

    Args:
        slowdown: factor on a party's computing time, 1 or more.
        step: added to the factor for every rank.

    Examples:
        >>> ComputeBound(2.0, step=0.5).slowdown(np.array([0, 1])).tolist()
        [2.0, 2.5]
    """

    def __init__(self, slowdown: float, step: float = 0.0) -> None:
        self._slowdown = _at_least(1.0, "slowdown", slowdown)
        self.step = _at_least(0.0, "step", step)

    def seconds(self, u: "Draws", rank: "Ranks") -> "Draws":
        return np.zeros(len(rank))

    def slowdown(self, rank: "Ranks") -> "Draws":
        return _shifted(self._slowdown, self.step, rank)


def _shifted(value: float, step: float, rank: "Ranks") -> "Draws":
    """The value of a setting at each rank."""
    return value + step * rank.astype(np.float64)


def _at_least(least: float, name: str, value: float) -> float:
    return float(within(f"{name} of a delay", value, least))
