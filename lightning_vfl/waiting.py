"""Waiting rules: when the server stops waiting for uploads. A rule closes one leg of a round."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from lightning_vfl.checks import positive
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rebuildable import Rebuildable

__all__ = ["Deadline", "Fastest", "Ignore", "Threshold", "WaitForAll", "WaitingRule"]


class WaitingRule(Rebuildable, ABC):
    """Decides which parties are included in a round, and when the round goes on.

    The laws of a rule, which ``lightning_vfl.testing.check_waiting_rule`` checks for a class of your own: An included
    party has been called and has arrived by the closing time. A delay of one party never excludes another party. Of
    equal arrivals the lower party number counts first. If all parties arrive at once, ``fewest`` parties are included.
    A rule that ``waits_on`` others closes at its ``patience`` if these do not come. ``close`` is a function of its
    arguments.

    Class data:
        leaves_out: whether the rule leaves out called parties in normal operation, not only after a failure.
    """

    leaves_out: ClassVar[bool] = True

    @property
    @abstractmethod
    def patience(self) -> float | None:
        """Seconds after which the server closes a leg that waits for all parties; None: it waits for ever."""

    @abstractmethod
    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        """The included parties, and the time when the server goes on.

        Args:
            arrivals: (M,) float64 seconds since the leg began; inf: never; NaN: not called, so the server does not wait
                for this party.
            needed: the smallest number of answers that the aggregator can decode.

        Returns:
            (M,) bool, and seconds since the leg began; inf if the server would wait for ever.
        """

    @abstractmethod
    def fewest(self, parties: int, needed: int = 1) -> int:
        """The number of included parties if all M parties arrive at once, as in a round without faults."""

    def waits_on(self, arrived: int, needed: int = 1) -> bool:
        """Whether so few arrivals never end the wait before ``patience`` while other parties are expected.

        A server of real processes then does not ask ``close`` after every upload. Default: False, it asks.
        """
        return False

    def calls(self, announced: Tensor, stragglers: Tensor) -> Tensor:
        """(M,) bool, the parties that the server calls; default: all parties that are announced present."""
        return announced

    def check(self, stragglers: Tensor, silent: bool) -> None:
        """Refuse faults with which the rule cannot work.

        Args:
            stragglers: (M,) bool, the known stragglers.
            silent: whether messages may be lost without notice.

        Raises:
            ConfigurationError: before training.
        """
        if silent and self.patience is None:
            raise ConfigurationError(
                f"{type(self).__name__} without a timeout would wait for ever for a message that is lost without "
                "notice; give a timeout in seconds, or use Deadline"
            )


def refuse_broken_rule(rule: WaitingRule, parties: int, needed: int) -> None:
    """Accept a rule that closes a leg of made-up arrivals as the laws say; a rule of a user's own may not.

    Raises:
        ConfigurationError: naming the rule and what it returns.
    """
    arrivals = torch.arange(1, parties + 1, dtype=torch.float64)
    told = rule.close(arrivals, needed)
    who, when = told if isinstance(told, tuple) and len(told) == 2 else (None, None)
    if not (isinstance(who, Tensor) and who.dtype == torch.bool and who.shape == arrivals.shape) or not isinstance(
        when, int | float
    ):
        raise ConfigurationError(
            f"close of {type(rule).__name__} must return ({parties},) bool and a number of seconds; got {told!r}"
        )
    last = float(arrivals.where(who, 0.0).max())
    if not when >= last:
        raise ConfigurationError(
            f"close of {type(rule).__name__} includes a party that arrives after {last:g} s and goes on after {when:g} "
            "s; return the last arrival of the included parties, or a later time"
        )


def _first(arrivals: Tensor, n: int) -> tuple[Tensor, float]:
    """The first n arrivals (of equal ones the lower party number first), and their time; inf if fewer arrive."""
    order = arrivals.nan_to_num(nan=inf, posinf=inf).sort(stable=True)
    when = float(order.values[n - 1])
    who = torch.zeros(len(arrivals), dtype=torch.bool)
    who[order.indices[:n]] = True
    return who & arrivals.isfinite(), when


def _cut_off(arrivals: Tensor, closed: tuple[Tensor, float], timeout: float | None) -> tuple[Tensor, float]:
    """The result of a rule, or of the timeout if the timeout is earlier."""
    if timeout is None or closed[1] <= timeout:
        return closed
    return arrivals <= timeout, timeout  # NaN and inf compare as not arrived


class _WaitsForCalled(WaitingRule, ABC):
    """A rule that waits for everybody whom it calls, until its patience ends."""

    leaves_out: ClassVar[bool] = False

    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        last = float(arrivals.nan_to_num(nan=0.0, posinf=inf).max())
        return _cut_off(arrivals, (arrivals.isfinite(), last), self.patience)

    def waits_on(self, arrived: int, needed: int = 1) -> bool:
        return True

    def fewest(self, parties: int, needed: int = 1) -> int:
        return parties


class _WithTimeout(WaitingRule, ABC):
    """A rule that goes on after a timeout, where there is one."""

    timeout: float | None

    def __post_init__(self) -> None:
        if self.timeout is not None:
            positive("timeout", self.timeout, advice="or leave it out")

    @property
    def patience(self) -> float | None:
        return self.timeout


@dataclass(frozen=True)
class WaitForAll(_WithTimeout, _WaitsForCalled):
    """Wait for all called parties; a silent absence costs the timeout. The baseline Wait of FedVS, section 6.2.

    Args:
        timeout: seconds after which the server goes on with the parties that have arrived; None: no timeout, which is
            refused if messages can be lost silently.

    Examples:
        >>> who, when = WaitForAll().close(torch.tensor([0.1, 0.7, 0.2]))
        >>> who.tolist(), round(when, 3)
        ([True, True, True], 0.7)
    """

    timeout: float | None = None


@dataclass(frozen=True)
class Ignore(_WithTimeout, _WaitsForCalled):
    """Do not call the known stragglers, and wait for all others. The baseline Ignore of FedVS, section 6.2.

    The fault models name the stragglers for the whole run. A party that is late in one round is not a known straggler.

    Args:
        timeout: as in ``WaitForAll``.

    Examples:
        >>> Ignore().calls(torch.tensor([True, True]), stragglers=torch.tensor([False, True])).tolist()
        [True, False]
    """

    timeout: float | None = None

    def check(self, stragglers: Tensor, silent: bool) -> None:
        super().check(stragglers, silent)
        if not stragglers.any():
            warnings.warn("Ignore leaves out no party, because no fault model names a straggler", stacklevel=1)

    def calls(self, announced: Tensor, stragglers: Tensor) -> Tensor:
        return announced & ~stragglers


@dataclass(frozen=True)
class Fastest(_WithTimeout):
    """Wait for the first n arrivals; if fewer than n parties were called, for all called parties.

    Args:
        n: the number of parties that the server waits for.
        timeout: as in ``WaitForAll``.

    Examples:
        >>> who, when = Fastest(2).close(torch.tensor([0.1, 0.7, 0.2]))
        >>> who.tolist(), round(when, 3)
        ([True, False, True], 0.2)
    """

    n: int
    timeout: float | None = None

    def __post_init__(self) -> None:
        positive("n of Fastest", self.n, whole=True)
        super().__post_init__()

    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        n = min(self.n, int((~arrivals.isnan()).sum()))  # of those that are called
        if n == 0:
            return torch.zeros(len(arrivals), dtype=torch.bool), 0.0
        return _cut_off(arrivals, _first(arrivals, n), self.timeout)

    def waits_on(self, arrived: int, needed: int = 1) -> bool:
        return arrived < self.n

    def fewest(self, parties: int, needed: int = 1) -> int:
        return min(self.n, parties)

    def check(self, stragglers: Tensor, silent: bool) -> None:
        super().check(stragglers, silent)
        if self.n > len(stragglers):
            raise ConfigurationError(f"Fastest({self.n}) waits for more than all {len(stragglers)} parties; lower n")


@dataclass(frozen=True)
class Deadline(_WaitsForCalled):
    """Include all parties that arrive by a deadline; the server goes on earlier if all called parties have arrived.

    Args:
        seconds: the deadline, from the beginning of the leg.

    Examples:
        >>> who, when = Deadline(0.5).close(torch.tensor([0.1, 0.7, 0.2]))
        >>> who.tolist(), when
        ([True, False, True], 0.5)
    """

    leaves_out: ClassVar[bool] = True
    seconds: float

    def __post_init__(self) -> None:
        positive("seconds of Deadline", self.seconds)

    @property
    def patience(self) -> float:
        return self.seconds

    def check(self, stragglers: Tensor, silent: bool) -> None:
        return  # a deadline never waits for ever


@dataclass(frozen=True)
class Threshold(_WithTimeout):
    """Wait for exactly the number of answers that the aggregator needs to decode.

    Args:
        timeout: as in ``WaitForAll``.

    Examples:
        >>> who, when = Threshold().close(torch.tensor([0.1, 0.7, 0.2]), needed=2)
        >>> who.tolist(), round(when, 3)
        ([True, False, True], 0.2)
    """

    timeout: float | None = None

    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        return Fastest(needed, self.timeout).close(arrivals)

    def waits_on(self, arrived: int, needed: int = 1) -> bool:
        return arrived < needed

    def fewest(self, parties: int, needed: int = 1) -> int:
        return needed
