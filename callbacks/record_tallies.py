"""Counts for the record of a run: outcomes of an evaluation, and the rounds that each party learns from."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

SCORE_BINS = 200  # of probabilities between 0 and 1
MOST_PAIRS = 2000  # pairs of labels and predicted values that are kept


class Outcomes:
    """What an evaluation has predicted, in a size that does not depend on the number of records.

    Args:
        classes: C; None for real-valued labels.

    Kept are, for several classes, the records (C, C) by label and predicted class; for two classes also the records by
    label and probability in ``SCORE_BINS`` equal bins; for real-valued labels, the first ``MOST_PAIRS`` pairs.
    """

    def __init__(self, classes: int | None) -> None:
        self.classes = classes
        self.confusion = np.zeros((classes or 0, classes or 0), np.int64)
        self.scores = np.zeros((2, SCORE_BINS), np.int64)
        self.pairs: list[tuple[float, float]] = []

    def add(self, predicted: Tensor, labels: Tensor) -> None:
        """Count a batch: predictions (B,) or (B, C), labels (B,)."""
        given, truth = predicted.detach().float().cpu(), labels.detach().cpu()
        if self.classes is None:
            room = MOST_PAIRS - len(self.pairs)
            if room > 0 and given.dim() == 1 and truth.dim() == 1:
                self.pairs += list(zip(truth[:room].tolist(), given[:room].tolist(), strict=True))
            return
        if truth.dim() != 1:
            return
        decided = (given >= 0.5).long() if given.dim() == 1 else given.argmax(1)
        places = truth.long() * self.classes + decided
        self.confusion += torch.bincount(places, minlength=self.classes**2).reshape(self.classes, -1).numpy()
        if given.dim() == 1:
            bins = (given * SCORE_BINS).long().clamp(0, SCORE_BINS - 1) + truth.long() * SCORE_BINS
            self.scores += torch.bincount(bins, minlength=2 * SCORE_BINS).reshape(2, -1).numpy()

    def state(self) -> dict[str, Any]:
        """Plain lists; empty if nothing was counted."""
        if self.classes is None:
            return {"pairs": [list(pair) for pair in self.pairs]} if self.pairs else {}
        if not self.confusion.any():
            return {}
        scores = {"scores": self.scores.tolist()} if self.scores.any() else {}
        return {"confusion": self.confusion.tolist(), **scores}


class Attendance:
    """In how many training rounds each of the M parties has learned."""

    def __init__(self, parties: int) -> None:
        self.learned = [0] * parties
        self.rounds = 0

    def add(self, learners: Any) -> None:
        """Count a round; ``learners``: numbers of the parties that learn, None: all."""
        self.rounds += 1
        for party in range(len(self.learned)) if learners is None else learners:
            self.learned[party] += 1

    def state(self) -> dict[str, Any]:
        """Plain values."""
        return {"rounds": self.rounds, "learned": self.learned}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from earlier counts."""
        self.learned, self.rounds = list(state["learned"]), int(state["rounds"])
