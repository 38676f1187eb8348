"""Checks of messages of the Secure Layer."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from lightning_vfl.aggregators.messages import check_message, refuse_outside
from lightning_vfl.errors import MalformedMessage
from lightning_vfl.wire import Message, PartyView, ServerView

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


def check_uploads(
    messages: tuple[Message, ...],
    kinds: Sequence[str],
    shapes: Mapping[int, tuple[int, ...]],
    bits: int,
    share: tuple[int, ...],
    key_bytes: int,
    modulus: int,
    needed: int,
    view: ServerView,
) -> None:
    """The masked uploads of a round, and with recovery the keys alongside and the shares that are revealed.

    Args:
        messages: as they were received.
        kinds: of uploads; with recovery, of keys and of shares too.
        shapes: of the upload of each included party.
        bits: of the ring.
        share: shape of the shares that a party reveals.
        key_bytes: length of a key.
        modulus: of shares.
        needed: how many parties have to reveal.
        view: the server's.

    Raises:
        MalformedMessage: naming the party.
    """
    recovery = len(kinds) > 1
    expected = len(kinds) - 1 if recovery else 1
    if len(messages) != expected:
        who = sorted({sender for message in messages for sender in message.senders})
        raise MalformedMessage(f"{len(messages)} messages have come from parties {who} where {expected} are due")
    uploads, names = messages[0], view.names
    more = kinds[1] if recovery else None
    check_message(uploads, kinds[0], "server", shapes, torch.uint32, names, tuple(shapes), alongside=more)
    if bits < 32:
        for sender, piece in zip(uploads.senders, uploads.pieces, strict=True):
            if piece.numel() and int(piece.numpy().max()) >> bits:
                raise MalformedMessage(f"'{kinds[0]}' of party {sender} holds numbers outside the ring of 2^{bits}")
    if uploads.alongside is None:
        return
    keys = dict.fromkeys(shapes, (key_bytes,))
    check_message(uploads.alongside, kinds[1], "server", keys, torch.uint8, names, tuple(shapes))
    answering = view.roll.responders.nonzero().flatten().tolist()
    check_message(messages[1], kinds[2], "server", dict.fromkeys(answering, share), torch.int64, names, needed)
    refuse_outside(messages[1].pieces, messages[1].senders, kinds[2], modulus)
