"""Features of a party from one upload of each record, as the server receives it."""

from dataclasses import replace
from typing import ClassVar

import torch

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target
from lightning_vfl.audit.attacks.regression import ridge_guesses
from lightning_vfl.audit.transcript import by_record


class SingleUpload(Attack):
    """The first upload of every record by one party: an embedding, a noisy one, masked words, or a share.

    The attacker knows all features of some records at this party, and fits a ridge regression from the words of their
    uploads, as real numbers, to the features. A mask that hides an upload leaves R² at 0.

    Args:
        party: the attacked party.
        known: records whose features at this party the attacker knows.
        epoch: 1 for the first.
    """

    target: ClassVar[Target] = Target.FEATURES

    def __init__(self, party: int = 2, known: int = 1000, epoch: int = 1) -> None:
        self.party = party
        self.known = known
        self.epoch = epoch

    @property
    def needs(self) -> Needs:
        return Needs(records=self.known)

    def run(self, seen: Seen, known: Known) -> Guesses:
        if known.features is None:
            raise TypeError("SingleUpload needs known features")
        found = []
        for entry in seen.transcript.find(way="up", sender=self.party, epoch=self.epoch):
            value = entry.value
            if value.dim() == 3 and value.shape[1] == len(entry.ids):  # segments, rows, columns
                value = value.transpose(0, 1).flatten(1)
            if value.dim() == 2 and len(value) == len(entry.ids):
                found.append((entry, value))
        kinds = list(dict.fromkeys(entry.kind for entry, _ in found))
        if not kinds:
            raise NothingSeen("no upload has a row for each record")
        ids, rows = by_record(replace(entry, value=value) for entry, value in found if entry.kind == kinds[0])
        place = torch.full((seen.records,), -1)
        place[ids] = torch.arange(len(ids))
        mine = place[known.ids] >= 0
        if int(mine.sum()) < 10:
            raise NothingSeen("the uploads of fewer than ten known records are seen")
        guesses = ridge_guesses(rows, known.features[mine], place[known.ids[mine]])
        return Guesses(ids, guesses, f"one upload of a record ({kinds[0]}), {int(mine.sum()):,} known records")
