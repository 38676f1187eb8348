"""Columns with few values, from uploads that drift."""

from dataclasses import dataclass

from lightning_vfl.audit.attack import Attack, Guesses, Known, Seen, Target
from lightning_vfl.audit.attacks.drift.heard import SECONDS, checked_seconds, drifted, reads_drift
from lightning_vfl.audit.attacks.drift.levels import few_valued


@dataclass
class DriftColumns(Attack):
    """Columns with two to five values, read exactly with no known record, up to the names of the values.

    The differences of records lie on a grid, whose axes are found in the columns up to rotation of
    ``DriftNeighbours``, see ``lightning_vfl.audit.attacks.drift.levels``. Columns with many values hide the grid.

    Args:
        seconds: as in ``DriftNeighbours``.
    """

    target = Target.COLUMNS
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        checked_seconds(self.seconds)

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return reads_drift(kind, way)

    def run(self, seen: Seen, known: Known) -> Guesses:
        solution = drifted(seen, self.seconds)
        return Guesses(solution.ids, few_valued(solution.columns), solution.saw, few_valued(solution.shown))
