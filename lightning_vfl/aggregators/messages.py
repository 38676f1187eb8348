"""Checks that a receiver makes on a message before it computes with it, for all aggregators."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import isfinite
from statistics import mode
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.types import RoundNames, Shape, Tensors
from lightning_vfl.wire import Message, PartyView

P = ParamSpec("P")
T = TypeVar("T")
GRADIENTS = "gradients"  # kinds of messages that several aggregators send
UPDATES = "model updates"


def check_message(
    message: Message,
    kind: str,
    to: Literal["server", "peers"],
    shapes: Mapping[int, Shape],
    dtype: torch.dtype | None,
    names: RoundNames,
    required: Collection[int] | int = 0,
    holders: Sequence[int] = (),
    parties: int = 0,
    alongside: str | None = None,
) -> None:
    """Refuse a message that does not fit the round.

    The check covers kind, destination, round, senders, and the dtype and shape of every piece; it takes microseconds.
    ``refuse_outside`` and ``refuse_infinite`` check the numbers.

    Guarantee: afterwards every sender is one of ``shapes``, each is there once with a piece of its shape and of the
        type, and all that are ``required`` are there.
    Not guaranteed: that the content is honest. A message without a ``round`` is accepted in any round.

    Args:
        message: as it was received.
        kind: the expected kind.
        to: its destination.
        shapes: for each party that may send it, the shape of its piece; to peers, without axis 0.
        dtype: of the pieces; None: one floating type for all.
        names: of the round that is going on.
        required: the parties whose pieces have to be there, or how many pieces.
        holders: to peers, the parties that receive here.
        parties: to peers, M.
        alongside: the expected kind of the message alongside; None: there must be none.

    Raises:
        MalformedMessage: naming the party.
    """
    senders = message.senders
    pieces = message.pieces
    if message.kind != kind or message.to != to:
        raise MalformedMessage(
            f"{_parties(senders)} sent '{message.kind}' to {message.to} where '{kind}' to {to} was expected; all "
            "must run the same recipe"
        )
    if message.round is not None and message.round != names:
        raise MalformedMessage(
            f"{_parties(senders)} sent '{kind}' of {_round(message.round)}, but this is {_round(names)}; send it again"
        )
    if len(senders) != len(pieces):
        raise MalformedMessage(
            f"'{kind}' of {_parties(senders)} has {len(pieces)} pieces; every sender sends one piece"
        )
    given = None if message.alongside is None else message.alongside.kind
    if given != alongside:
        raise MalformedMessage(
            f"{_parties(senders)} sent {given or 'nothing'} alongside '{kind}' where {alongside or 'nothing'} was "
            "expected; all must run the same recipe"
        )
    front = _front(message, holders, parties) if to == "peers" else ()
    if dtype is None:
        dtype = common(piece.dtype for piece in pieces if isinstance(piece, Tensor) and piece.is_floating_point())
    seen = set()
    for sender, piece in zip(senders, pieces, strict=True):
        if sender not in shapes or type(sender) is not int:
            raise MalformedMessage(f"party {sender} sent '{kind}', which only {_parties(shapes)} may send")
        if sender in seen:
            raise MalformedMessage(f"party {sender} sent '{kind}' twice in one message; send it once")
        seen.add(sender)
        if not isinstance(piece, Tensor) or piece.dtype != dtype or piece.layout != torch.strided:
            what = f"{piece.dtype}" if isinstance(piece, Tensor) else type(piece).__name__
            raise MalformedMessage(f"'{kind}' of party {sender} is {what} where {dtype} was expected")
        if piece.shape != (*front, *shapes[sender]):
            raise MalformedMessage(
                f"'{kind}' of party {sender} has shape {tuple(piece.shape)} where {(*front, *shapes[sender])} was "
                "expected; all must run the same recipe"
            )
    if isinstance(required, int):
        if len(seen) < required:
            lacking = [m for m in shapes if m not in seen]
            raise MalformedMessage(
                f"{len(seen)} of {required} needed '{kind}' have come, and those of {_parties(lacking or senders)} "
                f"{'have not' if lacking else 'are all there are'}; wait for more"
            )
    elif not seen.issuperset(required):
        raise MalformedMessage(f"'{kind}' of {_parties(m for m in required if m not in seen)} is missing")


def only(messages: tuple[Message, ...]) -> Message:
    """The one message that is due.

    Raises:
        MalformedMessage: for none or several.
    """
    if len(messages) != 1:
        who = ", ".join(_parties(message.senders) for message in messages) or "no party"
        raise MalformedMessage(f"{len(messages)} messages have come from {who} where one was expected")
    return messages[0]


def common(values: Iterable[T]) -> T | None:
    """The most frequent value, against which others are judged as wrong; None: there are no values."""
    listed = list(values)
    return mode(listed) if listed else None


def refuse_outside(pieces: Sequence[Tensor], senders: Sequence[int], kind: str, modulus: int) -> None:
    """Refuse integers that are not in [0, modulus).

    Raises:
        MalformedMessage: naming the first party that sent any.
    """
    for sender, piece in zip(senders, pieces, strict=True):
        if not _inside(piece, modulus):
            raise MalformedMessage(f"'{kind}' of party {sender} holds numbers outside [0, {modulus}); send it again")


def refuse_infinite(message: Message) -> None:
    """Refuse NaN and infinite numbers.

    Raises:
        MalformedMessage: naming the first party that sent any.
    """
    for sender, piece in zip(message.senders, message.pieces, strict=True):
        if not isfinite(float(piece.detach().sum())) and not torch.isfinite(piece).all():  # the sum alone takes a tenth
            raise MalformedMessage(f"'{message.kind}' of party {sender} holds NaN or infinite numbers")


def gradients_by_party(answer: Message, shapes: Mapping[int, Shape], view: PartyView) -> dict[int, Tensor]:
    """The gradients that the server has sent to hosted parties, by party.

    Args:
        answer: the server's message.
        shapes: for each hosted party, the shape of its gradient.
        view: of the hosted parties.

    Raises:
        MalformedMessage: for a message of another kind, destination or round, and for a piece of another shape.
    """
    if answer.kind != GRADIENTS or answer.to != "parties" or answer.round not in (None, view.names):
        raise MalformedMessage(
            f"the server sent '{answer.kind}' to {answer.to} where '{GRADIENTS}' to parties were expected in "
            f"{_round(view.names)}; the server and all parties must run the same recipe"
        )
    receivers = answer.receivers or ()
    if len(receivers) != len(answer.pieces) or len({*receivers}) != len(receivers):
        raise MalformedMessage(
            f"the server sent {len(answer.pieces)} '{GRADIENTS}' to {_parties(receivers)}; each party gets one"
        )
    pieces = {}
    for party, piece in zip(receivers, answer.pieces, strict=True):
        if party not in shapes:
            continue
        if piece.shape != shapes[party] or not piece.is_floating_point():
            raise MalformedMessage(
                f"'{GRADIENTS}' for party {party} are {piece.dtype} of shape {tuple(piece.shape)} where floating-point "
                f"numbers of shape {shapes[party]} were expected"
            )
        pieces[party] = piece
    return pieces


def gradients_in(answer: Message, leaves: Sequence[Tensor], view: PartyView) -> Tensors:
    """The server's gradient for each hosted party's embedding, in its dtype; zeros if the party was sent none.

    Raises:
        MalformedMessage: as ``gradients_by_party``.
    """
    shapes = {m: tuple(h.shape) for m, h in zip(view.parties, leaves, strict=True)}
    pieces = gradients_by_party(answer, shapes, view)
    hosted = zip(view.parties, leaves, strict=True)
    return tuple([pieces[m].to(h.dtype) if m in pieces else torch.zeros_like(h) for m, h in hosted])


def refuse_lacking(held: Collection[Any], wanted: Iterable[int], kind: str) -> None:
    """Refuse to go on while messages of these parties are missing.

    Raises:
        MalformedMessage: naming the parties.
    """
    if lacking := [m for m in wanted if m not in held]:
        raise MalformedMessage(
            f"'{kind}' of {_parties(lacking)} have not come; wait for them, or begin the round again"
        )


def width_of(message: Message) -> int:
    """The most frequent last dimension of the pieces; 0: there are no tensors."""
    return common([piece.shape[-1] for piece in message.pieces if isinstance(piece, Tensor) and piece.dim()]) or 0


def blamed(message: Message, modulus: int, work: Callable[P, T], *arguments: P.args, **settings: P.kwargs) -> T:
    """The result of ``work``; if it refuses a number of the message, the error names the party that sent the number.

    So numbers are checked where the arithmetic checks them anyway.

    Raises:
        MalformedMessage: naming the party.
    """
    try:
        return work(*arguments, **settings)
    except ConfigurationError:
        refuse_outside(message.pieces, message.senders, message.kind, modulus)
        raise


def _inside(x: Tensor, modulus: int) -> bool:
    if not x.numel():
        return True
    if x.device.type == "cpu":  # negative numbers are the largest of all; a third of the time of aminmax
        array = x.numpy()
        return int(array.view(f"u{array.itemsize}").max()) < modulus
    low, high = torch.aminmax(x)
    return int(low) >= 0 and int(high) < modulus


def _front(message: Message, holders: Sequence[int], parties: int) -> tuple[int, ...]:
    """The expected axis 0 of a message to peers, after a check that it is for the parties hosted here."""
    if message.receivers is None:
        return (parties,)
    receivers = message.receivers
    once = {*receivers}
    if len(once) != len(receivers) or not {*holders} <= once <= {*range(parties)}:
        raise MalformedMessage(
            f"'{message.kind}' of {_parties(message.senders)} is for receivers {list(receivers)}, but "
            f"{_parties(holders)} read it here"
        )
    return (len(receivers),)


def _parties(numbers: Iterable[int]) -> str:
    listed = list(numbers)
    if not listed:
        return "no party"
    named = ", ".join(map(str, listed))
    return f"party {named}" if len(listed) == 1 else f"parties {named}"


def _round(names: RoundNames) -> str:
    return f"round {names.round} of {names.stage} (seed {names.seed})"
