"""The messages of decoupled training, for an audit."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.types import RoundNames
from lightning_vfl.wire import Message, Tap


def tell_of_embeddings(
    tap: Tap | None, hosts: int, kind: str, ids: Tensor, embeddings: Sequence[Tensor], alive: Tensor
) -> None:
    """The embeddings (B, D_m) that the guests who are alive send to every host.

    Args:
        tap: which listens; None: nobody does.
        hosts: how many there are.
        kind: the name in every table.
        ids: the records, (B,), or (B, M or more) with the records of guest m in column m.
        embeddings: of every guest.
        alive: (M,) bool.
    """
    if tap is None:
        return
    for guest in alive.nonzero().flatten().tolist():
        own = ids if ids.dim() == 1 else ids[:, guest]
        message = Message(kind, "server", (guest,), (embeddings[guest].detach(),))
        for _ in range(hosts):
            tap.sent(message, own)


def tell_of_collection(
    module: VFLModule, hosts: int, names: RoundNames, ids: Tensor, embeddings: tuple[Tensor, ...], encodings: Tensor
) -> None:
    """The final embeddings of records ``ids`` (B,), and the encodings (B, H W_h) of them by so many hosts."""
    if module.tap is None:
        return
    everybody = torch.ones(module.roster.parties, dtype=torch.bool)
    tell_of_embeddings(module.tap, hosts, "final embeddings", ids, embeddings, everybody)
    pieces = encodings.tensor_split(hosts, 1)
    module.tap.sent(Message("final encodings", "server", tuple(range(hosts)), pieces), ids)
    module.tap.joined(encodings, names, ids)
