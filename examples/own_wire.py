"""A wire of one's own: parties round their embeddings before they send them, and the server averages the messages."""

from collections.abc import Generator

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Heard, Mean, PartySide, Traits
from lightning_vfl.aggregators.clear import EMBEDDINGS, EmbeddingWire, PlainServer
from lightning_vfl.aggregators.messages import gradients_in
from lightning_vfl.datamodules import Digits
from lightning_vfl.types import Roll
from lightning_vfl.wire import Aggregate, Contribution, Message, PartyView


class RoundedMean(Mean):
    """The mean of embeddings that are rounded to sixteenths; the gradient ignores the rounding."""

    @property
    def wire(self) -> "RoundedWire":
        return RoundedWire()


class RoundedWire(EmbeddingWire):
    """One upload in the shape of an embedding, and gradients back."""

    traits = Traits(visible=True, loses_quietly=True)

    def protection(self, uploads: int) -> None:
        return None

    def party_side(self) -> "RoundingParty":
        return RoundingParty()

    def server_side(self) -> PlainServer:
        return PlainServer(Mean())

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        return self.server_side().aggregate(rounded(contribution), roll, view.present)


class RoundingParty(PartySide):
    """The side of the parties."""

    def upload(self, contribution: Contribution, view: PartyView) -> Generator[Message, Heard, None]:
        yield Message(EMBEDDINGS, "server", view.parties, rounded(contribution), round=view.names)

    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> tuple[Tensor, ...]:
        return gradients_in(answer, contribution.leaves, view)


def rounded(contribution: Contribution) -> tuple[Tensor, ...]:
    """Every embedding in steps of 1/16."""
    return tuple(torch.round(16 * h.detach()) / 16 for h in contribution.leaves)


if __name__ == "__main__":
    trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False)
    trainer.fit(model := SplitVFL(RoundedMean(), width=32), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
