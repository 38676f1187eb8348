"""Local updates: parties make several steps with one gradient of their embeddings, each by a rule of its own."""

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
class FedBCD(LocalUpdate):
    """FedBCD with a proximal term: local steps with the stale gradient, pulled back to the weights of the round."""

    steps: int = 3
    pull: float = 0.1

    def learn(
        self, party: int, bottom: nn.Module, features: Tensor, gradient: Tensor, optimizer: PartyOptimizer
    ) -> None:
        before = [parameter.detach().clone() for parameter in bottom.parameters()]
        optimizer.step()
        for _ in range(self.steps - 1):
            optimizer.zero_grad()
            bottom(features).backward(gradient)
            moves = [(p - start).square().sum() for p, start in zip(bottom.parameters(), before, strict=True)]
            torch.autograd.backward(self.pull / 2 * torch.stack(moves).sum())
            optimizer.step()

    def flops(self, party: int, bottom: Work) -> float:
        return (self.steps - 1) * (bottom.forward + bottom.backward)


if __name__ == "__main__":
    for model in flex_vfl({0: 4, 1: 2}), SplitVFL(Mean(), width=32, local_update=FedBCD()):
        trainer = Trainer(max_epochs=6, logger=False, enable_checkpointing=False)
        trainer.fit(model, datamodule=Digits())
        trainer.test(model, datamodule=Digits())
