"""Which records are alike, from uploads that drift."""

from typing import ClassVar

from lightning_vfl.audit.attack import Attack, Guesses, Known, Seen, Target
from lightning_vfl.audit.attacks.drift.heard import drifted


class DriftNeighbours(Attack):
    """The columns of all parties up to rotation, with no known record: they tell which records are alike.

    The upload of a record changes between two visits by what the parties have learnt from gradients that the server
    itself has sent. For linear bottoms this gives the inner product of any two records, see
    ``lightning_vfl.audit.attacks.drift.linear``. Initial weights and the run's seed are not used. The learning rate is
    that of the first step.
    """

    target: ClassVar[Target] = Target.NEIGHBOURS

    def run(self, seen: Seen, known: Known) -> Guesses:
        return Guesses(*drifted(seen))
