"""Features of a party from aggregates, with known records."""

from dataclasses import dataclass

from torch import Tensor

from lightning_vfl.audit.attack import FromKnownRecords, Guesses, Known, NothingSeen, Seen, Target
from lightning_vfl.audit.attacks.regression import guesses_from_known
from lightning_vfl.audit.transcript import AGGREGATES, by_record, side_by_side


@dataclass
class FeatureReconstruction(FromKnownRecords):
    """The aggregates of a record from several epochs are many functions of the same features.

    The attacker knows all features of some records at one party. It fits a ridge regression from the aggregates of
    these records, epochs side by side, to the features, and applies it to all other records.

    Args:
        party: the attacked party.
        known: records whose features at this party the attacker knows.
        epochs: ``all``, or the number of epochs from the first on.
    """

    target = Target.FEATURES
    epochs: int | str = "all"

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return kind == AGGREGATES

    def run(self, seen: Seen, known: Known) -> Guesses:
        most = None if self.epochs == "all" else int(self.epochs)
        ids, inputs, epochs = aggregates_by_record(seen, most)
        return guesses_from_known(seen, known, ids, inputs, f"aggregates of {epochs} epochs")


def aggregates_by_record(seen: Seen, most: int | None = None) -> tuple[Tensor, Tensor, int]:
    """Records (n,), their aggregates of all epochs side by side (n, E D), and the number E of epochs.

    Epochs with less than half of the records are left out, and then records that are not in all other epochs.

    Args:
        seen: what the attacker has.
        most: the number of epochs, from the first on; None: all.

    Raises:
        NothingSeen: if there is no aggregate.
    """
    epochs = seen.transcript.epochs()[:most]
    tables = [by_record(seen.transcript.find(AGGREGATES, epoch=epoch)) for epoch in epochs]
    tables = [(ids, rows) for ids, rows in tables if len(ids) and len(ids) >= seen.records // 2]
    if not tables:
        raise NothingSeen("no aggregate is computed")
    ids, rows = side_by_side(tables, seen.records)
    return ids, rows, len(tables)
