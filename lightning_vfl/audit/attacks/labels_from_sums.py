"""Labels from sums over batches, by a party that collects the equations of several epochs."""

from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target
from lightning_vfl.audit.transcript import Entry
from lightning_vfl.downlinks.batch_sums import SUMS
from lightning_vfl.networks.linear_form import linear_form

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_WANDERS = 1 / 3  # how far a prediction moves in the training, as a share of one label: the noise of the equations


class LabelsFromSums(Attack):
    r"""The gradient of a party's weights over a batch is F equations about the labels of its records.

    With two classes the gradients of all records point nearly along one direction v, with factors p_b - y_b of the
    prediction and the label. The party takes v from the largest singular vector of all sums of an epoch, on the side of
    the epoch before, and the factors for constant over the epochs. It solves

    .. math:: \sum_{b \in B_t} x_{bf} r_b = (S_t v_t)_f \qquad \text{for all rounds } t \text{ and columns } f

    for r by damped least squares; the guess of a label is -r. Records of class 1 that it knows fix the sign.

    Args:
        epochs: how many epochs it collects.
        known: records of class 1 that it knows.

    References:
        Zou, Liu, Kang, Liu, He, Yi, Yang, Zhang, "Defending Batch-Level Label Inference and Replacement Attacks in
        Vertical Federated Learning", IEEE Transactions on Big Data, 2022 (inference from the gradient of one batch).
    """

    target: ClassVar[Target] = Target.RANKS

    def __init__(self, epochs: int = 10, known: int = 10) -> None:
        self.epochs = epochs
        self.known = known

    @property
    def needs(self) -> Needs:
        return Needs(labels_per_class=self.known, positives=self.known)

    def run(self, seen: Seen, known: Known) -> Guesses:
        if known.labels is None:
            raise TypeError("LabelsFromSums needs known labels")
        found = [self._equations(seen, party) for party in seen.attacker.parties]
        sides = [side for _, side in found if len(side)]
        if not sides:
            raise NothingSeen("no sums over batches are sent")
        from scipy.sparse import vstack
        from scipy.sparse.linalg import lsqr

        matrix = vstack([rows for rows, side in found if len(side)]).tocsr()
        batch = matrix.getnnz() / matrix.shape[0]
        factors = lsqr(matrix, np.concatenate(sides), damp=_WANDERS * sqrt(batch), iter_lim=300)[0]
        guesses = torch.from_numpy(-factors)
        mine = known.ids[known.labels == 1]
        if guesses[mine].mean() < guesses.mean():
            guesses = -guesses
        return Guesses(torch.arange(seen.records), guesses, f"{matrix.shape[0]:,} equations of {self.epochs} epochs")

    def _equations(self, seen: Seen, party: int) -> tuple["csr_matrix", "np.ndarray[tuple[int], np.dtype[np.float64]]"]:
        """The equations of one party: a matrix (E, N) and its right side (E,)."""
        from scipy.sparse import csr_matrix

        form = linear_form(seen.bottoms[party])
        entries = [
            entry for entry in seen.transcript.find(SUMS, "own", receiver=party) if 1 <= entry.epoch <= self.epochs
        ]
        if form is None or not entries:
            return csr_matrix((0, seen.records)), np.zeros(0)
        basis = form.expand(seen.features[party].float()).double()
        directions = _directions(entries)
        data, columns, sides = [], [], []
        for entry in entries:
            sides.append(entry.value.double() @ directions[entry.epoch])
            data.append(basis[entry.ids].T.reshape(-1))
            columns.append(entry.ids.repeat(basis.shape[1]))
        lengths = np.repeat([len(entry.ids) for entry in entries], basis.shape[1])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        matrix = csr_matrix((torch.cat(data).numpy(), torch.cat(columns).numpy(), starts), (len(lengths), seen.records))
        return matrix, torch.cat(sides).numpy()


def _directions(entries: Sequence[Entry]) -> dict[int, Tensor]:
    """(D,) by epoch: the largest singular vector of its sums, turned to the side of the epoch before."""
    found, before = dict[int, Tensor](), None
    for epoch in sorted({entry.epoch for entry in entries}):
        sums = torch.cat([entry.value.double() for entry in entries if entry.epoch == epoch])
        own = torch.linalg.svd(sums, full_matrices=False).Vh[0]
        before = found[epoch] = -own if before is not None and float(own @ before) < 0 else own
    return found
