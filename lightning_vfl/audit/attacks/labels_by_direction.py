"""Labels from the directions of gradients, with a few known labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, Seen, Target, asked_for, cosines
from lightning_vfl.audit.attacks.gradients import reads_gradients, sent_gradients
from lightning_vfl.audit.transcript import places


@dataclass
class LabelsByDirection(Attack):
    """Gradients of records of one class point in similar directions.

    Two classes: the attacker knows ``known`` records of class 1 and none of class 0. The guess is the mean cosine with
    their gradients. More classes: it knows ``known`` records of each class; the score of a class is the mean cosine
    with its records.

    Args:
        known: k, records with a known label: of class 1 for two classes, of each class otherwise.
        epoch: 1 for the first.

    References:
        Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022, section 3.2 (cosine).
    """

    target = Target.CLASSES
    known: int = 1
    epoch: int = 1

    @property
    def needs(self) -> Needs:
        return Needs(labels_per_class=self.known, positives=self.known)

    def choices(self, epochs: int) -> Sequence[Mapping[str, Any]]:
        return [{"epoch": epoch} for epoch in sorted({1, (epochs + 1) // 2, epochs})]

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return reads_gradients(kind, way)

    def run(self, seen: Seen, known: Known) -> Guesses:
        ids, rows = sent_gradients(seen, self.epoch)
        place = places(ids, seen.records)[known.ids]
        there = place >= 0
        labels = asked_for(known.labels)[there]
        alike = cosines(rows, rows[place[there]])
        classes = [1] if seen.classes == 2 else range(seen.classes)
        # -1, the smallest cosine, for a class of which no known record is seen
        scores = [alike[:, labels == c].mean(1).nan_to_num(-1.0) for c in classes]
        values = scores[0] if len(scores) == 1 else torch.stack(scores, 1)
        return Guesses(ids, values, f"gradients of epoch {self.epoch}")
