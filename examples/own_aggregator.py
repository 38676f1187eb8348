"""An aggregator of one's own, in the clear: a mean without the largest and the smallest embeddings."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator
from lightning_vfl.datamodules import Digits
from lightning_vfl.types import Roll, Roster


class TrimmedMean(Aggregator):
    """The mean of the embeddings without the ``trim`` largest and smallest numbers in every place."""

    def __init__(self, trim: int = 1) -> None:
        self.trim = trim

    def out_width(self, width: int, roster: Roster) -> int:
        return width

    def plain(self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None = None) -> Tensor:
        ordered = torch.stack([h[m] for m in roll.counted]).sort(0).values
        return ordered[self.trim : len(ordered) - self.trim].mean(0)


if __name__ == "__main__":
    trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False)
    trainer.fit(model := SplitVFL(TrimmedMean(), width=32), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
