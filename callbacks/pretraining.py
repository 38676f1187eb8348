"""Pretraining of the parties' bottoms, each on all records of its own, before the joint training."""

from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_vfl.checks import positive
from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.local_objectives import LocalObjective, Reconstruction
from lightning_vfl.networks.flops import work_of
from lightning_vfl.protocols import VFLModule
from lightning_vfl.protocols.build import party_names_of
from lightning_vfl.protocols.checks import needed_data
from lightning_vfl.streams import seed_torch

from .injector import protocol


class Pretraining(Callback):
    """Trains the bottom of every party on the party's own records, before the joint training.

    A party uses its training records, whether they have a label or not, and those that the other parties do not have
    (``extra`` of ``CSVTables``). The loss needs no label and no other party: nothing is sent. The joint training then
    begins with these bottoms.

    Units: virtual time, that of the slowest party. Memory, all records of all parties of this process.
    Guarantee: a party's bottom depends on its own records, its initial weights and the seed (in a federation with
        secret weights: the party's key) alone. A fit that was killed meanwhile begins anew and has the same bits; a fit
        that is resumed from a checkpoint of the joint training does not pretrain again.
    Not guaranteed: a better model.

    Args:
        objective: the loss; None: ``Reconstruction(corruption=0.3)``, which needs ``MLP`` as bottom.
        epochs: how often a party sees each of its records.
        batch_size: records of a step.
        lr: the learning rate of Adam, which is a party's own.

    Raises:
        ConfigurationError: before training, for an aggregator that accounts for the privacy of records, groups,
            several processes, and features of whole numbers.

    References:
        Hong, Park, Hwang, "Deep Latent Variable Model based Vertical Federated Learning with Flexible Alignment and
        Labeling Scenarios" (FALSE-VFL), ICLR 2026: its setting of unaligned and unlabelled records, not its model.
        Bahri et al., "SCARF: Self-Supervised Contrastive Learning using Random Feature Corruption", ICLR 2022.
    """

    uses_extra = True

    def __init__(
        self, objective: LocalObjective | None = None, epochs: int = 20, batch_size: int = 128, lr: float = 1e-3
    ) -> None:
        self.objective = objective or Reconstruction(corruption=0.3)
        refuse_other_kind("objective", self.objective, LocalObjective, "BarlowTwins()")
        self.epochs = positive("epochs", epochs, whole=True)
        self.batch_size = positive("batch_size", batch_size, whole=True)
        self.lr = positive("lr", lr)
        self._done = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        module = protocol(self, pl_module)
        if stage == "fit" and module.aggregator.accounting is not None:
            raise ConfigurationError(
                f"{type(module.aggregator).__name__} accounts for the privacy of a record, and pretrained weights "
                "depend on all records; leave Pretraining out"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = protocol(self, pl_module)
        rounds = module.books.training_rounds
        if self._done or rounds:
            if not self._done:
                rank_zero_warn(f"Pretraining is left out: these networks have trained for {rounds} rounds already")
            return
        if module.roster.shared or trainer.world_size > 1:
            raise ConfigurationError(
                "Pretraining trains each bottom in one process; leave out groups, and use devices: 1"
            )
        who = range(module.roster.parties) if module.place is None else [module.place.seat.party]
        parties = [party for party in who if party is not None]
        names = party_names_of(module.datamodule, module.roster.parties)
        records = {party: self._records(module, party, names[party]) for party in parties}  # refused before training
        before = {party: deepcopy(module.bottoms.parties[party].state_dict()) for party in parties}
        flops = torch.zeros(module.roster.parties, dtype=torch.float64)
        try:
            for party in parties:
                flops[party] = self._train(module, party, names[party], records.pop(party))
        except BaseException:  # a checkpoint that is written now must not have a part of it
            for party, weights in before.items():
                module.bottoms.parties[party].load_state_dict(weights)
            raise
        if module.place is None:
            module.clock.advance(float(module.clock.computing(flops).max()))
        self._done = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._done = False  # another module may be next; this one has rounds

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._done = state_dict["done"]

    def _train(self, module: VFLModule, party: int, name: str, records: Tensor) -> float:
        """Train the bottom of a party on its records; returns the FLOPs."""
        bottom = module.bottoms.parties[party]
        trained = [parameter for parameter in bottom.parameters() if parameter.requires_grad]
        if not trained or not len(records):
            rank_zero_warn(f"Pretraining leaves out party '{name}', whose bottom is frozen or has no records")
            return 0.0
        shape = tuple(records.shape[1:])
        width = module.embedding_widths[party]
        like = trained[0]
        with torch.random.fork_rng(), module.trainer.precision_plugin.forward_context(), torch.enable_grad():
            seed_torch(like.device, module.keys.get(party, module.seed), "pretraining", "party", party)
            partner = self.objective.partner(bottom, shape, width).to(like)
            optimizer = torch.optim.Adam([*trained, *partner.parameters()], lr=self.lr)
            first, last = 0.0, 0.0
            for epoch in range(self.epochs):
                last = 0.0
                for rows in torch.split(torch.randperm(len(records)), self.batch_size):
                    x = records[rows].to(like)[None]  # one participant
                    losses, _ = self.objective.losses(
                        lambda x: bottom(x[0])[None], lambda h: partner(h[0])[None], x, None, lambda: _drawn(like)
                    )
                    optimizer.zero_grad()
                    losses.sum().backward()  # type: ignore[no-untyped-call]  # torch's
                    optimizer.step()
                    last += float(losses.detach()) * len(rows) / len(records)
                first = first if epoch else last
            optimizer.zero_grad()
        rank_zero_info(
            f"Pretraining: party '{name}' has learnt from {len(records)} records of its own for {self.epochs} epochs, "
            f"loss {first:.3g} to {last:.3g}"
        )
        work = sum(work_of(bottom, shape, input_gradient=False)) + sum(work_of(partner, (width,), True))
        return self.epochs * len(records) * self.objective.passes * float(work)

    @staticmethod
    def _records(module: VFLModule, party: int, name: str) -> Tensor:
        """(n, *S_m), all records of the party that may be trained on."""
        data = needed_data(module.datamodule, "Pretraining trains on all records of a party and must know them")
        train = data.records("train")
        held = torch.arange(len(train)) if train.present is None else train.present[:, party].nonzero().flatten()
        features = train.features_of(party, held)
        if not features.is_floating_point():
            raise ConfigurationError(
                f"Pretraining masks real numbers, and party '{name}' has {features.dtype}; leave Pretraining out"
            )
        extra = data.extra_of(party)
        return features if extra is None else torch.cat([features, extra])


def _drawn(like: Tensor) -> torch.Generator:
    """A generator for the masks of a step, seeded by torch's."""
    return torch.Generator(like.device).manual_seed(int(torch.randint(2**62, ())))
