"""Embeddings and labels of cascade training, from the gradient of a top: an honest one, or one that is made up."""

from abc import ABC
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lightning_vfl.audit.attack import Attack, Guesses, Known, NotAttacked, NothingSeen, Seen, Target
from lightning_vfl.audit.attacks.labels import TOP_GRADIENTS
from lightning_vfl.audit.transcript import Entry

TOP = "top"  # kind of the message with which the collaborator sends its top back
CLOSE = 0.01  # an embedding is recovered if the relative error of its L2 norm is at most this
ZERO = 1e-4  # of the largest entry of a row: float32 leaves less of an entry that is zero
APART = 0.03  # the least singular value of directions of different records: inexact copies of one have a smaller one
FITS = 0.05  # the largest relative residual of a row of one record: the known top may be a step old
# of a top that is made up
SMALL = 1e-4  # of the weights to the outputs, so that all classes stay equally likely
ALONE = 0.01  # a difference is that of one record where it is f_y but for this share
KEPT = 16  # measurements for each unit, of the last records that were read


@dataclass
class FromTopGradients(Attack, ABC):
    """An attack on the joined embeddings of some rounds of one epoch, by a collaborator that is sent gradients.

    Args:
        epoch: 1 for the first.
        rounds: the largest number of rounds that are attacked.
    """

    target = Target.JOINED
    epoch: int = 1
    rounds: int = 20

    def _sent(self, seen: Seen) -> tuple[nn.Module, list[Entry]]:
        """The top, and its gradients in this epoch.

        Raises:
            NothingSeen: if the attacker is sent none.
        """
        gradients = list(seen.transcript.find(TOP_GRADIENTS, "up", epoch=self.epoch))
        if seen.top is None or not gradients:
            raise NothingSeen("no gradient of the top is sent")
        return seen.top, gradients

    def _guesses(self, gradients: Sequence[Entry], embeddings: list[Tensor], what: str) -> Guesses:
        """Guesses of the embeddings (R, D) of each of these rounds."""
        rounds = torch.tensor([one.round for one in gradients])
        largest = max(len(one.ids) for one in gradients)
        where = f"in {len(gradients)} rounds of epoch {self.epoch}, batches of at most {largest} records"
        return Guesses(rounds, pad_sequence(embeddings, True, torch.nan), f"{what} {where}")


@dataclass
class TopGradientInversion(FromTopGradients):
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

    tries: int = 20_000

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return (kind, way) in ((TOP_GRADIENTS, "up"), (TOP, "down")) and epoch == self.epoch

    def run(self, seen: Seen, known: Known) -> Guesses:
        top, gradients = self._sent(seen)
        places = Places.of(top)
        most = min(places.largest_batch, self.tries.bit_length())  # B with 2^(B - 1) <= tries
        suitable = [one for one in gradients if len(one.ids) <= most]
        if not suitable:
            records = min(len(one.ids) for one in gradients)
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
            before = [sent for sent in tops if sent.receiver == one.sender and sent.round < one.round]
            sent = (before[-1:] or tops[:1]) if places.behind else []  # the first one of all is a step too new
            behind = sent[0].value[places.behind].view(-1, len(biases)).T.double() if sent else None
            found.append(embeddings_of(weights, biases, len(one.ids), self.tries, behind))
        return self._guesses(taken, found, "gradients of the top")


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


@dataclass
class ChosenTop(FromTopGradients):
    """A collaborator that sends active parties a top of its own reads embeddings of large batches, with their labels.

    All units of the first layer measure one direction v of the joined embedding h, with falling biases: unit k is on
    where v h > t_k. The weights behind them are so small that all classes stay equally likely, and a record of class y
    moves every unit that it has switched on by f_y. So the gradients of two neighbouring units differ by the records
    between t_k and t_{k+1} alone. Where this is one record, the difference of the biases' gradients is f_y, which gives
    y, and that of the weights' gradients divided by it is h. Of a batch of B records and as many as U units, e^(-B/U)
    are alone. What is read gives the thresholds of the next round, so that nothing has to be known of the embeddings.

    The attack asks what an active party would have answered to its tops in rounds of the training, whose own tops are
    honest. Parties notice nothing: the gradient is what they would send.

    Not covered: tops of other layers than two linear ones with ReLU between them, and losses other than cross entropy.
    These are reported as not attacked, or find nothing.

    Args:
        epoch: 1 for the first.
        rounds: the largest number of rounds that are attacked.
        first: rounds before these, in which thresholds are found; at most half of those of the epoch.

    References:
        Fowl, Geiping, Czaja, Goldblum, Goldstein, "Robbing the Fed: Directly Obtaining Private Data in Federated
        Learning with Modified Models", ICLR 2022, with embeddings in place of pictures.
    """

    rounds: int = 40
    first: int = 8

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return (kind, way) == (TOP_GRADIENTS, "up") and epoch == self.epoch

    def run(self, seen: Seen, known: Known) -> Guesses:
        top, gradients = self._sent(seen)
        if seen.answer is None:
            raise NothingSeen("no top is sent")
        steps = Staircase(top, seen.classes)
        first = min(self.first, len(gradients) // 2)
        taken = gradients[: first + self.rounds]
        found = []
        for one in taken:
            answer = seen.answer(one.round, steps.top())
            embeddings, _ = steps.read(answer, len(one.ids))
            found.append(embeddings)
        return self._guesses(taken[first:], found[first:], "answers to tops of its own")


class Staircase:
    """Makes tops whose units are on above rising thresholds, and reads their gradients.

    Args:
        top: the top of the recipe, for its shapes.
        classes: C.

    Raises:
        NotAttacked: for a top of other layers, and labels that are no classes.
    """

    def __init__(self, top: nn.Module, classes: int) -> None:
        self.places = Places.of(top)
        layers = [layer for layer in top.modules() if not [*layer.children()]]
        if [type(layer) for layer in layers] != [nn.Linear, nn.ReLU, nn.Linear] or classes < 2:
            raise NotAttacked("the top is not two linear layers with ReLU between them, for classes")
        self.shapes = [tuple(parameter.shape) for parameter in top.parameters()]
        self.units, width = self.shapes[0]
        outputs = self.shapes[2][0]
        generator = torch.Generator().manual_seed(0)
        self.direction = torch.randn(width, generator=generator)
        self.behind = SMALL * torch.randn(outputs, generator=generator) / self.units
        self.measured = torch.randn(self.units, generator=generator)  # v h of records, as far as known
        # the gradient of the loss of one record by its outputs, where all classes are equally likely
        label = torch.eye(outputs) if outputs > 1 else torch.tensor([[0.0], [1.0]])
        self.moves = ((1 / max(outputs, 2) - label) @ self.behind).double()  # (C,) f_y of a batch of one

    def top(self) -> Tensor:
        """(P,) the parameters of the next top, in the order of the recipe's."""
        shares = (torch.arange(self.units) + 0.5) / self.units
        parts = [self.direction.repeat(self.units), -self.measured.quantile(shares)]
        parts += [self.behind[:, None].repeat(1, self.units).flatten(), torch.zeros(len(self.behind))]
        return torch.cat(parts[: len(self.shapes)])

    def read(self, gradient: Tensor, records: int) -> tuple[Tensor, Tensor]:
        """Embeddings (R, D) and labels (R,) of the records of a batch that are alone between two thresholds."""
        biases = gradient[self.places.bias].double()
        weights = gradient[self.places.weight].double().view(self.units, -1)
        between = biases.diff(append=torch.zeros(1)).neg()  # of the records above a threshold and below the next
        summed = weights.diff(dim=0, append=torch.zeros_like(weights[:1])).neg()
        moved = between.abs() > 1e-3 * SMALL / self.units / records
        between = between[moved]
        summed = summed[moved]
        measured = summed @ self.direction.double() / between  # of one record, v h; of several, a mean of theirs
        usable = measured[measured.abs() < 1e3 * self.direction.norm()].float()
        self.measured = torch.cat([self.measured, usable])[-KEPT * self.units :]
        own = self.moves / records
        off = (between[:, None] - own).abs() / own.abs()
        alone = off.amin(1) < ALONE
        return summed[alone] / between[alone, None], off.argmin(1)[alone]
