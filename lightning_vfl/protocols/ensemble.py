"""EnsembleVFL: every party trains a model of its own, and the parties vote."""

from typing import final

import torch
from torch import Tensor

from lightning_vfl.protocols.heads import HeadsVFL, mean_of_holders, weighted_loss
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import Roll, RoundNames, VerticalBatch


class EnsembleVFL(HeadsVFL):
    """Every party trains a bottom and a head alone on the records that it holds; no message is sent in training.

    A prediction is the mean of the outputs of the parties that are there: a vote with the outputs as weights, without
    the ties of a majority vote. It is a baseline: it needs the labels at every party.

    Raises:
        ConfigurationError: see ``HeadsVFL``.

    References:
        Valdeira, Wang, Chi, "Vertical Federated Learning with Missing Features During Training and Inference", ICLR
        2025, section 5 (the baseline Ensemble, there with a majority vote).
    """

    def top_width(self) -> int:
        return self.aggregator.widths(self.width, self.roster)[0]

    @final
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """One step of every party on its own loss."""
        costs = self.costs.of_round(len(batch.record_ids))
        self.clock.advance(float((costs.forward + costs.backward).max()))
        self.books.mini_batches += self.roster.parties
        h = self.bottoms(batch.features)
        there = Roll.everyone(self.roster.parties).holders(h[0], batch.present)
        losses = [
            weighted_loss(self, head(own), batch, there[:, m].float())
            for m, (head, own) in enumerate(zip(self.top, h, strict=True))
        ]
        return Step(torch.stack(losses).sum())

    def output_of(
        self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None, columns: Tensor | None = None
    ) -> Tensor:
        outputs = torch.stack([head(own) for head, own in zip(self.top, h, strict=True)])
        return mean_of_holders(outputs, roll.holders(h[0], present))
