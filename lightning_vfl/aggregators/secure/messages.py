"""Checks of messages of the Secure Layer."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from lightning_vfl.aggregators.messages import check_message
from lightning_vfl.errors import MalformedMessage
from lightning_vfl.wire import Message, PartyView

if TYPE_CHECKING:
    from lightning_vfl.crypto.sealed import Sealed


def check_opening(message: Message, lengths: Mapping[str, int], selecting: str, view: PartyView) -> None:
    """Bytes that parties send each other at the beginning of a round.

    Args:
        message: as it was received.
        lengths: the bytes of a message to one receiver, for every kind that there is.
        selecting: the kind that the active party alone sends.
        view: of the parties hosted here.

    Raises:
        MalformedMessage: naming the party.
    """
    parties, kind = view.roster.parties, message.kind
    senders: Sequence[int | None] = [view.roster.active] if kind == selecting else range(parties)
    shapes = {m: (lengths.get(kind, 0),) for m in senders if m is not None}
    due = kind if kind in lengths else " or ".join(lengths)
    check_message(message, due, "peers", shapes, torch.uint8, view.names, 0, view.parties, parties)


def file_once(filed: dict[int, bytes], sender: int, content: bytes, kind: str) -> None:
    """Keep the content that a party has sent; if it sends again, the content has to be the same.

    Raises:
        MalformedMessage: if it is another one.
    """
    if filed.setdefault(sender, content) != content:
        raise MalformedMessage(f"party {sender} sent '{kind}' a second time, and others than before; send them once")


def unsealed(seal: "Sealed", sealed: bytes, number: int, sender: int, kind: str) -> bytes:
    """The content of a sealed message.

    Raises:
        MalformedMessage: if it was changed, is of another number, or was sealed for somebody else.
    """
    try:
        return seal.open(sealed, number)
    except ValueError as error:
        raise MalformedMessage(f"'{kind}' of party {sender} cannot be opened: {error}") from error
