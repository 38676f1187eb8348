"""Lines about waits that take long: for whom a process waits, and what was tried."""

from collections.abc import Callable
from math import inf
from time import monotonic

from lightning.pytorch.utilities import rank_zero_info

LONG = 20.0  # seconds


class LongWait:
    """A wait that says once, when it has taken long, for whom it is.

    Args:
        for_whom: the end of the line; it is asked when the line is printed.
    """

    def __init__(self, for_whom: Callable[[], str]) -> None:
        self.for_whom = for_whom
        self._due = monotonic() + LONG

    @property
    def seconds(self) -> float:
        """Until the line is printed; infinite after that."""
        return max(0.0, self._due - monotonic())

    def look(self) -> None:
        """Print the line if it is due."""
        if monotonic() >= self._due:
            self._due = inf
            rank_zero_info(f"this process has waited {LONG:g} s for {self.for_whom()}")
