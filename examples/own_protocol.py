"""A protocol of one's own: each party is trained alone, and the predictions of all parties are averaged."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_vfl import VerticalBatch, VFLModule
from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import Digits
from lightning_vfl.protocols import Step
from lightning_vfl.types import RoundNames


class Committee(VFLModule):
    """The server's one top model predicts from each embedding alone, with a loss for each party."""

    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        return torch.stack([self.top(h) for h in self.bottoms(batch.features)]).mean(0)

    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        plan = self.enter_round(batch, names)
        h = self.bottoms.some(batch.features, plan.learning)
        losses = [self.rank_loss(self.top(h[m]), batch) for m in plan.learning]
        return Step(torch.stack(losses).mean() if losses else None, plan.learning)


if __name__ == "__main__":
    trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False)
    trainer.fit(model := Committee(Mean(), width=32), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
