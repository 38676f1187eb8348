"""Columns with few values, from uploads that drift."""

from typing import ClassVar

from lightning_vfl.audit.attack import Attack, Guesses, Known, Seen, Target
from lightning_vfl.audit.attacks.drift.heard import drifted
from lightning_vfl.audit.attacks.drift.levels import few_valued


class DriftColumns(Attack):
    """Columns with two to five values, read exactly with no known record, up to the names of the values.

    Two records that differ in one column alone give the axis of this column in the columns up to rotation of
    ``DriftNeighbours``.
    """

    target: ClassVar[Target] = Target.COLUMNS

    def run(self, seen: Seen, known: Known) -> Guesses:
        ids, columns, saw = drifted(seen)
        return Guesses(ids, few_valued(columns), saw)
