"""Checks whether the server could compute a group's records from the updates of a shared bottom.

The server computes the gradient of every embedding, and knows the shared bottom because it applies the updates. A
group's update is therefore a system of equations, in which only the group's features are unknown. With a linear bottom
and gradients G (B, D), the update of the weight is :math:`G^T X`; if B ≤ D, a pseudo-inverse yields the rows X. With
hidden layers, a Gauss-Newton method solves the system if there are more equations than unknowns. The updates of later
rounds about the same records add equations. ``tests/attacks/groups.py`` runs all three attacks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Roster

MARGIN = 2  # the records must have at least this many times as many numbers as the updates


@dataclass(frozen=True)
class Exposure:
    """What a group's updates disclose in a whole training: the numbers of equations and unknowns.

    Args:
        group: the party numbers of the group.
        width: D, the embedding width of the group's bottom.
        parameters: numbers in one update.
        features: numbers in one record.
        records: training records that the group holds.
        batches: sizes of the batches of one epoch.
        rounds: planned rounds of the whole training, each with an update; infinite if there is no limit.
    """

    group: tuple[int, ...]
    width: int
    parameters: int
    features: int
    records: int
    batches: Sequence[int]
    rounds: float

    @property
    def smallest(self) -> int:
        """The smallest number of records in one update."""
        return min(self.batches, default=0)

    @property
    def solvable(self) -> bool:
        """Whether one update, or all updates together, may determine the records."""
        if self.rounds == 0:
            return False
        return (
            self.smallest <= MARGIN * self.width
            or self.smallest * self.features <= MARGIN * self.parameters
            or self.records * self.features <= MARGIN * self.parameters * self.rounds
        )


def refuse_solvable(exposure: Exposure) -> None:
    """Refuse a training whose updates determine the records of a group.

    Raises:
        ConfigurationError: with the numbers.
    """
    if not exposure.solvable:
        return
    updates = exposure.rounds
    planned = "an unlimited number of updates" if updates == inf else f"{int(updates):,} planned updates"
    raise ConfigurationError(
        f"the server could compute the records of group {exposure.group} from its model updates: {planned} of "
        f"{exposure.parameters:,} numbers, the smallest over {exposure.smallest:,} records, against "
        f"{exposure.records:,} records of {exposure.features:,} features; use groups of one party, or accept it with "
        "allow_invertible_updates: true"
    )


def refuse_readable(aggregator: Aggregator, roster: Roster, allowed: bool) -> None:
    """Refuse groups whose records the server could compute from embeddings, because it knows their bottoms.

    Raises:
        ConfigurationError: for embeddings in the clear, for sums to which only groups with shared bottoms contribute,
            and for an aggregator that claims an ε, which does not cover exact updates.
    """
    group = roster.shared[0]
    name = type(aggregator).__name__
    if aggregator.accounting is not None:
        raise ConfigurationError(
            f"parties {list(group)} share a bottom, but the ε of {name} does not cover their model updates; use groups "
            "of one party"
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
            "every group shares a bottom that the server knows, so the server could compute records from the sum of "
            "embeddings; add a party that is a group of its own, or accept it with allow_invertible_updates: true"
        )
