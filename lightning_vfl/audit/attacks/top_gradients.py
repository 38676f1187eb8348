"""Embeddings of cascade training, from the gradient of the top that the collaborator is sent."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lightning_vfl.audit.attack import Attack, Guesses, Known, NotAttacked, NothingSeen, Seen, Target
from lightning_vfl.audit.attacks.labels import TOP_GRADIENTS

TOP = "top"  # kind of the message with which the collaborator sends its top back
CLOSE = 0.01  # an embedding is recovered if the relative error of its L2 norm is at most this
ZERO = 1e-4  # of the largest entry of a row: float32 leaves less of an entry that is zero
APART = 0.03  # the least singular value of directions of different records: inexact copies of one have a smaller one
FITS = 0.05  # the largest relative residual of a row of one record: the known top may be a step old


@dataclass
class TopGradientInversion(Attack):
    """The gradient of the top's first layer tells the joined embeddings of a small batch, all their numbers.

    The attacker is the collaborator of cascade training. It follows the protocol, knows nothing of any record, and
    takes the gradients of some rounds of one epoch apart, each by ``embeddings_of``. What it finds is in no order: it
    does not know which embedding is of which record.

    Not covered: a first layer of the top without a bias, or with another activation than ReLU behind it (but of single
    records); batches of as many records as this layer has units; batches of B records with 2^(B - 1) > ``tries``. These
    are reported as not attacked; ``ChosenTop`` reads embeddings of large batches. Decoupled training sends no gradient
    of a top.

    Args:
        epoch: 1 for the first.
        rounds: the largest number of rounds that are attacked, the first ones of the epoch.
        tries: sets of units that are tried for each round.

    References:
        Dimitrov, Baader, Müller, Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated Learning", NeurIPS
        2024. It attacks the features of a federated training; here embeddings take their place.
    """

    target = Target.JOINED
    epoch: int = 1
    rounds: int = 20
    tries: int = 20_000

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return (kind, way) in ((TOP_GRADIENTS, "up"), (TOP, "down")) and epoch == self.epoch

    def run(self, seen: Seen, known: Known) -> Guesses:
        entries = list(seen.transcript.find(TOP_GRADIENTS, "up", epoch=self.epoch))
        if seen.top is None or not entries:
            raise NothingSeen("no gradient of the top is sent")
        places = Places.of(seen.top)
        suitable = [one for one in entries if self._may_be_tried(len(one.ids), places.largest_batch)]
        if not suitable:
            records = min(len(one.ids) for one in entries)
            raise NotAttacked(
                f"for batches of {records} records, the first layer of the top needs ReLU and more than {records} "
                f"units, and the attack 2^{records - 1} tries in place of {self.tries:,}"
            )
        taken = suitable[: self.rounds]
        tops = list(seen.transcript.find(TOP, "down", epoch=self.epoch))
        found = []
        for one in taken:
            biases = one.value[places.bias].double()
            weights = one.value[places.weight].view(len(biases), -1).double()
            before = [top for top in tops if top.receiver == one.sender and top.round < one.round]
            sent = (before[-1:] or tops[:1]) if places.behind else []  # the first one of all is a step too new
            behind = sent[0].value[places.behind].view(-1, len(biases)).T.double() if sent else None
            found.append(embeddings_of(weights, biases, len(one.ids), self.tries, behind))
        largest = max(len(one.ids) for one in taken)
        saw = f"gradients of the top in {len(taken)} rounds of epoch {self.epoch}, batches of at most {largest} records"
        rounds = torch.tensor([one.round for one in taken])
        return Guesses(rounds, pad_sequence(found, batch_first=True, padding_value=torch.nan), saw)

    def _may_be_tried(self, records: int, most: int) -> bool:
        return records <= most and 2 ** (records - 1) <= self.tries


class Places(NamedTuple):
    """Where the first layer is in a flat gradient of a top, and the second one in a flat top.

    Args:
        weight: of the first layer.
        bias: of the first layer.
        behind: the weights behind the ReLU of the first layer; None: another layer is there.
        largest_batch: the number of records that can be told apart.
    """

    weight: slice
    bias: slice
    behind: slice | None
    largest_batch: int

    @classmethod
    def of(cls, top: nn.Module) -> Self:
        """Find them in a top.

        Raises:
            NotAttacked: if the first layer is not linear, has no bias, or does not learn.
        """
        first, *others = (layer for layer in top.modules() if not [*layer.children()])
        if type(first) is not nn.Linear or first.bias is None:
            raise NotAttacked("the first layer of the top is not linear with a bias")
        learning = [parameter for parameter in top.parameters() if parameter.requires_grad]
        weight, bias = (_place(parameter, learning) for parameter in (first.weight, first.bias))
        if weight is None or bias is None:
            raise NotAttacked("the first layer of the top does not learn")
        sparse = type(others[0]) is nn.ReLU if others else False
        second = others[1] if sparse and len(others) > 1 else None
        behind = _place(second.weight, top.parameters()) if type(second) is nn.Linear else None
        return cls(weight, bias, behind, max(first.out_features - 1, 1) if sparse else 1)


def _place(wanted: Tensor, parameters: Iterable[Tensor]) -> slice | None:
    """Where a parameter is in the flat concatenation of several; None: it is not there."""
    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        if parameter is wanted:
            return slice(begin, end)
        begin = end
    return None


def embeddings_of(weights: Tensor, biases: Tensor, records: int, tries: int, behind: Tensor | None = None) -> Tensor:
    """The inputs (B, D) of a batch of a linear layer with ReLU behind it, in any order; (0, D) if they are not found.

    The gradient of the weights is G' H, with the inputs H (B, D) and the gradients G (B, units) of the layer's outputs,
    and has rank B. ReLU makes G sparse: a vector q that makes L q zero at B - 1 random units, where L R is any
    factorisation, makes it zero at many more if these units are off for one record. That L q is then a row of G up to a
    factor, and B of them give H. The gradient of the biases, the sum of the rows of G, gives the factors.

    With few classes, a sum of several rows is as sparse as one: they cancel where all their records are on. So the
    entries of a row that are not zero must be those of ``behind`` d, with one gradient d (outputs) of a record. This
    replaces the paper's test, that the signs of what the layer makes of H are those of G.

    Args:
        weights: (units, D) the gradient of the weights, in float64.
        biases: (units,) the gradient of the biases.
        records: B.
        tries: sets of units that are tried.
        behind: (units, outputs) the weights of the next layer, transposed; None: they are not known.
    """
    used = biases != 0  # a unit that is off for all records tells nothing
    weights = weights[used]
    if min(weights.shape) < records:
        return weights[:0]
    u, sizes, v = torch.linalg.svd(weights, full_matrices=False)
    left = u[:, :records] * sizes[:records]
    generator = torch.Generator().manual_seed(0)
    units = torch.rand(tries, len(left), generator=generator).argsort(1)[:, : records - 1]
    vectors = torch.linalg.svd(left[units], full_matrices=True)[2][:, -1]  # (tries, B), each zero at its units
    values = (vectors @ left.T).abs()
    off = (values < ZERO * values.amax(1, keepdim=True)).sum(1)
    order = off.argsort(descending=True)[: int((off >= records).sum()) or 1]  # the sparsest first: of one record
    vectors = vectors[order]
    signs = vectors.gather(1, vectors.abs().argmax(1, keepdim=True)).sign()
    _, first = np.unique((vectors * signs).round(decimals=3).numpy(), axis=0, return_index=True)
    vectors = vectors[np.sort(first)[: max(100, tries // 10)]]  # the rest is hardly sparse, and takes most of the time
    directions = vectors[:0] if behind is None else _independent(vectors, left, behind[used])
    if len(directions) < records:
        directions = _independent(vectors, left, None)  # the known top may be too old
    if len(directions) < records:
        return weights[:0]
    factors = torch.linalg.lstsq(left @ directions.T, biases[used, None]).solution[:, 0]
    inputs: Tensor = torch.linalg.pinv(directions.T * factors) @ v[:records]
    return inputs


def _independent(vectors: Tensor, left: Tensor, behind: Tensor | None) -> Tensor:
    """(k, B) the first independent vectors of (n, B), each of one record if ``behind`` is known; k is at most B."""
    directions = vectors[:0]
    for vector in vectors:
        if len(directions) == vectors.shape[1]:
            break
        more = torch.cat([directions, vector[None]])
        new = torch.linalg.svdvals(more)[-1] > APART
        if new and (behind is None or _of_one_record(left @ vector, behind)):
            directions = more
    return directions


def _of_one_record(row: Tensor, behind: Tensor) -> bool:
    """Whether a row (units,) is that of one record, up to a factor; ``behind`` as in ``embeddings_of``."""
    on = row.abs() >= ZERO * row.abs().max()
    gradient = torch.linalg.lstsq(behind[on], row[on, None], driver="gelsy").solution
    return bool((behind[on] @ gradient - row[on, None]).norm() < FITS * row.norm())


def recovered(guesses: Tensor, truth: Tensor) -> Tensor:
    """(..., R, B) bool, whether a guess (..., R, D) is an embedding (..., B, D); what is NaN in either is not."""
    truth = truth.double()
    close: Tensor = torch.cdist(guesses.double(), truth) <= CLOSE * truth.norm(dim=-1).unsqueeze(-2)
    return close
