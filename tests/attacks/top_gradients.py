"""Embeddings of ``CascadeVFL`` from the gradient of the top, which the collaborator is sent.

An honest collaborator takes small batches apart: ``TopGradientInversion``, an attack of every audit. One that lies
sends active parties tops of its own: ``ChosenTop``, which an audit plays after a training with honest tops. Here these
tops take part in the training, so that its numbers can be compared.
"""

import tempfile
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from lightning.pytorch import Callback
from torch import Tensor
from torch.nn.utils import vector_to_parameters

from lightning_vfl import CascadeVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.audit import ChosenTop, Finding, TopGradientInversion
from lightning_vfl.audit.attacks.top_gradients import Staircase, recovered
from lightning_vfl.callbacks import Audit
from lightning_vfl.datamodules import Digits
from lightning_vfl.networks import MLP
from lightning_vfl.types import Event, VerticalBatch
from tests.attacks.row import Row
from tests.subjects import trainer

UNITS, BATCH = 64, 32
EVENTS = 8
SAME = "the same: nothing protects from it"


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


def asked(batch: int, events: int) -> Finding:
    """What an audit finds that a lying collaborator reads."""
    audit = Audit("server", [ChosenTop(rounds=events)])
    fit(batch, events + ChosenTop().first, audit)
    (found,) = audit.findings
    return found


def reads(batch: int, events: int) -> list[Reads]:
    """What a lying collaborator reads in a training with tops of its own."""
    seen: list[Reads] = []
    attackers: list[Staircase] = []
    differentiate = CascadeVFL.differentiate

    def noting(self: CascadeVFL, leaves: tuple[Tensor, ...], batch: VerticalBatch, event: Event, *rest: Any) -> Any:
        top = self.memory.replicas.of[event.party].top
        if not attackers:
            attackers.append(Staircase(top, 10))
        vector_to_parameters(attackers[0].top(), top.parameters())
        found = differentiate(self, leaves, batch, event, *rest)
        if batch.labels is not None:
            gradient = torch.cat([one.flatten() for one in found[0][len(leaves) :]])
            read = attackers[0].read(gradient, len(batch.labels))
            seen.append(Reads(*read, torch.cat(leaves, 1).detach(), batch.labels))
        return found

    with patch.object(CascadeVFL, "differentiate", noting):
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
    found, right = shares(reads(BATCH, 5 * EVENTS)[EVENTS:])  # the first ones find the thresholds
    attack = f"the same, from that of a top of its own (batches of {BATCH})"
    success = f"{found:.0%} of embeddings with their labels; {right:.0%} of what is read is right"
    return [*made, Row(attack, "gradients of the top; lying collaborator", success, SAME, "0%")]
