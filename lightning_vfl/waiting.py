"""When the server stops waiting for the parties' uploads: one rule closes one leg of a round."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf, isfinite
from typing import ClassVar

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError

__all__ = ["Deadline", "Fastest", "Ignore", "Threshold", "WaitForAll", "WaitingRule"]


class WaitingRule(ABC):
    """Who still counts in a round, and when the round goes on.

    Laws, held by ``tests/unit/test_waiting.py`` for every subclass: whoever is in arrived by the closing time; the
    closing time is no earlier than the last arrival of those who are in; adding a delay to somebody never lets another
    one drop out, except that of equal arrivals the lower party number counts first; ``fewest`` are in when all
    arrive at once.

    Class data:
        leaves_out: it goes on without some of those who were called as a matter of course, not of an accident.
    """

    leaves_out: ClassVar[bool] = True

    @property
    @abstractmethod
    def patience(self) -> float | None:
        """Seconds after which the server gives up on a leg that has to wait for everybody; None: it never does."""

    @abstractmethod
    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        """Who is in, and when the server goes on.

        Args:
            arrivals: (M,) float64 seconds since the leg began; inf: never; NaN: was not called, nobody waits for it.
            needed: the fewest answers that the aggregator can decode.

        Returns:
            (M,) bool, and seconds since the leg began; inf if the server would wait for ever.
        """

    @abstractmethod
    def fewest(self, parties: int, needed: int = 1) -> int:
        """How many are in when all M arrive at once: what can be counted on where nothing goes wrong."""

    def calls(self, announced: Tensor, stragglers: Tensor) -> Tensor:
        """(M,) bool, whom the server calls: default, everybody who is announced present."""
        return announced

    def check(self, stragglers: Tensor, silent: bool) -> None:
        """Refuse what could not work.

        Args:
            stragglers: (M,) bool, the parties that are known to be slow.
            silent: messages may be lost without notice.

        Raises:
            ConfigurationError: before training.
        """
        if silent and self.patience is None:
            raise ConfigurationError(
                f"{type(self).__name__} would wait for ever for a party that is silently lost; "
                "give it a timeout in seconds, or use Deadline"
            )


def _first(arrivals: Tensor, n: int) -> tuple[Tensor, float]:
    """The first n arrivals, of equal ones the lower party number; inf if fewer ever arrive."""
    order = arrivals.nan_to_num(nan=inf, posinf=inf).sort(stable=True)
    when = float(order.values[n - 1])
    who = torch.zeros(len(arrivals), dtype=torch.bool)
    who[order.indices[:n]] = True
    return who & arrivals.isfinite(), when


def _called(arrivals: Tensor) -> int:
    return int((~arrivals.isnan()).sum())


def _by(arrivals: Tensor, when: float) -> Tensor:
    return arrivals <= when  # NaN and inf compare as absent


def _cut_off(arrivals: Tensor, closed: tuple[Tensor, float], timeout: float | None) -> tuple[Tensor, float]:
    """A rule's verdict, unless the timeout comes first."""
    if timeout is None or closed[1] <= timeout:
        return closed
    return _by(arrivals, timeout), timeout


@dataclass(frozen=True)
class _WithTimeout(WaitingRule, ABC):
    """A rule that goes on after a timeout, where there is one."""

    timeout: float | None = None

    def __post_init__(self) -> None:
        _refuse_timeout(self.timeout)

    @property
    def patience(self) -> float | None:
        return self.timeout


def _refuse_timeout(timeout: float | None) -> None:
    if timeout is not None and not (timeout > 0 and isfinite(timeout)):
        raise ConfigurationError(f"timeout must be a finite number of seconds above 0, or left out; got {timeout}")


@dataclass(frozen=True)
class WaitForAll(_WithTimeout):
    """Everybody who was called; a silent absence costs the timeout. The baseline Wait of FedVS section 6.2.

    Args:
        timeout: seconds after which the server goes on with those who have arrived; None: it would wait for ever, which
            is refused where messages can be lost silently.

    Examples:
        >>> who, when = WaitForAll().close(torch.tensor([0.1, 0.7, 0.2]))
        >>> who.tolist(), round(when, 3)
        ([True, True, True], 0.7)
    """

    leaves_out: ClassVar[bool] = False

    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        last = float(arrivals.nan_to_num(nan=0.0, posinf=inf).max())
        return _cut_off(arrivals, (_by(arrivals, last) & arrivals.isfinite(), last), self.timeout)

    def fewest(self, parties: int, needed: int = 1) -> int:
        return parties


@dataclass(frozen=True)
class Ignore(_WithTimeout):
    """Everybody but the known stragglers, who are not even called. The baseline Ignore of FedVS section 6.2.

    Who is a straggler is what the fault models say for the whole run, not who happens to be late in a round.

    Args:
        timeout: as in ``WaitForAll``.

    Examples:
        >>> Ignore().calls(torch.tensor([True, True]), stragglers=torch.tensor([False, True])).tolist()
        [True, False]
    """

    leaves_out: ClassVar[bool] = False

    def check(self, stragglers: Tensor, silent: bool) -> None:
        super().check(stragglers, silent)
        if not stragglers.any():
            warnings.warn("Ignore leaves nobody out: no fault model names a straggler", stacklevel=1)

    def calls(self, announced: Tensor, stragglers: Tensor) -> Tensor:
        return announced & ~stragglers

    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        return WaitForAll(self.timeout).close(arrivals, needed)

    def fewest(self, parties: int, needed: int = 1) -> int:
        return parties


@dataclass(frozen=True)
class Fastest(WaitingRule):
    """The first n to arrive; all who were called, if those are fewer.

    Args:
        n: how many the server waits for.
        timeout: as in ``WaitForAll``.

    Examples:
        >>> who, when = Fastest(2).close(torch.tensor([0.1, 0.7, 0.2]))
        >>> who.tolist(), round(when, 3)
        ([True, False, True], 0.2)
    """

    n: int
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigurationError(f"n of Fastest must be at least 1; got {self.n}")
        _refuse_timeout(self.timeout)

    @property
    def patience(self) -> float | None:
        return self.timeout

    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        n = min(self.n, _called(arrivals))
        if n == 0:
            return torch.zeros(len(arrivals), dtype=torch.bool), 0.0
        return _cut_off(arrivals, _first(arrivals, n), self.timeout)

    def fewest(self, parties: int, needed: int = 1) -> int:
        return min(self.n, parties)

    def check(self, stragglers: Tensor, silent: bool) -> None:
        super().check(stragglers, silent)
        if self.n > len(stragglers):
            raise ConfigurationError(f"Fastest({self.n}) waits for more than the {len(stragglers)} parties; lower n")


@dataclass(frozen=True)
class Deadline(WaitingRule):
    """Whoever arrives by a deadline; the server goes on earlier once nobody it called is outstanding.

    Args:
        seconds: from the beginning of the leg.

    Examples:
        >>> who, when = Deadline(0.5).close(torch.tensor([0.1, 0.7, 0.2]))
        >>> who.tolist(), when
        ([True, False, True], 0.5)
    """

    seconds: float

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and isfinite(self.seconds)):
            raise ConfigurationError(f"seconds of Deadline must be a finite number above 0; got {self.seconds}")

    @property
    def patience(self) -> float:
        return self.seconds

    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        return WaitForAll(self.seconds).close(arrivals, needed)

    def fewest(self, parties: int, needed: int = 1) -> int:
        return parties

    def check(self, stragglers: Tensor, silent: bool) -> None:
        return  # it never waits for ever


@dataclass(frozen=True)
class Threshold(_WithTimeout):
    """As many as the aggregator needs to decode, and no more.

    Args:
        timeout: as in ``WaitForAll``.

    Examples:
        >>> who, when = Threshold().close(torch.tensor([0.1, 0.7, 0.2]), needed=2)
        >>> who.tolist(), round(when, 3)
        ([True, False, True], 0.2)
    """

    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        return Fastest(needed, self.timeout).close(arrivals)

    def fewest(self, parties: int, needed: int = 1) -> int:
        return needed
