"""Which records are alike, from uploads that drift."""

from dataclasses import dataclass

from lightning_vfl.audit.attack import Attack, Guesses, Known, Seen, Target
from lightning_vfl.audit.attacks.drift.heard import SECONDS, checked_seconds, drifted, reads_drift


@dataclass
class DriftNeighbours(Attack):
    """The columns of all parties up to rotation, with no known record: they tell which records are alike.

    The upload of a record changes between two visits by what the parties have learnt from gradients that the server
    itself has sent. For linear bottoms this gives the inner product of any two records, see
    ``lightning_vfl.audit.attacks.drift.linear``. Bottoms with one hidden layer of ReLU or tanh are fitted, see
    ``lightning_vfl.audit.attacks.drift.smoothed``. Initial weights and the run's seed are not used. The learning rate
    is that of the first step.

    Not guaranteed: the best fit of hidden layers. It depends on the time, and it may tell less than the uploads as they
        are, which are scored beside it. A fit that has no time for 100 iterations is not begun: the uploads as
        they are take its place, and the report says how long it would take. Other bottoms are not attacked, which is
        not a safety result.

    Args:
        seconds: the time for the fit of hidden layers; several attacks of an audit with the same time share one fit.
    """

    target = Target.NEIGHBOURS
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        checked_seconds(self.seconds)

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return reads_drift(kind, way)

    def run(self, seen: Seen, known: Known) -> Guesses:
        solution = drifted(seen, self.seconds)
        return Guesses(solution.ids, solution.columns, solution.saw, solution.shown)
