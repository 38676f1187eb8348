"""Features of a party from aggregates, with known records."""

from typing import ClassVar

import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target
from lightning_vfl.audit.attacks.regression import ridge_guesses
from lightning_vfl.audit.transcript import AGGREGATES, by_record


class FeatureReconstruction(Attack):
    """The aggregates of a record from several epochs are many functions of the same features.

    The attacker knows all features of some records at one party. It fits a ridge regression from the aggregates of
    these records, epochs side by side, to the features, and applies it to all other records.

    Args:
        party: the attacked party.
        known: records whose features at this party the attacker knows.
        epochs: ``all``, or the number of epochs from the first on.
    """

    target: ClassVar[Target] = Target.FEATURES

    def __init__(self, party: int = 2, known: int = 1000, epochs: int | str = "all") -> None:
        self.party = party
        self.known = known
        self.epochs = epochs

    @property
    def needs(self) -> Needs:
        return Needs(records=self.known)

    def run(self, seen: Seen, known: Known) -> Guesses:
        if known.features is None:
            raise TypeError("FeatureReconstruction needs known features")
        ids, inputs, epochs = aggregates_by_record(seen, None if self.epochs == "all" else int(self.epochs))
        place = torch.full((seen.records,), -1)
        place[ids] = torch.arange(len(ids))
        mine = place[known.ids] >= 0
        if int(mine.sum()) < 10:
            raise NothingSeen("the aggregates of fewer than ten known records are seen")
        guesses = ridge_guesses(inputs, known.features[mine], place[known.ids[mine]])
        return Guesses(ids, guesses, f"aggregates of {epochs} epochs, {int(mine.sum()):,} known records")


def aggregates_by_record(seen: Seen, most: int | None = None) -> tuple[Tensor, Tensor, int]:
    """Records (n,), their aggregates of all epochs side by side (n, E D), and the number E of epochs.

    Epochs with less than half of the records are left out, and then records that are not in all other epochs.

    Args:
        seen: what the attacker has.
        most: the number of epochs, from the first on; None: all.

    Raises:
        NothingSeen: if there is no aggregate.
    """
    epochs = seen.transcript.epochs()
    parts, there = [], torch.ones(seen.records, dtype=torch.bool)
    for epoch in epochs if most is None else epochs[:most]:
        ids, rows = by_record(seen.transcript.find(AGGREGATES, epoch=epoch))
        if len(ids) < seen.records // 2:
            continue
        table = torch.zeros(seen.records, rows.shape[1], dtype=torch.float64)
        table[ids] = rows
        here = torch.zeros(seen.records, dtype=torch.bool)
        here[ids] = True
        there &= here
        parts.append(table)
    if not parts:
        raise NothingSeen("no aggregate is computed")
    ids = there.nonzero().flatten()
    return ids, torch.cat(parts, 1)[ids], len(parts)
