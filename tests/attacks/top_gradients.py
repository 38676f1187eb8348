"""Embeddings of ``CascadeVFL`` from the gradient of the top, which the collaborator is sent.

An honest collaborator takes small batches apart: ``TopGradientInversion``, an attack of every audit.

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
from lightning.pytorch import Callback
from torch import Tensor

from lightning_vfl import CascadeVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.audit import Finding, TopGradientInversion
from lightning_vfl.audit.attacks.top_gradients import recovered
from lightning_vfl.callbacks import Audit
from lightning_vfl.datamodules import Digits
from lightning_vfl.networks import MLP
from lightning_vfl.protocols.cascade.events import Ends
from lightning_vfl.types import Event, VerticalBatch
from tests.attacks.row import Row
from tests.subjects import trainer

CLASSES, UNITS, BATCH = 10, 64, 32
EVENTS = 8
SAME = "the same: nothing protects from it"
SMALL = 1e-4  # of the weights u, so that probabilities stay uniform
ALONE = 0.01  # a difference is that of one record where it is f_y but for this share


class Reads(NamedTuple):
    """What is read of one batch: embeddings (R, D) with labels (R,), and the truth (B, D), (B,)."""

    embeddings: Tensor
    labels: Tensor
    true_embeddings: Tensor
    true_labels: Tensor

    @property
    def right(self) -> Tensor:
        """(R, B), whether a read has the embedding of a record, and its label."""
        return recovered(self.embeddings, self.true_embeddings) & (self.labels[:, None] == self.true_labels)


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


def fit(batch: int, events: int, *callbacks: Callback) -> None:
    """Train the networks of the recipe ``protocol/cvfl`` in the first events of an epoch."""
    torch.manual_seed(0)
    bottom, top = partial(MLP, hidden=[64]), partial(MLP, hidden=[UNITS])
    sgd = partial(torch.optim.SGD, lr=0.05)
    module = CascadeVFL(Concat(), bottom=bottom, top=top, width=32, optimizer=sgd, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"limit_val_batches": 0, "limit_train_batches": events, "callbacks": list(callbacks)}
        trainer(folder, max_epochs=1, **settings).fit(module, datamodule=Digits(batch_size=batch))


def honest(batch: int, events: int, **settings: int) -> Finding:
    """What an audit finds that an honest collaborator reads."""
    audit = Audit("server", [TopGradientInversion(rounds=events, **settings)])
    fit(batch, events, audit)
    (found,) = audit.findings
    return found


def reads(attacker: Lying, batch: int, events: int) -> list[Reads]:
    """What a lying collaborator reads."""
    seen: list[Reads] = []
    differentiate = Ends.differentiate

    def noting(self: Ends, leaves: tuple[Tensor, ...], batch: VerticalBatch, event: Event, *rest: Any) -> Any:
        replica = self.memory.replicas.of[event.party].top_parameters
        with torch.no_grad():
            for parameter, sent in zip(replica, attacker.top(), strict=True):
                parameter.copy_(sent)
        found = differentiate(self, leaves, batch, event, *rest)
        if batch.labels is not None:
            read = attacker.read(found[0][len(leaves) :], len(batch.labels))
            seen.append(Reads(*read, torch.cat(leaves, 1).detach(), batch.labels))
        return found

    with patch.object(Ends, "differentiate", noting):
        fit(batch, events)
    return seen


def shares(seen: list[Reads]) -> tuple[float, float]:
    """The share of the embeddings that are read, and that of the reads that are right."""
    records, found = sum(len(one.true_labels) for one in seen), sum(int(one.right.any(0).sum()) for one in seen)
    tried, true = sum(len(one.embeddings) for one in seen), sum(int(one.right.any(1).sum()) for one in seen)
    return found / records, true / max(tried, 1)


def rows() -> list[Row]:
    """The rows of the page."""
    made = []
    usual, more = TopGradientInversion().tries, 10 * TopGradientInversion().tries
    for batch, tries in ((4, usual), (8, usual), (12, usual), (12, more)):
        found = honest(batch, EVENTS, tries=tries).success
        setting = f"Digits, batches of {batch}, {UNITS} units" + (f", {tries:,} tries" if tries != usual else "")
        attack = f"embeddings of `CascadeVFL` from the gradient of the top ({setting})"
        made.append(Row(attack, "gradients of the top; honest collaborator", f"{found:.0%} of embeddings", SAME, "0%"))
    found, right = shares(reads(Lying(4 * 32), BATCH, 5 * EVENTS)[EVENTS:])  # the first ones find the thresholds
    attack = f"the same, from that of a top of its own (batches of {BATCH})"
    success = f"{found:.0%} of embeddings with their labels; {right:.0%} of what is read is right"
    return [*made, Row(attack, "gradients of the top; lying collaborator", success, SAME, "0%")]
