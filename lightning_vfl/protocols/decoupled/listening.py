"""The messages of decoupled training, for an audit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.types import RoundNames, Stage
from lightning_vfl.wire import Message

if TYPE_CHECKING:
    from lightning_vfl.protocols.decoupled.protocol import DecoupledVFL


def tell_of_embeddings(
    module: "DecoupledVFL", kind: str, ids: Tensor, embeddings: Sequence[Tensor], alive: Tensor
) -> None:
    """The embeddings (B, D_m) that the guests who are alive send to every host.

    Args:
        module: the protocol.
        kind: the name in every table.
        ids: the records, (B,), or (B, M or more) with the records of guest m in column m.
        embeddings: of every guest.
        alive: (M,) bool.
    """
    if module.tap is None:
        return
    for guest in alive.nonzero().flatten().tolist():
        own = ids if ids.dim() == 1 else ids[:, guest]
        message = Message(kind, "server", (guest,), (embeddings[guest].detach(),))
        for _ in range(module.host_count):
            module.tap.sent(message, own)


def tell_of_collection(module: "DecoupledVFL", ids: Tensor, features: tuple[Tensor, ...], encodings: Tensor) -> None:
    """The final embeddings of records ``ids`` (B,), and the hosts' encodings (B, H W_h) of them."""
    if module.tap is None:
        return
    everybody = torch.ones(module.roster.parties, dtype=torch.bool)
    tell_of_embeddings(module, "final embeddings", ids, module.bottoms(features), everybody)
    pieces = torch.split(encodings, module.host_width, 1)
    module.tap.sent(Message("final encodings", "server", tuple(range(module.host_count)), pieces), ids)
    module.tap.joined(encodings, RoundNames(module.seed, Stage.FIT, module.counts.iterations), ids)
