"""Features of a party from uploads that drift, with few known records."""

from dataclasses import dataclass

from lightning_vfl.audit.attack import FromKnownRecords, Guesses, Known, NothingSeen, Seen, Target, asked_for
from lightning_vfl.audit.attacks.drift.heard import SECONDS, checked_seconds, drifted, reads_drift
from lightning_vfl.audit.attacks.drift.measure import affine_guesses
from lightning_vfl.audit.transcript import places
from lightning_vfl.checks import positive


@dataclass
class DriftFeatures(FromKnownRecords):
    """The columns up to rotation of ``DriftNeighbours``, turned by a regression from a few known records.

    ``FeatureReconstruction`` with the same ``known`` is a ridge regression on the uploads alone.

    Args:
        party: the attacked party.
        known: records whose features at this party the attacker knows.
        seconds: as in ``DriftNeighbours``.
    """

    target = Target.FEATURES
    known: int = 40
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        positive("known", self.known, whole=True, advice="DriftNeighbours needs no known record")
        checked_seconds(self.seconds)

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return reads_drift(kind, way)

    def run(self, seen: Seen, known: Known) -> Guesses:
        solution = drifted(seen, self.seconds)
        ids = solution.ids
        place = places(ids, seen.records)[known.ids]
        there = place >= 0
        if not bool(there.any()):
            raise NothingSeen("the uploads of no known record are seen")
        targets = asked_for(known.features)[there]
        values = affine_guesses(solution.columns, targets, place[there])
        plain = affine_guesses(solution.shown, targets, place[there])
        return Guesses(ids, values, f"{solution.saw}, {int(there.sum()):,} known records", plain)
