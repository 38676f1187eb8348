"""A top of one's own: attention over the parties that are there, which knows who is absent from a round."""

from lightning.pytorch import Trainer
from torch import Tensor, nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.datamodules import Digits
from lightning_vfl.simulation import PartyDropout


class Attention(nn.Module):
    """Weighs the embeddings of the parties by a learnt score; absent parties have the weight zero."""

    def __init__(self, width: int, outputs: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.parties = len(widths)
        self.score = nn.Linear(width // self.parties, 1)
        self.head = nn.Linear(width // self.parties, outputs)

    def forward(self, joint: Tensor, columns: Tensor) -> Tensor:
        embeddings = joint.view(len(joint), self.parties, -1)
        absent = ~columns.view(self.parties, -1).any(1)
        weights = self.score(embeddings).masked_fill(absent[:, None], float("-inf")).softmax(1)
        output: Tensor = self.head((weights * embeddings).sum(1))
        return output


if __name__ == "__main__":
    faults = FaultInjector(PartyDropout(probability=0.5, proportion=0.25))
    trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False, callbacks=[faults])
    trainer.fit(model := SplitVFL(Concat(), top=Attention, width=32), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
