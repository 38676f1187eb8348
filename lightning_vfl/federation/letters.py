"""Messages as headers and tensors; pieces from party to party are sealed, so that the server can only relay them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.crypto import KeyPair, PairKeys, Sealed
from lightning_vfl.crypto.sealed import NONCE
from lightning_vfl.errors import MalformedMessage
from lightning_vfl.federation.agreed import Agreed
from lightning_vfl.federation.fields import MOST_PARTIES, checked_letter
from lightning_vfl.federation.frames import Frame, pack, unpack
from lightning_vfl.types import RoundNames, Stage
from lightning_vfl.wire import Message

Letter = dict[str, Any]


class Written(NamedTuple):
    """A header and tensors, with the size of a number of each tensor on the wire (None: as in memory)."""

    header: Letter
    tensors: list[Tensor]
    bits: list[int | None]


def written(message: Message, bits: Mapping[str, int] | None = None) -> Written:
    """The form of a message that travels.

    Args:
        message: any.
        bits: by kind, the size of an integer on the wire, as the legs say it; None: as in memory.
    """
    names = message.round
    receivers = message.receivers
    letter: Letter = {
        "kind": message.kind,
        "to": message.to,
        "senders": list(message.senders),
        "pieces": len(message.pieces),
        "receivers": None if receivers is None else list(receivers),
        "round": None if names is None else [str(names.stage), names.round],
        "relayed": message.relayed,
    }
    tensors = [piece.detach() for piece in message.pieces]
    size = (bits or {}).get(message.kind)
    sizes = [_size(piece, size) for piece in tensors]
    if message.alongside is not None:
        more = written(message.alongside, bits)
        letter["alongside"] = more.header
        tensors = tensors + more.tensors
        sizes = sizes + more.bits
    return Written(letter, tensors, sizes)


def enclosed(message: Message, header: Mapping[str, Any], bits: Mapping[str, int] | None = None) -> Written:
    """A message in the frame of a request or an answer, of which ``header`` has the other fields."""
    letter, tensors, sizes = written(message, bits)
    return Written({**header, "message": letter}, tensors, sizes)


def _size(piece: Tensor, bits: int | None) -> int | None:
    whole = piece.element_size() * 8
    return None if bits is None or piece.is_floating_point() or bits >= whole else bits


_ANYBODY = Agreed.of(MOST_PARTIES)


def message_of(frame: Frame, seed: int, agreed: Agreed = _ANYBODY) -> Message:
    """The message of a request or an answer, as ``read`` gives it; its tensors are the first ones of the frame."""
    return read(frame.header["message"], iter(frame.tensors), seed, agreed)


def read(letter: object, tensors: Iterator[Tensor], seed: int, agreed: Agreed = _ANYBODY) -> Message:
    """The message of a header, which takes its tensors from the front of ``tensors``.

    Args:
        letter: the header, which is compared with the table ``fields.LETTER``.
        tensors: of the frame.
        seed: of this process, for the round's random streams.
        agreed: of the federation.

    Raises:
        MalformedMessage: for a header that is none, and for fewer tensors than it has pieces.
    """
    told = checked_letter(letter, agreed)
    pieces = tuple(islice(tensors, told["pieces"]))
    if len(pieces) < told["pieces"]:
        raise MalformedMessage(f"the header of a message has {told['pieces']} pieces, but {len(pieces)} tensors")
    alongside = told.get("alongside")
    receivers = told["receivers"]
    names = told["round"]
    return Message(
        told["kind"],
        told["to"],
        tuple(told["senders"]),
        pieces,
        None if alongside is None else read(alongside, tensors, seed, agreed),
        None if receivers is None else tuple(receivers),
        None if names is None else RoundNames(seed, Stage(names[0]), names[1]),
        told["relayed"],
    )


def merged(messages: Sequence[Message]) -> Message:
    """One message of all senders, from messages of single senders; in order of the senders."""
    ordered = sorted(messages, key=lambda message: message.senders)
    first = ordered[0]
    alongside = [message.alongside for message in ordered if message.alongside is not None]
    return replace(
        first,
        senders=tuple(m for message in ordered for m in message.senders),
        pieces=tuple(piece for message in ordered for piece in message.pieces),
        alongside=merged(alongside) if alongside else None,
    )


def for_receiver(message: Message, receiver: int, parties: int) -> Message:
    """The part of a message to peers that one of them receives; axis 0 of each piece has length 1."""
    receivers = tuple(range(parties)) if message.receivers is None else message.receivers
    place = receivers.index(receiver)
    alongside = None if message.alongside is None else for_receiver(message.alongside, receiver, parties)
    pieces = tuple(piece[place : place + 1] for piece in message.pieces)
    return replace(message, pieces=pieces, receivers=(receiver,), alongside=alongside)


class Seals:
    """One party's channels to the others: AES-256-GCM under a key of each pair; the server relays what they seal.

    Guarantee: the server reads nothing of what a party seals, and what it changes, invents, repeats, or takes from
        another sender is refused, with the sender's number.
    Not guaranteed: that a message arrives; secrecy of its length.

    Args:
        party: the number of this party.
        session: bytes that belong to this federation; the same for all parties.
    """

    def __init__(self, party: int, session: bytes) -> None:
        self.party = party
        self.session = session
        self.agreed = _ANYBODY  # against which letters are checked
        self.pair = KeyPair()
        self.publics: dict[int, bytes] = {}
        self.fetch: Callable[[], Mapping[int, bytes]] | None = None  # asks for the others' public keys
        self._taken: set[bytes] = set()  # all public keys that have ever been taken
        self._out: dict[int, tuple[Sealed, int]] = {}
        self._in: dict[int, tuple[Sealed, int]] = {}

    def learn(self, publics: Mapping[int, bytes]) -> None:
        """Take the public keys of the others; a party with a new key begins new channels.

        A key that was replaced is never taken again: its channels would begin anew, with nonces that have been used.

        Raises:
            ValueError: for a key that two parties share or that was replaced, and for points that give no secret.
        """
        for other, public in publics.items():
            if other == self.party or self.publics.get(other) == public:
                continue
            if public == self.pair.public or public in self._taken:
                raise ValueError(
                    f"the public key of party {other} is one that it has replaced, or that of another party; every "
                    "process has a key of its own, so check who relays the keys"
                )
            self._taken.add(public)
            keys = PairKeys(self.party, self.pair, {other: public}, self.session)
            self._out[other] = Sealed(keys.key(other, "letters", self.party)), 0
            self._in[other] = Sealed(keys.key(other, "letters", other)), -1
            self.publics[other] = public

    def seal(
        self, message: Message, parties: int, receivers: Iterable[int], bits: Mapping[str, int] | None = None
    ) -> dict[int, Tensor]:
        """For each receiver the sealed part of this party's message, (n,) uint8."""
        sealed = {}
        for receiver in receivers:
            if receiver == self.party:
                continue
            channel, number = self._channel(self._out, receiver)
            content = channel.seal(pack(*written(for_receiver(message, receiver, parties), bits)), number)
            self._out[receiver] = channel, number + 1
            sealed[receiver] = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
        return sealed

    def open(self, sender: int, sealed: Tensor, seed: int) -> Message:
        """The message that a party has sealed for this one.

        Raises:
            MalformedMessage: for a message that was changed, repeated, or is of another sender.
        """
        content = sealed.numpy().tobytes()
        channel, last = self._channel(self._in, sender)
        number = int.from_bytes(content[:NONCE], "big")
        if number <= last:
            raise MalformedMessage(
                f"a sealed message of party {sender} has come twice; the server must relay each once"
            )
        try:
            frame = unpack(channel.open(content, number), self.agreed.limits.frame_bytes)
        except ValueError as error:
            raise MalformedMessage(f"a sealed message of party {sender} cannot be opened: {error}") from error
        self._in[sender] = channel, number
        try:
            message = read(frame.header, iter(frame.tensors), seed, self.agreed)
        except MalformedMessage as error:
            raise MalformedMessage(f"a sealed message of party {sender} cannot be used: {error}") from None
        if message.senders != (sender,) or message.receivers != (self.party,):
            raise MalformedMessage(
                f"party {sender} has sealed a message of parties {message.senders} for {message.receivers}; each party "
                "sends its own"
            )
        return message

    def _channel(self, channels: dict[int, tuple[Sealed, int]], other: int) -> tuple[Sealed, int]:
        if other not in channels and self.fetch is not None:
            self.learn(self.fetch())
        if other not in channels:
            raise MalformedMessage(f"the public key of party {other} has not come; it has not joined the federation")
        return channels[other]
