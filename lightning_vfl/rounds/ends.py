"""The two ends of a round, without input and output: what a party does, and what the server does.

Each end is a generator: it gives a message and is sent what has arrived. A simulation plays both ends against each
other (``together``). A process of a federation plays one end, and a transport carries the messages.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from torch import Tensor

from lightning_vfl.aggregators.parts import Heard, Opening, PartySide, ServerSide
from lightning_vfl.missing import MissingPolicy, filled_in
from lightning_vfl.wire import Aggregate, Contribution, Message, PartyView, ServerView

Hear = Callable[[Message], None]  # is called with every message that is sent
Read = Callable[[Message], Message]  # a message in numbers, as ``ServerSide.read``
OpeningEnd = Generator[Message, Message, Any]  # gives the hosted parties' message, is sent everybody's
PartyEnd = Generator[Message, Heard, None]  # gives a leg of the hosted parties, is sent what they hear after it
# is sent a leg that has arrived, gives what parties hear
ServerEnd = Generator[Heard | None, Message | None, Aggregate]


def opening_end(opening: Opening, memory: Any, view: PartyView) -> OpeningEnd:
    """The beginning of a round at the hosted parties; returns their memory.

    A message without senders means that the hosted parties send nothing in this leg and only listen.
    """
    for message in opening.open(memory, view):
        heard = yield message
        memory = opening.accept(memory, heard, view)
    return memory


def party_end(side: PartySide, contribution: Contribution, view: PartyView) -> PartyEnd:
    """The uploads of the hosted parties, leg by leg; ``PartySide.carry`` is the way back."""
    yield from side.upload(contribution, view)


def server_end(side: ServerSide, policy: MissingPolicy, view: ServerView, answering: tuple[int, ...]) -> ServerEnd:
    """The server's part of a round, up to the aggregate; ``ServerSide.answer`` is the way back.

    Start it with ``next``, send it messages as ``ServerSide.read`` gives them, and close it by ``finish``.

    Args:
        side: the server's side.
        policy: replaces uploads that are missing.
        view: of the server; its roll says who is included.
        answering: the parties that send the legs after the first.
    """
    to_decode: list[Message] = []
    heard: Heard | None = None
    while (message := (yield heard)) is not None:
        passed_on = message if message.to == "peers" or message.relayed else None
        if passed_on is None:
            stand_in = None if to_decode else policy.stand_in  # only for uploads, the first leg
            to_decode.append(message if stand_in is None else filled_in(stand_in, message, view))
        heard = Heard(view.roll.included, answering, passed_on)
    return side.decode(tuple(to_decode), view)


def finish(end: ServerEnd) -> Aggregate:
    """The aggregate, after the last leg."""
    try:
        end.send(None)
    except StopIteration as over:
        aggregate: Aggregate = over.value
        return aggregate
    raise RuntimeError("the server's end gives no aggregate after the last leg")


def together(parties: PartyEnd, server: ServerEnd, included: Tensor, read: Read, hear: Hear | None = None) -> Aggregate:
    """Both ends in one process: the parties' messages go straight to the server's end.

    ``included`` (M,) bool are the parties whose first messages arrive in time. ``read``: the messages in numbers.
    ``hear``: an audit listens.
    """
    next(server)
    message = next(parties, None)
    if message is not None and not bool(included.all()):
        message = from_senders(message, included)
    while message is not None:
        message = read(message)
        if hear is not None:
            hear(message)
        heard = server.send(message)
        if heard is None:
            raise RuntimeError("the server's end gives nothing to hear after a leg")
        try:
            message = parties.send(heard)
        except StopIteration:
            message = None
    return finish(server)


def from_senders(message: Message, senders: Tensor) -> Message:
    """The part of a message that comes from the ``senders``, (M,) bool."""
    heard = [(s, piece) for s, piece in zip(message.senders, message.pieces, strict=True) if senders[s]]
    alongside = None if message.alongside is None else from_senders(message.alongside, senders)
    senders_heard, pieces = tuple(s for s, _ in heard), tuple(piece for _, piece in heard)
    return replace(message, senders=senders_heard, pieces=pieces, alongside=alongside)


def open_round(opening: Opening, memory: Any, view: PartyView, hear: Hear | None = None) -> Any:
    """Run the opening of a round whose parties are all hosted here: they hear what they send, and so does ``hear``."""
    end = opening_end(opening, memory, view)
    try:
        message = next(end)
        while True:
            if hear is not None:
                hear(message)
            message = end.send(message)
    except StopIteration as over:
        return over.value
