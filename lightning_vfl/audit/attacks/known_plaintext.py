"""Embeddings of a party from sums, with known embeddings."""

from typing import ClassVar

import torch

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target, needed
from lightning_vfl.audit.attacks.regression import ridge_guesses
from lightning_vfl.audit.transcript import AGGREGATES, by_record


class KnownPlaintext(Attack):
    """Pairs of a party's embedding and the sum that it is in tell a map from sums to embeddings.

    The attacker knows the embeddings that the party's trained bottom gives for some records, fits a ridge regression
    from the aggregates of the last epoch to them, and applies it to all other records. Masks do not enter, because they
    have cancelled in the sum.

    Args:
        party: the attacked party.
        known: records whose embeddings by the trained bottom of this party the attacker knows.
    """

    target: ClassVar[Target] = Target.EMBEDDINGS

    def __init__(self, party: int = 2, known: int = 1000) -> None:
        self.party = party
        self.known = known

    @property
    def needs(self) -> Needs:
        return Needs(records=self.known)

    def run(self, seen: Seen, known: Known) -> Guesses:
        if known.features is None:
            raise TypeError("KnownPlaintext needs known embeddings")
        last = max(seen.transcript.epochs(), default=0)
        ids, rows = needed(by_record(seen.transcript.find(AGGREGATES, epoch=last)), "no aggregate is computed")
        place = torch.full((seen.records,), -1)
        place[ids] = torch.arange(len(ids))
        mine = place[known.ids] >= 0
        if int(mine.sum()) < 10:
            raise NothingSeen("the aggregates of fewer than ten known records are seen")
        guesses = ridge_guesses(rows, known.features[mine], place[known.ids[mine]])
        return Guesses(ids, guesses, f"aggregates of epoch {last}, {int(mine.sum()):,} known embeddings")
