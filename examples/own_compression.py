"""A compressor of one's own: parties send the k largest numbers of an embedding, and later what they have left out."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.compressors import Compressor
from lightning_vfl.datamodules import Digits


class Largest(Compressor):
    """The k largest numbers of each record, and their places, for embeddings of at most 256 numbers."""

    feedback = True

    def __init__(self, k: int = 8) -> None:
        self.k = k

    def encode(self, h: Tensor) -> tuple[Tensor, ...]:
        places = h.abs().topk(self.k, dim=1).indices
        return h.gather(1, places), places.to(torch.uint8)

    def decode(self, tensors: tuple[Tensor, ...], width: int) -> Tensor:
        numbers, places = tensors
        return numbers.new_zeros(len(numbers), width).scatter_(1, places.long(), numbers)


if __name__ == "__main__":
    trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False)
    trainer.fit(model := SplitVFL(Mean(), width=32, compressor=Largest()), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
