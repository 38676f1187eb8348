"""The labels of a batch as a message, for an audit."""

from typing import TYPE_CHECKING

from lightning_vfl.types import RoundNames, VerticalBatch
from lightning_vfl.wire import Message

if TYPE_CHECKING:
    from lightning_vfl.protocols.module import VFLModule


def tell_of_labels(module: "VFLModule", batch: VerticalBatch, names: RoundNames) -> None:
    """The labels that the active party sends to the server; nothing is sent if the server holds the labels."""
    active, tell = module.roster.active, module.listener(batch.record_ids)
    if active is not None and tell is not None and batch.labels is not None:
        tell(Message("labels", "server", (active,), (batch.labels,), round=names))
