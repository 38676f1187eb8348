"""Find the settings of a mechanism that meet a budget: the largest β, the largest b, the largest number of epochs.

A larger value discloses more and never costs less, so bisection finds the largest value within the target. The cost of
the returned value has been computed and is within the target.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lightning_vfl.checks import positive
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.accountant import ROUNDED_UP, composed_epsilon
from lightning_vfl.privacy.digits import shown
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.privacy.loss_distribution import Account, Figure, loss_epsilon, smaller
from lightning_vfl.privacy.rdp import ORDERS, converted

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
    Guarantee, Not guaranteed, Raises: as ``composed_epsilon``.

    Args:
        event: the event of one round.
        epochs: E ≥ 0.
        delta: 0 ≤ δ ≤ 1, for the whole run.
        unit: the difference between neighbouring data, one of ``UNITS``.
        records: N ≥ 1; used only for the unit ``party``.

    Examples:
        >>> from lightning_vfl.privacy import PoissonBinomialEvent
        >>> event = PoissonBinomialEvent(levels=16, beta=0.1, parties=10, coordinates=16)
        >>> f"{planned_epsilon(event, epochs=1, delta=1e-5):.2f}"
        '11.34'
    """
    positive("records", records, whole=True)
    return composed_epsilon({event: epochs * int(records) if unit == "party" else epochs}, delta, unit)


def worst_epsilon(
    events: Sequence[PrivacyEvent], most: int, total: int, delta: float, unit: str = "party-record"
) -> float:
    """ε of a run in which every release is one of several possible events.

    Every order is charged with the event that costs most at this order: if curves cross, a mixture of events can cost
    more than each event alone. With only Gaussian noise, the event with the largest signal is charged, exactly.

    Units: ε in nats.
    Guarantee: never below ``composed_epsilon`` of any choice of events; equal to it for a single event.
    Not guaranteed: a tight bound if curves cross.

    Args:
        events: the possible events of a round; empty: no release.
        most: releases of the record that is released most often.
        total: releases of all records together; used only for the unit ``party``.
        delta: 0 ≤ δ ≤ 1, for the whole run.
        unit: the difference between neighbouring data, one of ``UNITS``.

    Raises:
        ConfigurationError: as ``composed_epsilon``.

    Examples:
        >>> from lightning_vfl.privacy import PoissonBinomialEvent
        >>> three, two = (PoissonBinomialEvent(levels=16, beta=0.1, parties=n, coordinates=16) for n in (3, 2))
        >>> alone = worst_epsilon([two], most=5, total=100, delta=1e-5)
        >>> 1 <= worst_epsilon([three, two], most=5, total=100, delta=1e-5) / alone < 1 + 1e-11
        True
    """
    uses = total if unit == "party" else most
    if not events:
        return 0.0
    signals = [event.signal(unit) for event in events]
    strongest = max(range(len(events)), key=lambda i: signals[i] or 0.0)
    alone = composed_epsilon({events[strongest]: uses}, delta, unit)  # also checks the numbers
    if len(events) == 1 or None not in signals:
        return alone
    if not uses:
        return 0.0
    highest = np.max([event.curve(unit) for event in events], axis=0)
    # rounded up once more than a sum of the events, which is added up in another order
    return float(converted(uses * highest * ROUNDED_UP**2, ORDERS, delta).min())


def worst_figure(
    events: Sequence[PrivacyEvent], most: int, total: int, delta: float, unit: str = "party-record"
) -> Figure:
    """As ``worst_epsilon``, by privacy loss distributions where these give less, and the account that gave the figure.

    Units: ε in nats.
    Guarantee: never below the true ε of any choice of events, and never above ``worst_epsilon``.

    Args:
        events, most, total, delta, unit: as in ``worst_epsilon``.

    Raises:
        ConfigurationError: as ``composed_epsilon``.

    Examples:
        >>> from lightning_vfl.privacy import PoissonBinomialEvent
        >>> event = PoissonBinomialEvent(levels=2, beta=0.05, parties=5, coordinates=16)
        >>> print(worst_figure([event], most=1, total=1000, delta=1e-5))
        2.075 (PLD)
    """
    renyi = worst_epsilon(events, most, total, delta, unit)
    if not events or all(event.signal(unit) is not None for event in events):
        return Figure(renyi, Account.GAUSSIAN if events else Account.RENYI)
    return smaller(renyi, loss_epsilon([(events, total if unit == "party" else most)], delta, unit))


def solve_beta(target_epsilon: float, epsilon: Callable[[float], float]) -> float:
    """The largest β of the Poisson binomial mechanism with which a run meets a target.

    Units: ε in nats; β is that of values in [-1, 1].
    Guarantee: the run with this β costs at most the target. A β that is larger by more than a relative 1e-6 costs more,
        or is above 1/4.
    Not guaranteed: a useful result: with a small β, the noise may be larger than the signal.

    Args:
        target_epsilon: ε > 0.
        epsilon: the ε of the run with this β, for example by ``planned_epsilon``.

    Raises:
        ConfigurationError: for invalid numbers, and a target that no β of 1e-6 or more meets.

    Examples:
        >>> from lightning_vfl.privacy import PoissonBinomialEvent
        >>> def epsilon(beta):
        ...     event = PoissonBinomialEvent(levels=16, beta=beta, parties=10, coordinates=16)
        ...     return planned_epsilon(event, epochs=10, delta=1e-5)
        >>> f"{solve_beta(8.0, epsilon):.4f}"
        '0.0245'
    """
    positive("target_epsilon", target_epsilon)
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


def solve_levels(target_epsilon: float, epsilon: Callable[[int], float], most: int = MOST_LEVELS) -> int:
    """The largest b of the Poisson binomial mechanism with which a run meets a target, at most ``most``.

    Units: ε in nats.
    Guarantee: the run with this b costs at most the target; the run with b + 1 costs more, or b is ``most``.
    Not guaranteed: a larger b could also meet the target if ε fell with b. No such case is known.

    Args:
        target_epsilon: ε > 0.
        epsilon: the ε of the run with this b, for example by ``planned_epsilon``.
        most: the largest b to try; b n above 65,536 has a figure only for the unit ``record``.

    Raises:
        ConfigurationError: for invalid numbers, and a target that b = 1 does not meet.

    Examples:
        >>> from lightning_vfl.privacy import PoissonBinomialEvent
        >>> def epsilon(levels):
        ...     event = PoissonBinomialEvent(levels, beta=0.02, parties=10, coordinates=16)
        ...     return planned_epsilon(event, epochs=10, delta=1e-5)
        >>> solve_levels(8.0, epsilon)
        23
    """
    positive("target_epsilon", target_epsilon)
    positive("most", most, whole=True)
    if epsilon(1) > target_epsilon:
        raise ConfigurationError(
            f"one level already costs more than epsilon {target_epsilon}; use a smaller beta, fewer epochs or "
            "coordinates, more parties, or a larger target"
        )
    return _last(lambda levels: epsilon(levels) <= target_epsilon, int(most))


def solve_epochs(target_epsilon: float, epsilon: Callable[[int], float], most: int = MOST_EPOCHS) -> int:
    """The largest number of epochs with which a run meets a target.

    Units: ε in nats.
    Guarantee: a run of this many epochs costs at most the target; a run of one more epoch costs more.

    Args:
        target_epsilon: ε > 0.
        epsilon: the ε of a run of so many epochs, for example by ``planned_epsilon``.
        most: the largest number to try.

    Raises:
        ConfigurationError: for invalid numbers, a target that one epoch does not meet, and one that ``most`` meet.

    Examples:
        >>> from lightning_vfl.privacy import PoissonBinomialEvent
        >>> event = PoissonBinomialEvent(levels=16, beta=0.02, parties=10, coordinates=16)
        >>> solve_epochs(8.0, lambda epochs: planned_epsilon(event, epochs, delta=1e-5))
        14
    """
    positive("target_epsilon", target_epsilon)
    if epsilon(1) > target_epsilon:
        raise ConfigurationError(
            f"one epoch costs epsilon {shown(epsilon(1))}, more than {target_epsilon}; use a smaller beta or more "
            "noise, or a larger target"
        )
    epochs = _last(lambda epochs: epsilon(epochs) <= target_epsilon, most)
    if epochs == most:
        raise ConfigurationError(
            f"even {most:,} epochs meet epsilon {target_epsilon}; choose the number of epochs by another criterion"
        )
    return epochs


def _last(met: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` for which ``met`` is true; it is true for 1."""
    low, high = 1, 2
    while high <= most and met(high):
        low, high = high, 2 * high
    high = min(high, most + 1)  # not met, or above ``most``
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low
