"""Labels from the gradients of all epochs: what repeats from epoch to epoch is the label, and not the noise."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target, asked_for, cosines
from lightning_vfl.audit.attacks.gradients import epochs_of, reads_gradients, sent_gradients
from lightning_vfl.audit.transcript import places

TINY = torch.finfo(torch.float64).tiny
WIDEST = 1024  # numbers of a record in all epochs; of more, the last epochs are taken


@dataclass
class LabelsOverEpochs(Attack):
    """A record has the same label in every epoch, and the noise in its gradients is drawn anew.

    The gradients of a record in all epochs stand side by side, g = (g_1, ..., g_T), each of length 1, and records are
    scored by g · v. With C classes the attacker takes the C - 1 directions v that are largest in the sum of g gᵀ over
    all records, of which the blocks of one epoch are left out: noise that is independent between epochs adds to these
    blocks alone. For two classes it also tries the mean of g, which is not zero where one class is rarer, and the mean
    over records and epochs. It takes the v whose scores in odd and in even epochs agree best, for records that are not
    those from which v was found; labels are not used.

    Two classes: the sign of the scores is that of ``known`` records of class 1. More classes: the score of a class is
    the mean cosine with ``known`` records of it. With no known record, the attacker knows the share of each class. Two
    classes: the rarer class has the larger scores. More classes: the records fall into C clusters, and of all ways to
    name the clusters the attacker takes the likeliest for these shares, so classes of equal shares are mixed up.

    Args:
        known: k, records with a known label: of class 1 for two classes, of each class otherwise; 0: none.
        sizes: keep the lengths of gradients. They tell more where noise is added along one direction (``Marvell``), and
            less where labels are changed (``RandomizedResponse``).

    References:
        Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022, section 3.2, for one epoch
        and one known label.
        Jiang, Fu, Luo, Liu, "LEA: Label Enumeration Attack in Vertical Federated Learning", 2026,
        https://arxiv.org/abs/2603.03777 (clusters and the names of clusters; it names them by simulated trainings,
        which need the top's initial weights).
    """

    target = Target.CLASSES
    known: int = 1
    sizes: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(labels_per_class=self.known, positives=self.known, prior=not self.known)

    def choices(self, epochs: int) -> Sequence[Mapping[str, Any]]:
        return [{"sizes": False}, {"sizes": True}]

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return reads_gradients(kind, way)

    def run(self, seen: Seen, known: Known) -> Guesses:
        epochs = epochs_of(seen)
        ids, scores = self._scores(seen, epochs)
        saw = f"gradients of {len(epochs)} epochs"
        if not self.known:
            shares = asked_for(known.prior)
            return Guesses(ids, _named_by_shares(scores, shares), f"{saw}, the share of each class")
        place = places(ids, seen.records)[known.ids]
        there = place >= 0
        if seen.classes == 2:
            column = scores[:, 0]
            return Guesses(ids, column * column[place[there]].sum().sign(), saw)
        labels = asked_for(known.labels)[there]
        alike = cosines(scores, scores[place[there]])
        values = [alike[:, labels == c].mean(1).nan_to_num(-1.0) for c in range(seen.classes)]
        return Guesses(ids, torch.stack(values, 1), saw)

    def _scores(self, seen: Seen, epochs: list[int]) -> tuple[Tensor, Tensor]:
        """The records (n,) with gradients, and their scores (n, r) along r = C - 1 directions.

        Raises:
            NothingSeen: if there are no gradients.
        """
        if not epochs:
            sent_gradients(seen, 1)
            raise NothingSeen("no gradient of a record is sent")
        tables: list[Tensor] = []
        taken = torch.zeros(seen.records, dtype=torch.bool)
        for epoch in reversed(epochs):
            ids, rows = sent_gradients(seen, epoch)
            if tables and rows.shape[1] * (len(tables) + 1) > WIDEST:
                break
            table = rows.new_zeros(seen.records, rows.shape[1])
            table[ids] = rows / rows.norm().clamp(min=TINY) if self.sizes else normalize(rows, dim=1)
            tables.append(table)
            taken[ids] = True
        beside = torch.cat(tables, 1)
        return taken.nonzero().flatten(), (beside @ _directions(beside, len(tables), max(2, seen.classes) - 1))[taken]


def _named_by_shares(scores: Tensor, shares: Tensor) -> Tensor:
    """Guesses (n,) for two classes, else (n, C), from scores (n, C - 1) and the share (C,) of each class."""
    if len(shares) == 2:
        column = scores[:, 0]
        rarer_is_larger = (column**3).sum().sign()
        return column * rarer_is_larger * (1 if shares[1] <= 0.5 else -1)
    from scipy.optimize import linear_sum_assignment
    from sklearn.cluster import KMeans

    clusters = KMeans(len(shares), n_init=10, random_state=0).fit(normalize(scores, dim=1).numpy())
    sizes = torch.from_numpy(clusters.labels_).bincount(minlength=len(shares))
    likelihood = sizes[:, None] * shares.clamp(min=TINY).log()
    _, class_of = linear_sum_assignment(likelihood.numpy(), maximize=True)
    distances = torch.from_numpy(clusters.transform(normalize(scores, dim=1).numpy()))
    return -distances[:, class_of.argsort()]


def _directions(rows: Tensor, epochs: int, number: int) -> Tensor:
    """(T W, r) directions for rows (N, T W) of T epochs."""
    if number > 1 or epochs == 1:
        return _repeating(rows, epochs, number)
    halves = rows[::2], rows[1::2]

    def agreement(find: Callable[[Tensor, int], Tensor]) -> float:
        """How well odd and even epochs agree, for directions that were found in the other half of the records."""
        crossed = zip(halves, reversed(halves), strict=True)
        return sum(_agreement(one, find(other, epochs), epochs) for one, other in crossed)

    best = max((_repeating, _mean, _mean_of_epochs), key=agreement)
    return best(rows, epochs)


def _repeating(rows: Tensor, epochs: int, number: int = 1) -> Tensor:
    products = rows.T @ rows
    if epochs > 1:
        width = rows.shape[1] // epochs
        for block in products.unfold(0, width, width).unfold(1, width, width).diagonal(0, 0, 1).movedim(-1, 0):
            block.zero_()
    vectors: Tensor = torch.linalg.eigh(products)[1]
    return vectors[:, -number:]


def _mean(rows: Tensor, epochs: int) -> Tensor:
    return rows.mean(0)[:, None]


def _mean_of_epochs(rows: Tensor, epochs: int) -> Tensor:
    return rows.mean(0).view(epochs, -1).mean(0).repeat(epochs)[:, None]


def _agreement(rows: Tensor, direction: Tensor, epochs: int) -> float:
    """The correlation of the scores (N,) in odd epochs with those in even ones."""
    scores = (rows * direction[:, 0]).view(len(rows), epochs, -1).sum(2)
    found = torch.corrcoef(torch.stack([scores[:, ::2].sum(1), scores[:, 1::2].sum(1)]))[0, 1]
    return float(found.nan_to_num(-1.0))
