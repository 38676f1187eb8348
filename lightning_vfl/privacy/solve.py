"""The setting of a mechanism that meets a budget: the largest β, the largest b, the largest number of epochs.

More of either tells more and never costs less, so bisection finds where a target is passed; what is returned has been
priced and meets it.
"""

from collections.abc import Callable
from math import inf

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.accountant import composed_epsilon
from lightning_vfl.privacy.events import PoissonBinomialEvent, PrivacyEvent

MOST_LEVELS = 1024
MOST_EPOCHS = 10**9
_LARGEST_BETA = 0.25
_LEAST_BETA = 1e-6
_PRECISION = 1e-6  # of β, relative


def planned_epsilon(
    event: PrivacyEvent, epochs: int, delta: float, unit: str = "party-record", records: int = 1
) -> float:
    """ε of a run in which every record is released by the event once an epoch.

    Units: ε in nats.
    Guarantee, not guaranteed, what is raised: as ``composed_epsilon``.

    Args:
        event: what one round releases of a record.
        epochs: E ≥ 0.
        delta: 0 ≤ δ ≤ 1, for the whole run.
        unit: what neighbouring data differ in, one of ``UNITS``.
        records: N ≥ 1; counts for the unit ``party`` alone.

    Example:
        >>> event = PoissonBinomialEvent(levels=16, beta=0.1, parties=10, coordinates=16)
        >>> f"{planned_epsilon(event, epochs=1, delta=1e-5):.2f}"
        '11.34'
    """
    if not 1 <= records < inf or records != int(records):
        raise ConfigurationError(f"records {records} is no number of records to protect; use 1, 2, 3, ...")
    return composed_epsilon({event: epochs * int(records) if unit == "party" else epochs}, delta, unit)


def solve_beta(
    target_epsilon: float,
    delta: float,
    *,
    levels: int,
    parties: int,
    coordinates: int,
    epochs: int,
    unit: str = "party-record",
    records: int = 1,
) -> float:
    """The largest β of the Poisson binomial mechanism with which a run meets a target.

    Units: ε in nats; β is that of values in [-1, 1].
    Guarantee: the run with this β costs at most the target. A β larger by more than 1e-6 of it costs more, or is above
        1/4.
    Not guaranteed: use of the answer: a β that is met may leave nothing but noise.

    Args:
        target_epsilon: ε > 0.
        delta: 0 ≤ δ ≤ 1.
        levels, parties, coordinates: b, n, D, as in ``PoissonBinomialEvent``.
        epochs, unit, records: as in ``planned_epsilon``.

    Raises:
        ConfigurationError: for numbers that have no meaning, and a target that no β of 1e-6 or more meets.

    Example:
        >>> f"{solve_beta(8.0, 1e-5, levels=16, parties=10, coordinates=16, epochs=10):.4f}"
        '0.0245'
    """
    _positive(target_epsilon)

    def epsilon(beta: float) -> float:
        event = PoissonBinomialEvent(levels, beta, parties, coordinates)
        return planned_epsilon(event, epochs, delta, unit, records)

    if epsilon(_LARGEST_BETA) <= target_epsilon:
        return _LARGEST_BETA
    high = _LARGEST_BETA
    while epsilon(low := max(high / 4, _LEAST_BETA)) > target_epsilon:
        if low == _LEAST_BETA:
            raise ConfigurationError(
                f"no beta of {_LEAST_BETA} or more meets epsilon {target_epsilon}; use fewer epochs, levels or "
                "coordinates, more parties, or a larger target"
            )
        high = low
    while high > low * (1 + _PRECISION):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if epsilon(middle) > target_epsilon else (middle, high)
    return low


def solve_levels(
    target_epsilon: float,
    delta: float,
    *,
    beta: float,
    parties: int,
    coordinates: int,
    epochs: int,
    unit: str = "party-record",
    records: int = 1,
    most: int = MOST_LEVELS,
) -> int:
    """The largest b of the Poisson binomial mechanism with which a run meets a target, at most ``most``.

    Units: ε in nats; β is that of values in [-1, 1].
    Guarantee: the run with this b costs at most the target; with one trial more it costs more, or b is ``most``.
    Not guaranteed: that no larger b meets the target, where ε would fall with b. No such case is known.

    Args:
        target_epsilon: ε > 0.
        delta: 0 ≤ δ ≤ 1.
        beta, parties, coordinates: β, n, D, as in ``PoissonBinomialEvent``.
        epochs, unit, records: as in ``planned_epsilon``.
        most: where to stop; b n above 65,536 has no figure but for the unit ``record``.

    Raises:
        ConfigurationError: for numbers that have no meaning, and a target that b = 1 does not meet.

    Example:
        >>> solve_levels(8.0, 1e-5, beta=0.02, parties=10, coordinates=16, epochs=10)
        23
    """
    _positive(target_epsilon)
    if not 1 <= most < inf:
        raise ConfigurationError(f"most {most} leaves no levels to choose from; use 1 or more")

    def met(levels: int) -> bool:
        event = PoissonBinomialEvent(levels, beta, parties, coordinates)
        return planned_epsilon(event, epochs, delta, unit, records) <= target_epsilon

    if not met(1):
        raise ConfigurationError(
            f"one level already costs more than epsilon {target_epsilon}; use a smaller beta, fewer epochs or "
            "coordinates, more parties, or a larger target"
        )
    return _last(met, int(most))


def solve_epochs(
    target_epsilon: float, delta: float, event: PrivacyEvent, unit: str = "party-record", records: int = 1
) -> int:
    """The largest number of epochs with which a run meets a target.

    Units: ε in nats.
    Guarantee: a run of so many epochs costs at most the target, one of one more costs more.

    Args:
        target_epsilon: ε > 0.
        delta: 0 ≤ δ ≤ 1.
        event: what one round releases of a record.
        unit, records: as in ``planned_epsilon``.

    Raises:
        ConfigurationError: for numbers that have no meaning, a target that one epoch does not meet, and an event that
            may happen more than 1,000,000,000 times.

    Example:
        >>> event = PoissonBinomialEvent(levels=16, beta=0.02, parties=10, coordinates=16)
        >>> solve_epochs(8.0, 1e-5, event)
        14
    """
    _positive(target_epsilon)

    def met(epochs: int) -> bool:
        return planned_epsilon(event, epochs, delta, unit, records) <= target_epsilon

    if not met(1):
        raise ConfigurationError(
            f"one epoch costs epsilon {planned_epsilon(event, 1, delta, unit, records):.4g}, more than "
            f"{target_epsilon}; use a smaller beta or more noise, or a larger target"
        )
    epochs = _last(met, MOST_EPOCHS)
    if epochs == MOST_EPOCHS:
        raise ConfigurationError(
            f"{MOST_EPOCHS:,} epochs still meet epsilon {target_epsilon}; choose the number of epochs by something else"
        )
    return epochs


def _last(met: Callable[[int], bool], most: int) -> int:
    """The number up to ``most`` after which ``met`` turns from true to false; it is true for 1."""
    low, high = 1, 2
    while high <= most and met(high):
        low, high = high, 2 * high
    high = min(high, most + 1)  # not met, or one too many
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low


def _positive(target_epsilon: float) -> None:
    """Check that there is a budget."""
    if not 0 < target_epsilon < inf:
        raise ConfigurationError(f"target_epsilon {target_epsilon} is no budget; use a number above 0")
