"""Labels of records, from the gradients that an attacker is sent."""

from abc import ABC
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.audit.attack import (
    Attack,
    Guesses,
    Known,
    Needs,
    NotAttacked,
    NothingSeen,
    Seen,
    Target,
    asked_for,
    cosines,
    known_places,
)
from lightning_vfl.audit.transcript import by_record, side_by_side
from lightning_vfl.errors import ConfigurationError

TOP_GRADIENTS = "top gradients"
TINY = torch.finfo(torch.float64).tiny
WIDEST = 1024  # numbers of a record in all epochs; of more, the last epochs are taken


class FromGradients(Attack, ABC):
    """An attack by a party on the gradients that the server sends it."""

    listens = ((GRADIENTS, "down"),)


def sent_gradients(seen: Seen, epoch: int) -> tuple[Tensor, Tensor]:
    """Records (n,) and rows (n, W): the gradients of an epoch, those of several parties side by side.

    A party of ``LagrangeCoded`` is sent the gradient of the aggregate, which serves as well. A server alone is sent no
    gradients: it computes them from labels that it has.

    Raises:
        NothingSeen: saying whether the attacker is no party, or nothing is sent.
        NotAttacked: if the training has no such epoch.
    """
    parties = seen.attacker.parties
    if not parties:
        raise NothingSeen("gradients are sent to parties, and the attacker is none")
    entries = {party: list(seen.transcript.find(GRADIENTS, "down", receiver=party)) for party in parties}
    tables = [by_record(entry for entry in received if entry.epoch == epoch) for received in entries.values()]
    tables = [(ids, rows) for ids, rows in tables if len(ids)]
    if tables:
        return side_by_side(tables, seen.records)
    epochs = {entry.epoch for received in entries.values() for entry in received}
    if epochs:
        raise NotAttacked(f"the attack takes epoch {epoch}, the training has {min(epochs)} to {max(epochs)}")
    raise NothingSeen("no gradient is sent")


def _three_epochs(epochs: int) -> list[dict[str, int]]:
    """The first epoch, the middle one and the last, as choices."""
    return [{"epoch": epoch} for epoch in sorted({1, (epochs + 1) // 2, epochs})]


def _mean_cosines(rows: Tensor, known: Tensor, labels: Tensor, classes: Iterable[int]) -> Tensor:
    """(n, C) the mean cosine of each row (n, W) with the rows at the places ``known`` (k,), by class."""
    alike = cosines(rows, rows[known])
    # -1, the smallest cosine, for a class of which no known record is seen
    return torch.stack([alike[:, labels == c].mean(1).nan_to_num(-1.0) for c in classes], 1)


@dataclass
class LabelsByNorm(FromGradients):
    """Records of the rarer class have larger gradients, because the model is less certain of them.

    The guess is the norm of the gradient of a record's embedding, in one epoch that is fixed beforehand. The class 1 is
    taken as the rarer one, so the sign is fixed too. No side knowledge.

    Args:
        epoch: 1 for the first.

    Raises:
        ConfigurationError: for more than two classes.

    References:
        Li et al., "Label Leakage and Protection in Two-party Split Learning", ICLR 2022, section 3.1.
    """

    target = Target.RANKS
    epoch: int = 3

    def check(self, seen: Seen) -> None:
        if seen.classes != 2:
            raise ConfigurationError(
                f"LabelsByNorm tells two classes apart, and the data have {seen.classes}; use LabelsByDirection"
            )

    def choices(self, epochs: int) -> Sequence[Mapping[str, Any]]:
        return _three_epochs(epochs)

    def run(self, seen: Seen, known: Known) -> Guesses:
        ids, rows = sent_gradients(seen, self.epoch)
        return Guesses(ids, rows.norm(dim=1), f"gradients of epoch {self.epoch}")


@dataclass
class LabelsByDirection(FromGradients):
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
        return _three_epochs(epochs)

    def run(self, seen: Seen, known: Known) -> Guesses:
        ids, rows = sent_gradients(seen, self.epoch)
        place, there = known_places(seen, known, ids)
        labels = asked_for(known.labels)[there]
        two = seen.classes == 2
        scores = _mean_cosines(rows, place, labels, [1] if two else range(seen.classes))
        return Guesses(ids, scores[:, 0] if two else scores, f"gradients of epoch {self.epoch}")


@dataclass
class LabelsOverEpochs(FromGradients):
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

    def run(self, seen: Seen, known: Known) -> Guesses:
        sent = seen.transcript.find(GRADIENTS, "down")
        parties = seen.attacker.parties
        epochs = sorted({entry.epoch for entry in sent if entry.receiver in parties and len(entry.ids)})
        ids, scores = self._scores(seen, epochs)
        saw = f"gradients of {len(epochs)} epochs"
        if not self.known:
            shares = asked_for(known.prior)
            return Guesses(ids, _named_by_shares(scores, shares), f"{saw}, the share of each class")
        place, there = known_places(seen, known, ids)
        if seen.classes == 2:
            column = scores[:, 0]
            return Guesses(ids, column * column[place].sum().sign(), saw)
        labels = asked_for(known.labels)[there]
        return Guesses(ids, _mean_cosines(scores, place, labels, range(seen.classes)), saw)

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
        number = max(2, seen.classes) - 1
        scores = beside @ _directions(beside, len(tables), number)
        return taken.nonzero().flatten(), scores[taken]


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
        for start in range(0, rows.shape[1], width):  # products of an epoch with itself
            products[start : start + width, start : start + width].zero_()
    vectors: Tensor = torch.linalg.eigh(products)[1]
    return vectors[:, -number:]


def _mean(rows: Tensor, epochs: int) -> Tensor:
    return rows.mean(0)[:, None]


def _mean_of_epochs(rows: Tensor, epochs: int) -> Tensor:
    return rows.mean(0).view(epochs, -1).mean(0).repeat(epochs)[:, None]


def _agreement(rows: Tensor, direction: Tensor, epochs: int) -> float:
    """The correlation of the scores (N,) in odd epochs with those in even ones."""
    scores = (rows * direction[:, 0]).view(len(rows), epochs, -1).sum(2)
    first = scores[:, ::2].sum(1)
    second = scores[:, 1::2].sum(1)
    correlation = torch.corrcoef(torch.stack([first, second]))[0, 1]
    return float(correlation.nan_to_num(-1.0))


class BatchLabelCounts(Attack):
    """The gradient of the last bias is the mean of (p - y) over the batch, so it tells the counts of y.

    The attacker is the collaborator of cascade training, which receives the gradient of the top from an active party.
    It knows the share of each class among all records and takes it for the mean prediction: the guessed count of a
    class is B (share - gradient), for a batch of B records.

    References:
        Wainakh et al., "User-Level Label Leakage from Gradients in Federated Learning", PETS 2022, section 4.
    """

    target = Target.COUNTS
    listens = ((TOP_GRADIENTS, "up"),)

    @property
    def needs(self) -> Needs:
        return Needs(prior=True)

    def run(self, seen: Seen, known: Known) -> Guesses:
        prior = asked_for(known.prior)
        rounds = []
        counts = []
        for entry in seen.transcript.find(TOP_GRADIENTS, "up"):
            batch = len(entry.ids)
            if seen.classes == 2:  # one output, for class 1
                positive = batch * (prior[1] - entry.value[-1].double())
                counts.append(torch.stack([batch - positive, positive]))
            else:
                counts.append(batch * (prior - entry.value[-seen.classes :].double()))
            rounds.append(entry.round)
        if not rounds:
            raise NothingSeen("no gradient of the top is sent")
        return Guesses(torch.tensor(rounds), torch.stack(counts), f"gradients of the top in {len(rounds):,} rounds")
