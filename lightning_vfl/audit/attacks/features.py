"""Features and embeddings of a party, by a regression from known records."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.audit.attack import (
    FromKnownRecords,
    Guesses,
    Known,
    NothingSeen,
    Seen,
    Target,
    asked_for,
    known_places,
)
from lightning_vfl.audit.transcript import AGGREGATES, by_record, side_by_side

ALPHAS = np.logspace(-4, 6, 21)
FEWEST = 10  # known records


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
    listens = ((AGGREGATES, "own"),)
    epochs: int | str = "all"

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
    listens = ((AGGREGATES, "own"),)

    def run(self, seen: Seen, known: Known) -> Guesses:
        last = max(seen.transcript.epochs(), default=0)
        ids, rows = by_record(seen.transcript.find(AGGREGATES, epoch=last))
        if not len(ids):
            raise NothingSeen("no aggregate is computed")
        return guesses_from_known(seen, known, ids, rows, f"aggregates of epoch {last}", "known embeddings")


@dataclass
class SingleUpload(FromKnownRecords):
    """The first upload of every record by one party: an embedding, a noisy one, masked words, or a share.

    The attacker knows all features of some records at this party, and fits a ridge regression from the words of their
    uploads, as real numbers, to the features. A mask that hides an upload leaves R² at 0.

    Args:
        party: the attacked party.
        known: records whose features at this party the attacker knows.
        epoch: 1 for the first.
    """

    target = Target.FEATURES
    epoch: int = 1

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return (way, sender, epoch) == ("up", self.party, self.epoch)

    def run(self, seen: Seen, known: Known) -> Guesses:
        uploads = []
        for entry in seen.transcript.find(way="up", sender=self.party, epoch=self.epoch):
            value = entry.value
            if value.dim() == 3 and value.shape[1] == len(entry.ids):  # segments, rows, columns
                value = value.transpose(0, 1).flatten(1)
            if value.dim() == 2 and len(value) == len(entry.ids):
                uploads.append(replace(entry, value=value))
        if not uploads:
            raise NothingSeen("no upload has a row for each record")
        kind = uploads[0].kind
        ids, rows = by_record(entry for entry in uploads if entry.kind == kind)
        return guesses_from_known(seen, known, ids, rows, f"one upload of a record ({kind})")


def guesses_from_known(
    seen: Seen, known: Known, ids: Tensor, rows: Tensor, saw: str, known_as: str = "known records"
) -> Guesses:
    """Guesses for all records ``ids`` from their rows (n, D), by ``ridge_guesses`` from the known records.

    Raises:
        NothingSeen: if the rows of fewer than ten known records are seen.
    """
    place, there = known_places(seen, known, ids)
    if len(place) < FEWEST:
        raise NothingSeen(f"the messages of fewer than ten {known_as} are seen")
    guesses = ridge_guesses(rows, asked_for(known.features)[there], place)
    return Guesses(ids, guesses, f"{saw}, {len(place):,} {known_as}")


def ridge_guesses(inputs: Tensor, targets: Tensor, train: Tensor) -> Tensor:
    """(n, W) guesses for all rows from a ridge regression on the rows ``train`` (k,), with the best of 21 strengths.

    The strength is chosen for each target by the generalised cross-validation on the known rows alone.

    Args:
        inputs: (n, D); columns are standardised by the known rows.
        targets: (k, W).
        train: positions of the known rows.
    """
    from sklearn.linear_model import RidgeCV

    x, y = inputs.double().numpy(), targets.double().numpy()
    known = x[train.numpy()]
    scale = known.std(0)
    useful = scale > 1e-9 * max(1.0, float(scale.max(initial=0.0)))
    varying = y.std(0) > 1e-9
    guesses = np.broadcast_to(y.mean(0), (len(x), y.shape[1])).copy()
    if useful.any() and varying.any():
        mean = known[:, useful].mean(0)
        scale = scale[useful]
        model = RidgeCV(ALPHAS, alpha_per_target=True).fit((known[:, useful] - mean) / scale, y[:, varying])
        guesses[:, varying] = model.predict((x[:, useful] - mean) / scale).reshape(len(x), -1)
    return torch.from_numpy(guesses)
