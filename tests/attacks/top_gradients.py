"""Embeddings of ``CascadeVFL`` from the gradient of the top, which the collaborator is sent.

``Honest`` takes a batch apart that is smaller than the first layer of the top is wide (SPEAR, Dimitrov et al., NeurIPS
2024). The gradient of its weights is G' H, with the embeddings H (B, D) and the gradients G (B, units), and has rank B.
ReLU makes G sparse: a vector q that makes L q zero at B - 1 random units, where L R is any factorisation, makes it zero
at many more if these units are off for one record. That L q is then a row of G up to a factor, and B of them give H.
The gradient of the bias, the sum of the rows of G, gives the factors.

``Lying`` sends active parties a top of its own, and reads labels too ("Robbing the Fed", Fowl et al., ICLR 2022, with
embeddings in place of pictures). All units of the first layer measure one direction v of the joined embedding h, with
falling biases: unit k is on where v h > t_k. All units have one weight u_c to class c, so small that the predicted
probabilities stay 1/C, and a record of class y moves every unit that it has switched on by f_y = (mean(u) - u_y) / B.
So the gradients of two neighbouring units differ by the records between t_k and t_{k+1} alone. Where this is one
record, the difference of the biases' gradients is f_y, which gives y, and that of the weights' gradients divided by it
is h. What is read gives the thresholds of the next event, so nothing has to be known of the embeddings.
"""

import tempfile
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from lightning_vfl import CascadeVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.datamodules import Digits
from lightning_vfl.networks import MLP
from lightning_vfl.protocols.cascade.events import Ends
from lightning_vfl.types import Event, VerticalBatch
from tests.attacks.row import Row
from tests.subjects import trainer

CLASSES, UNITS, BATCH = 10, 64, 32
CLOSE = 0.01  # an embedding is read where the relative error of its L2 norm is at most this
EVENTS = 8
SAME = "the same: nothing protects from it"
SMALL = 1e-4  # of the weights u, so that probabilities stay uniform
ALONE = 0.01  # a difference is that of one record where it is f_y but for this share


class Reads(NamedTuple):
    """What is read of one batch: embeddings (R, D) with labels (R,) or none, and the truth (B, D), (B,)."""

    embeddings: Tensor
    labels: Tensor
    true_embeddings: Tensor
    true_labels: Tensor

    @property
    def right(self) -> Tensor:
        """(R, B), whether a read has the embedding of a record, and its label if labels are read."""
        true = self.true_embeddings.double()
        close = torch.cdist(self.embeddings.double(), true) < CLOSE * true.norm(dim=1)
        same = self.labels[:, None] == self.true_labels if len(self.labels) else True
        return torch.logical_and(close, torch.as_tensor(same))


class Honest:
    """Reads the gradients of the top as it is."""

    tries = 20_000  # sets of units

    def top(self) -> None:
        """It leaves the top alone."""

    def read(self, gradients: list[Tensor], records: int) -> tuple[Tensor, Tensor]:
        """Embeddings (B, D) of a batch, in any order and without labels; none if it finds fewer directions."""
        used = gradients[1] != 0  # a unit that is off for all records tells nothing
        weights, biases = gradients[0][used].double(), gradients[1][used].double()
        nothing = torch.zeros(0, dtype=torch.long)
        u, sizes, v = torch.linalg.svd(weights, full_matrices=False)
        left, right = u[:, :records] * sizes[:records], v[:records]
        generator = torch.Generator().manual_seed(0)
        units = torch.rand(self.tries, len(left), generator=generator).argsort(1)[:, : records - 1]
        vectors = torch.linalg.svd(left[units], full_matrices=True)[2][:, -1]  # (tries, B), each zero at its units
        values = (vectors @ left.T).abs()
        off = (values < 1e-4 * values.amax(1, keepdim=True)).sum(1)
        directions = vectors[:0]
        for vector in vectors[off.argsort(descending=True)]:  # the sparsest first: of one record, not of two
            if len(directions) == records:
                break
            more = torch.cat([directions, vector[None]])
            if torch.linalg.svdvals(more)[-1] > 1e-3:
                directions = more
        if len(directions) < records:
            return right[:0], nothing
        factors = torch.linalg.lstsq(left @ directions.T, biases[:, None]).solution[:, 0]
        return torch.linalg.pinv(directions.T * factors) @ right, nothing


class Lying:
    """Makes tops and reads their gradients; ``width`` is that of the joined embedding."""

    def __init__(self, width: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.direction = torch.randn(width, generator=generator)
        self.to_classes = SMALL * torch.randn(CLASSES, generator=generator)
        self.measured = torch.randn(UNITS, generator=generator)  # v h of records, as far as known

    def top(self) -> list[Tensor]:
        """Weights and biases of the two layers."""
        shares = (torch.arange(UNITS) + 0.5) / UNITS
        self.thresholds = self.measured.quantile(shares)
        rows = self.direction.repeat(UNITS, 1)
        return [rows, -self.thresholds, self.to_classes[:, None].repeat(1, UNITS) / UNITS, torch.zeros(CLASSES)]

    def read(self, gradients: list[Tensor], records: int) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of the records that are alone between two thresholds."""
        weights, biases = gradients[0].double(), gradients[1].double()
        nothing = torch.zeros_like(biases[:1])
        between = biases - torch.cat([biases[1:], nothing])
        summed = weights - torch.cat([weights[1:], torch.zeros_like(weights[:1])])
        moved = between.abs() > 1e-3 * SMALL / UNITS / records
        between, summed = between[moved], summed[moved]
        places = summed @ self.direction.double() / between  # of one record, v h; of several, a mean of theirs
        inside = places.abs() < 1e3
        self.measured = torch.cat([self.measured, places[inside].float()])[-16 * UNITS :]
        own = (self.to_classes.mean() - self.to_classes).double() / UNITS / records
        off = (between[:, None] - own).abs() / own.abs()
        alone = off.amin(1) < ALONE
        return summed[alone] / between[alone, None], off.argmin(1)[alone]


def reads(attacker: Honest | Lying, batch: int, events: int) -> list[Reads]:
    """What the collaborator reads in the events of a real run with the networks of the recipe ``protocol/cvfl``."""
    torch.manual_seed(0)
    bottom, top = partial(MLP, hidden=[64]), partial(MLP, hidden=[UNITS])
    sgd = partial(torch.optim.SGD, lr=0.05)
    module = CascadeVFL(Concat(), bottom=bottom, top=top, width=32, optimizer=sgd, seed=0)
    seen: list[Reads] = []
    differentiate = Ends.differentiate

    def noting(self: Ends, leaves: tuple[Tensor, ...], batch: VerticalBatch, event: Event, *rest: Any) -> Any:
        crafted = attacker.top()
        if crafted is not None:
            with torch.no_grad():
                for parameter, sent in zip(self.memory.replicas.of[event.party].top_parameters, crafted, strict=True):
                    parameter.copy_(sent)
        found = differentiate(self, leaves, batch, event, *rest)
        if batch.labels is not None:
            read = attacker.read(found[0][len(leaves) :], len(batch.labels))
            seen.append(Reads(*read, torch.cat(leaves, 1).detach(), batch.labels))
        return found

    with patch.object(Ends, "differentiate", noting), tempfile.TemporaryDirectory() as folder:
        run = trainer(folder, max_epochs=1, limit_val_batches=0, limit_train_batches=events)
        run.fit(module, datamodule=Digits(batch_size=batch))
    return seen


def shares(seen: list[Reads]) -> tuple[float, float]:
    """The share of the embeddings that are read, and that of the reads that are right."""
    records, found = sum(len(one.true_labels) for one in seen), sum(int(one.right.any(0).sum()) for one in seen)
    tried, true = sum(len(one.embeddings) for one in seen), sum(int(one.right.any(1).sum()) for one in seen)
    return found / records, true / max(tried, 1)


def rows() -> list[Row]:
    """The rows of the page."""
    made = []
    for batch in (4, 8, 12):
        found, _ = shares(reads(Honest(), batch, EVENTS))
        attack = f"embeddings of `CascadeVFL` from the gradient of the top (Digits, batches of {batch}, {UNITS} units)"
        made.append(Row(attack, "gradients of the top; honest collaborator", f"{found:.0%} of embeddings", SAME, "0%"))
    found, right = shares(reads(Lying(4 * 32), BATCH, 5 * EVENTS)[EVENTS:])  # the first ones find the thresholds
    attack = f"the same, from that of a top of its own (batches of {BATCH})"
    success = f"{found:.0%} of embeddings with their labels; {right:.0%} of what is read is right"
    return [*made, Row(attack, "gradients of the top; lying collaborator", success, SAME, "0%")]
