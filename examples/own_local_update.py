"""Local updates: parties make several steps with one gradient of their embeddings, or a step by a rule of their own."""

from dataclasses import dataclass

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import Digits
from lightning_vfl.local_updates import LocalSteps, LocalUpdate, PartyOptimizer
from lightning_vfl.networks.flops import Work


def flex_vfl(steps: dict[int, int]) -> SplitVFL:
    """Flex-VFL: every party makes as many local steps in a round as it has time for."""
    return SplitVFL(Mean(), width=32, local_update=LocalSteps(steps))


@dataclass(frozen=True)
class FewColumns(LocalUpdate):
    """A step, after which columns that help little have the weight zero: the proximal step of the group lasso."""

    shrink: float = 0.01

    def learn(
        self, party: int, bottom: nn.Module, features: Tensor, gradient: Tensor, optimizer: PartyOptimizer
    ) -> None:
        optimizer.step()
        first = next(parameter for parameter in bottom.parameters() if parameter.dim() == 2)
        with torch.no_grad():
            norms = first.norm(dim=0)  # of each column of the party
            first.mul_((1 - self.shrink / norms).clamp(min=0.0))

    def flops(self, party: int, bottom: Work) -> float:
        return 0.0


if __name__ == "__main__":
    for model in flex_vfl({0: 4, 1: 2}), SplitVFL(Mean(), width=32, local_update=FewColumns()):
        trainer = Trainer(max_epochs=6, logger=False, enable_checkpointing=False)
        trainer.fit(model, datamodule=Digits())
        trainer.test(model, datamodule=Digits())
