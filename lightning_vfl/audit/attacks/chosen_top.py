"""Embeddings and labels of cascade training, from the gradient of a top that a lying collaborator has made up."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lightning_vfl.audit.attack import Attack, Guesses, Known, NotAttacked, NothingSeen, Seen, Target
from lightning_vfl.audit.attacks.labels import TOP_GRADIENTS
from lightning_vfl.audit.attacks.top_gradients import Places

SMALL = 1e-4  # of the weights to the outputs, so that all classes stay equally likely
ALONE = 0.01  # a difference is that of one record where it is f_y but for this share
KEPT = 16  # measurements for each unit, of the last records that were read


@dataclass
class ChosenTop(Attack):
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

    target = Target.JOINED
    epoch: int = 1
    rounds: int = 40
    first: int = 8

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return (kind, way) == (TOP_GRADIENTS, "up") and epoch == self.epoch

    def run(self, seen: Seen, known: Known) -> Guesses:
        entries = list(seen.transcript.find(TOP_GRADIENTS, "up", epoch=self.epoch))
        if seen.top is None or seen.answer is None or not entries:
            raise NothingSeen("no gradient of the top is sent")
        steps = Staircase(seen.top, seen.classes)
        first = min(self.first, len(entries) // 2)
        rounds, found, records = [], [], 0
        for place, one in enumerate(entries[: first + self.rounds]):
            gradient = seen.answer(one.round, steps.top())
            embeddings, _ = steps.read(gradient, len(one.ids))
            if place >= first:
                rounds.append(one.round)
                found.append(embeddings)
                records = max(records, len(one.ids))
        saw = f"answers to tops of its own in {len(rounds)} rounds of epoch {self.epoch}, batches of up to {records}"
        return Guesses(torch.tensor(rounds), pad_sequence(found, True, torch.nan), saw)


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
