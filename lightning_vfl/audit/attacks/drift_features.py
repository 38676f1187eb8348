"""Features of a party from uploads that drift, with few known records."""

from typing import ClassVar

import torch

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target
from lightning_vfl.audit.attacks.drift.heard import SECONDS, checked_seconds, drifted, shown
from lightning_vfl.audit.attacks.drift.measure import affine_guesses
from lightning_vfl.errors import ConfigurationError


class DriftFeatures(Attack):
    """The columns up to rotation of ``DriftNeighbours``, turned by a regression from a few known records.

    ``FeatureReconstruction`` with the same ``known`` is a ridge regression on the uploads alone.

    Args:
        party: the attacked party.
        known: records whose features at this party the attacker knows.
        seconds: as in ``DriftNeighbours``.
    """

    target: ClassVar[Target] = Target.FEATURES

    def __init__(self, party: int = 2, known: int = 40, seconds: float = SECONDS) -> None:
        if known < 1:
            raise ConfigurationError(f"known must be at least 1; got {known}; DriftNeighbours needs no known record")
        self.party = party
        self.known = known
        self.seconds = checked_seconds(seconds)

    @property
    def needs(self) -> Needs:
        return Needs(records=self.known)

    def run(self, seen: Seen, known: Known) -> Guesses:
        if known.features is None:
            raise TypeError("DriftFeatures needs known features")
        ids, columns, saw = drifted(seen, self.seconds)
        place = torch.full((seen.records,), -1)
        place[ids] = torch.arange(len(ids))
        mine = place[known.ids] >= 0
        if not bool(mine.any()):
            raise NothingSeen("the uploads of no known record are seen")
        targets, train = known.features[mine], place[known.ids[mine]]
        saw = f"{saw}, {int(mine.sum()):,} known records"
        return Guesses(
            ids, affine_guesses(columns, targets, train), saw, affine_guesses(shown(seen, ids), targets, train)
        )
