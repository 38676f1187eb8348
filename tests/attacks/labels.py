"""Labels from gradients: a passive party looks at the gradients of its embeddings, which the server sends it.

The gradient of a record's embedding is (p - y) times a direction of the top model that records share. So the sign of
the first left singular vector of all gradients of an epoch splits the records by their label. The attacker needs one
known label to tell which side is which.
"""

import tempfile
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, LagrangeCoded, LocalGaussian, MaskedSum, PoissonBinomial
from lightning_vfl.datamodules import BreastCancer, Standardise
from lightning_vfl.networks import MLP, Linear, PolynomialNetwork
from lightning_vfl.networks.halved_top import GRADIENTS
from lightning_vfl.wire import Message
from tests.attacks.row import Row

ATTACKER = 1  # a passive party

BOUNDED = partial(MLP, hidden=[64], output_activation=torch.nn.Tanh)
PLAIN = partial(MLP, hidden=[64])
# draws are seeded so that a run repeats; the attacker does not use the seed
SETTINGS: dict[str, tuple[Any, Any, int]] = {
    "FedVS": (lambda: LagrangeCoded(blocks=1, privacy=1), PolynomialNetwork, 64),
    "vFedSec": (MaskedSum, PLAIN, 64),
    "PBM, 16 levels": (lambda: PoissonBinomial(levels=16, beta=0.25, draws="seeded"), BOUNDED, 16),
    "PBM, 2 levels": (lambda: PoissonBinomial(levels=2, beta=0.25, draws="seeded"), BOUNDED, 16),
    "LocalGaussian, ε = 5": (lambda: LocalGaussian(draws="seeded"), PLAIN, 64),
}


class Gradients(Callback):
    """Keeps the gradients that one party is sent, with the positions of their records."""

    def __init__(self, party: int) -> None:
        self.party = party
        self.sent: list[tuple[Tensor, Tensor]] = []
        self._ids = torch.empty(0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sides: Any = pl_module.sides
        server = sides.server

        def listened(*arguments: Any) -> Message:
            answer: Message = server.answer(*arguments)
            sent = dict(zip(answer.receivers or (), answer.pieces, strict=True))[self.party]
            self.sent.append((self._ids, sent.detach().clone()))
            return answer

        listening = SimpleNamespace(read=server.read, decode=server.decode, answer=listened)
        pl_module.sides = sides._replace(server=listening)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._ids = batch.record_ids


class AtCut(Gradients):
    """Keeps the gradients that the active party sends the server through the cut of a top in halves."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pass

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        top: Any = pl_module.top
        top.hear = self._hear

    def _hear(self, kind: str, values: Tensor) -> None:
        if kind == GRADIENTS:
            self.sent.append((self._ids, values.detach().clone()))


def stolen(aggregator: Aggregator, bottom: Any, width: int, epochs: int = 1, seed: int = 0, cut: bool = False) -> float:
    """The share of training labels that the attacker gets right from the gradients of the last epoch.

    ``cut``: the attacker is the server, and the active party, which has the labels, has half of the top.
    """
    torch.manual_seed(seed)
    data = BreastCancer(batch_size=32, seed=seed, normaliser=Standardise(public=True))
    listener = AtCut(ATTACKER) if cut else Gradients(ATTACKER)
    top: Any = {"server": PLAIN, "active": Linear} if cut else PLAIN
    module = SplitVFL(aggregator, bottom=bottom, top=top, width=width, seed=seed, active=0 if cut else None)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[listener],
            default_root_dir=folder,
        )
        trainer.fit(module, datamodule=data)
    labels = _labels(data)
    batches = listener.sent[-(len(listener.sent) // epochs) :]
    ids = torch.cat([own for own, _ in batches])
    gradients = torch.cat([own for _, own in batches]).double()
    first = torch.linalg.svd(gradients, full_matrices=False)[0][:, 0]
    guessed = (first > 0).numpy()
    right = float(np.mean(guessed == labels[ids].numpy().astype(bool)))
    return max(right, 1 - right)


def _labels(data: BreastCancer) -> Tensor:
    labels = data.records("train").labels
    if labels is None:
        raise TypeError("BreastCancer has labels")
    return labels


def majority() -> float:
    """The success of an attacker who names the more frequent class every time."""
    data = BreastCancer()
    data.setup("fit")
    share = float(_labels(data).double().mean())
    return max(share, 1 - share)


def rows() -> list[Row]:
    """The attack against every protected aggregator; nothing in this version prevents it."""
    made = []
    for name, (aggregator, bottom, width) in SETTINGS.items():
        right = np.mean([stolen(aggregator(), bottom, width, seed=seed) for seed in range(3)])
        made.append(
            Row(
                f"labels of BreastCancer, {name}",
                "a passive party: the gradients of its embeddings in one epoch, one known label",
                f"accuracy {right:.3f}",
                "the same: gradients are sent in the clear",
                f"{majority():.3f} (majority class)",
            )
        )
    right = np.mean([stolen(MaskedSum(), PLAIN, 64, seed=seed, cut=True) for seed in range(3)])
    made.append(
        Row(
            "labels of BreastCancer, a top in halves",
            "the server: the gradients that come through the cut in one epoch, one known label",
            f"accuracy {right:.3f}",
            "the same: gradients are sent in the clear",
            f"{majority():.3f} (majority class)",
        )
    )
    return made
