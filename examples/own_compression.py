"""An aggregator of one's own that compresses: parties send the k largest numbers in 8 bits."""

from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, Heard, Mean, PartySide, ServerSide, Traits, Wire
from lightning_vfl.aggregators.clear import EMBEDDINGS, PlainServer, gradients_leg
from lightning_vfl.aggregators.messages import check_message, gradients_in, only
from lightning_vfl.datamodules import Digits
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.types import Roll, Roster
from lightning_vfl.wire import Aggregate, Contribution, Leg, Message, PartyView, ServerView

KIND = "top-k embeddings"


@dataclass(frozen=True, repr=False)
class TopK(Aggregator):
    """The mean of compressed embeddings (up to 256 wide): k numbers, their places, and a scale for every record.

    The error of an upload is lost, and the gradient ignores it.
    """

    k: int = 8

    def plain(self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None = None) -> Tensor:
        return Mean().plain(h, roll, present)

    def out_width(self, width: int, roster: Roster) -> int:
        if width < self.k:
            raise ConfigurationError(f"k of TopK must be at most the embedding width, {width}; got {self.k}; lower k")
        return width

    @property
    def wire(self) -> "TopKWire":
        return TopKWire(self.k)


@dataclass(frozen=True)
class TopKWire(Wire):
    """One upload of 2k + 4 bytes for each record, and gradients in 32 bits back."""

    k: int
    traits = Traits(visible=False, everybody_called=False, loses_quietly=True, equivalent=False, corrects=0)

    def legs(self, rows: int, widths: tuple[int, ...], basis: tuple[int, ...], roster: Roster) -> tuple[Leg, ...]:
        size = torch.full((len(widths),), rows * (2 * self.k + 4))
        return (Leg(KIND, "server", size, 8, torch.zeros(len(widths)).double()),)

    def downlink(self, rows: int, widths: tuple[int, ...], roster: Roster) -> Leg:
        return gradients_leg(rows, widths)

    def needed(self, parties: int) -> int:
        return 1

    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        return arrived

    def refuse_partly_held(self, present: Tensor | None, roster: Roster) -> None:
        if present is not None and not present.all():
            raise ConfigurationError("TopK needs every party to hold every record; use Mean, or aligned records")

    def protection(self, uploads: int) -> None:
        return None

    def party_side(self) -> "CompressingParty":
        return CompressingParty(self.k)

    def server_side(self) -> "TopKServer":
        return TopKServer(self.k)

    def clear(self, contribution: Contribution, view: PartyView, roll: Roll) -> Aggregate:
        h = tuple(unpacked(pack(x.detach().float(), self.k), self.k, x.shape[1]) for x in contribution.leaves)
        return PlainServer(Mean()).aggregate(h, roll, None)


@dataclass(frozen=True)
class CompressingParty(PartySide):
    """The side of the parties."""

    k: int

    def upload(self, contribution: Contribution, view: PartyView) -> Generator[Message, Heard, None]:
        pieces = tuple(pack(h.detach().float(), self.k) for h in contribution.leaves)
        yield Message(KIND, "server", view.parties, pieces, round=view.names)

    def carry(self, answer: Message, contribution: Contribution, view: PartyView) -> tuple[Tensor, ...]:
        return gradients_in(answer, contribution.leaves, view)  # the gradient ignores the compression


@dataclass(frozen=True)
class TopKServer(ServerSide):
    """The side of the server."""

    k: int

    def decode(self, messages: tuple[Message, ...], view: ServerView) -> Aggregate:
        message, rows, included = only(messages), len(view.rows.ids), view.roll.included_parties
        shapes = dict.fromkeys(included, (rows, 2 * self.k + 4))
        check_message(message, KIND, "server", shapes, torch.uint8, view.names, included)
        for party, piece in zip(message.senders, message.pieces, strict=True):
            if int(piece[:, self.k : 2 * self.k].max()) >= view.widths[party]:
                raise MalformedMessage(f"party {party} sent places outside its embedding; send '{KIND}' anew")
        h = (unpacked(x, self.k, view.widths[m]) for m, x in zip(message.senders, message.pieces, strict=True))
        return PlainServer(Mean()).decode((replace(message, kind=EMBEDDINGS, pieces=tuple(h)),), view)

    def answer(self, grad: Tensor, aggregate: Aggregate, view: ServerView) -> Message:
        return PlainServer(Mean()).answer(grad, aggregate, view)


def pack(h: Tensor, k: int) -> Tensor:
    """(B, 2k + 4) bytes: the k largest numbers of a row in steps of a 127th, their places, and the largest."""
    places = h.abs().topk(k, dim=1).indices
    kept = h.gather(1, places)
    largest = kept.abs().amax(1, keepdim=True).clamp(min=1e-30)
    steps = (kept / largest * 127).round().to(torch.int8)
    return torch.cat([steps.view(torch.uint8), places.to(torch.uint8), largest.view(torch.uint8)], dim=1)


def unpacked(piece: Tensor, k: int, width: int) -> Tensor:
    """(B, D), the embedding that these bytes stand for; zeros in the places that were not sent."""
    steps, places, largest = torch.split(piece, [k, k, 4], dim=1)
    kept = steps.contiguous().view(torch.int8) * (largest.contiguous().view(torch.float32) / 127)
    found: Tensor = kept.new_zeros(len(piece), width).scatter_(1, places.long(), kept)
    return found


if __name__ == "__main__":
    trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False)
    trainer.fit(model := SplitVFL(TopK(), width=32), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
