"""Embeddings of a party from sums, with known embeddings."""

from dataclasses import dataclass

from lightning_vfl.audit.attack import FromKnownRecords, Guesses, Known, NothingSeen, Seen, Target
from lightning_vfl.audit.attacks.regression import guesses_from_known
from lightning_vfl.audit.transcript import AGGREGATES, by_record


@dataclass
class KnownPlaintext(FromKnownRecords):
    """Pairs of a party's embedding and the sum that it is in tell a map from sums to embeddings.

    The attacker knows the embeddings that the party's trained bottom gives for some records, fits a ridge regression
    from the aggregates of the last epoch to them, and applies it to all other records. Masks do not enter, because they
    have cancelled in the sum.

    Args:
        party: the attacked party.
        known: records whose embeddings by the trained bottom of this party the attacker knows.
    """

    target = Target.EMBEDDINGS

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return kind == AGGREGATES

    def run(self, seen: Seen, known: Known) -> Guesses:
        last = max(seen.transcript.epochs(), default=0)
        ids, rows = by_record(seen.transcript.find(AGGREGATES, epoch=last))
        if not len(ids):
            raise NothingSeen("no aggregate is computed")
        return guesses_from_known(seen, known, ids, rows, f"aggregates of epoch {last}", "known embeddings")
