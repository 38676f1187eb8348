"""LoRA bottoms: frozen weights and a learnt update of low rank, whose two factors have learning rates of their own."""

from math import prod

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import Digits


class LoRA(nn.Module):
    """A frozen linear layer W with a learnt update: (W + up · down) x + b."""

    def __init__(self, shape: tuple[int, ...], width: int, rank: int = 4) -> None:
        super().__init__()
        self.frozen = nn.Linear(prod(shape), width).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, prod(shape)) / rank)
        self.up = nn.Parameter(torch.zeros(width, rank))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        embedding: Tensor = self.frozen(x) + x @ self.down.T @ self.up.T
        return embedding


class TwoRates(SplitVFL):
    """LoRA+: ``up`` learns 16 times as fast as ``down`` and the top."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        fast = [p for name, p in self.named_parameters() if name.endswith(".up")]
        slow = [p for name, p in self.named_parameters() if p.requires_grad and not name.endswith(".up")]
        optimizer = torch.optim.Adam(slow, lr=1e-3)
        optimizer.add_param_group({"params": fast, "lr": 16e-3})
        return optimizer


if __name__ == "__main__":
    trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False)
    trainer.fit(model := TwoRates(Mean(), bottom=LoRA, width=32), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
