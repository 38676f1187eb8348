"""Whether the server could solve the updates of a shared bottom for the records behind them.

The server has computed the gradient of every embedding, and it knows the shared bottom because it applies the updates.
So a group's update is a system of equations whose only unknowns are the group's features. With a linear bottom and
gradients G (B, D), the update of its weight is :math:`G^T X` and a pseudo-inverse gives the rows X once B ≤ D. With
hidden layers a Gauss-Newton method solves it, whenever there are more equations than unknowns; the updates of later
rounds about the same records are further equations. ``tests/attacks/groups.py`` does all three.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Roster

MARGIN = 2  # how many times more numbers the records must have than the updates


@dataclass(frozen=True)
class Exposure:
    """What a group's updates tell in a whole training, in numbers of equations and unknowns.

    Args:
        group: its party numbers.
        width: D, the embedding width of its bottom.
        parameters: numbers in one update.
        features: numbers in one record.
        records: training records that the group holds.
        batches: sizes of the batches of one epoch.
        rounds: planned rounds of the whole training; infinite if there is no limit.
        absences: whether somebody may be missing, so that the batches of one update need not follow each other.
    """

    group: tuple[int, ...]
    width: int
    parameters: int
    features: int
    records: int
    batches: Sequence[int]
    rounds: float
    absences: bool

    def updates(self, over: int) -> float:
        """How many updates are sent, each the sum of so many batches."""
        return self.rounds if isinf(self.rounds) else int(self.rounds) // over

    def smallest(self, over: int) -> int:
        """The fewest records behind one update."""
        sizes = list(self.batches)
        if self.absences or not sizes:
            return over * min(sizes, default=0)
        epochs, rest = divmod(over, len(sizes))
        circle = [0]
        for size in sizes + sizes:
            circle.append(circle[-1] + size)
        return epochs * sum(sizes) + min(circle[i + rest] - circle[i] for i in range(len(sizes)))

    def solvable(self, over: int) -> bool:
        """Whether the updates may determine the records: in one of them, or in all of them together."""
        one, updates = self.smallest(over), self.updates(over)
        if updates == 0:
            return False
        return (
            one <= MARGIN * self.width
            or one * self.features <= MARGIN * self.parameters
            or self.records * self.features <= MARGIN * self.parameters * updates
        )

    def enough(self) -> int | None:
        """The smallest number of batches to sum at which the records are not determined; None: there is none."""
        most = 0 if isinf(self.rounds) else int(self.rounds)
        over = bisect_left(range(1, most + 1), True, key=lambda k: not self.solvable(k)) + 1
        return over if over <= most else None


def refuse_solvable(exposure: Exposure, over: int) -> None:
    """Refuse a training whose updates determine the records of a group.

    Raises:
        ConfigurationError: with the numbers, and the smallest sum that would do, if there is one.
    """
    if not exposure.solvable(over):
        return
    updates, k = exposure.updates(over), exposure.enough()
    planned = "an unlimited number of updates" if updates == inf else f"{updates:,} planned updates"
    sums = "" if k is None else f"sum_updates_over: {k}, "
    raise ConfigurationError(
        f"the server could solve the model updates of group {exposure.group} for its records: {planned} of "
        f"{exposure.parameters:,} numbers, the smallest over {exposure.smallest(over):,} records, against "
        f"{exposure.records:,} records of {exposure.features:,} features; use {sums}update_noise, or accept it with "
        "allow_invertible_updates: true"
    )


def refuse_readable(aggregator: Aggregator, roster: Roster, allowed: bool) -> None:
    """Refuse groups whose records the server could compute from embeddings, as it knows their bottoms.

    Raises:
        ConfigurationError: for embeddings in the clear, for sums that only groups with shared bottoms are in, and for
            an aggregator that claims an ε, which does not cover exact updates.
    """
    group, name = roster.shared[0], type(aggregator).__name__
    if aggregator.accounting is not None:
        raise ConfigurationError(
            f"parties {list(group)} share a bottom, and the ε of {name} does not cover their model updates; use groups "
            "of one"
        )
    if allowed:
        return
    if wire_of(aggregator).traits.visible:
        raise ConfigurationError(
            f"the server reads every embedding of group {group} under {name} and knows its shared bottom, so it could "
            "compute its records; use MaskedSum, or accept it with allow_invertible_updates: true"
        )
    if len(roster.shared) == len(roster.groups):
        raise ConfigurationError(
            "every group shares a bottom that the server knows, so it could compute records from the sum of their "
            "embeddings; let a party that is a group of its own take part, or accept it with "
            "allow_invertible_updates: true"
        )
