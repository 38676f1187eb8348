"""Attacks by drift: on the columns of all parties, from uploads that change by gradients that the server has sent."""

from abc import ABC
from dataclasses import dataclass
from math import inf

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.audit.attack import (
    Attack,
    FromKnownRecords,
    Guesses,
    Known,
    NothingSeen,
    Seen,
    Target,
    asked_for,
    known_places,
)
from lightning_vfl.audit.attacks.drift.heard import SECONDS, drifted
from lightning_vfl.audit.attacks.drift.levels import few_valued
from lightning_vfl.audit.attacks.drift.measure import affine_guesses
from lightning_vfl.audit.transcript import AGGREGATES
from lightning_vfl.checks import positive, within


@dataclass
class FromDrift(Attack, ABC):
    """An attack on uploads in the clear or their sums, and on gradients; ``seconds`` as in ``DriftNeighbours``."""

    listens = ((GRADIENTS, "down"), (EMBEDDINGS, "up"), (AGGREGATES, "own"))
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        within("seconds", self.seconds, above=0, most=inf)


@dataclass
class DriftNeighbours(FromDrift):
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

    def run(self, seen: Seen, known: Known) -> Guesses:
        solution = drifted(seen, self.seconds)
        return Guesses(solution.ids, solution.columns, solution.saw, solution.shown)


@dataclass
class DriftColumns(FromDrift):
    """Columns with two to five values, read exactly with no known record, up to the names of the values.

    The differences of records lie on a grid, whose axes are found in the columns up to rotation of
    ``DriftNeighbours``, see ``lightning_vfl.audit.attacks.drift.levels``. Columns with many values hide the grid.

    Args:
        seconds: as in ``DriftNeighbours``.
    """

    target = Target.COLUMNS

    def run(self, seen: Seen, known: Known) -> Guesses:
        solution = drifted(seen, self.seconds)
        return Guesses(solution.ids, few_valued(solution.columns), solution.saw, few_valued(solution.shown))


@dataclass
class DriftFeatures(FromDrift, FromKnownRecords):
    """The columns up to rotation of ``DriftNeighbours``, turned by a regression from a few known records.

    ``FeatureReconstruction`` with the same ``known`` is a ridge regression on the uploads alone.

    Args:
        party: the attacked party.
        known: records whose features at this party the attacker knows.
        seconds: as in ``DriftNeighbours``.
    """

    target = Target.FEATURES
    known: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("known", self.known, whole=True, advice="DriftNeighbours needs no known record")

    def run(self, seen: Seen, known: Known) -> Guesses:
        solution = drifted(seen, self.seconds)
        place, there = known_places(seen, known, solution.ids)
        if not len(place):
            raise NothingSeen("the uploads of no known record are seen")
        targets = asked_for(known.features)[there]
        values, plain = (affine_guesses(columns, targets, place) for columns in (solution.columns, solution.shown))
        return Guesses(solution.ids, values, f"{solution.saw}, {len(place):,} known records", plain)
