"""A party's line to the server: numbered requests over a transport, and answers that are read once."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from torch import Tensor

from lightning_vfl.errors import ConfigurationError, MalformedFrame, printable
from lightning_vfl.federation.agreed import Agreed
from lightning_vfl.federation.fields import MOST_PARTIES, refuse_answer
from lightning_vfl.federation.frames import Frame, pack, unpack_pieces
from lightning_vfl.federation.hub import DOOR, At, Hub, Key
from lightning_vfl.federation.spans import span
from lightning_vfl.federation.watch import Peer

START = At(0, 0, -1)  # before the first round


class Transport(ABC):
    """Carries frames between a party and the server.

    Attributes:
        process: random bytes that tell this process from the party's others.
    """

    process: bytes

    def server(self, awaited: bool) -> Peer:
        """The server, as a watcher is told of it; default: nobody can say whether it is there."""
        return Peer(None, None, awaited)

    @abstractmethod
    def exchange(self, frame: bytes, read: Callable[[Iterable[bytes]], Frame]) -> Frame:
        """The server's answer to a frame; waits for it, and tries again if the connection breaks.

        Args:
            frame: what this party sends.
            read: makes the answer of its pieces; it is called again when the connection breaks between two of them.

        Raises:
            ConfigurationError: if the server cannot be reached, or refuses this party.
        """

    @abstractmethod
    def close(self) -> None:
        """Hang up."""


class ServerEnd(Protocol):
    """The server's end of the lines to the parties: it calls ``Hub.call`` for each frame, with the party's number."""

    def close(self) -> None:
        """Stop listening."""


class Way(ABC):
    """How frames get from the parties to the server; no other part of a process knows it.

    Attributes:
        place: where the server is reached, for messages.
        last_words: seconds that parties may take to hear that the training is over.
    """

    place: str
    last_words: float

    @abstractmethod
    def port(self, hub: Hub) -> ServerEnd:
        """Listen; the server's end.

        Raises:
            ConfigurationError: for a place that is taken.
        """

    @abstractmethod
    def transport(self, party: int) -> Transport:
        """The end of the party with this number."""


class FederationEnded(ConfigurationError):
    """The server has ended the training."""


class RoundClosed(Exception):
    """The server has gone on without this party: what it has asked belongs to a round that is over."""


@dataclass
class Standing:
    """Where the server stands, as far as a party has been told.

    Args:
        at: the last round that has begun.
        called: the parties that are called in the next round.
        enough: whether these can make a round; else they wait until others are back.
        counts: rounds of every stage that had begun when ``at`` began.
        keyed: by stage, the parties that have the keys of its rounds.
        joins: how often a party has joined, with a new key for sealed messages.
        retries: batches of the evaluation of ``at`` that were lost and are evaluated again.
    """

    at: At = field(default=START)
    called: frozenset[int] = frozenset()
    enough: bool = True
    counts: Mapping[str, int] = field(default_factory=dict)
    keyed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    joins: int = 0
    retries: int = 0


def fields_of(frame: Frame, *names: str) -> list[Any]:
    """Fields of the server's answer that a party cannot do without.

    Raises:
        ConfigurationError: naming the first one that is missing.
    """
    for name in names:
        if name not in frame.header:
            raise ConfigurationError(f"the server has sent no '{name}'; check who runs the server, and its version")
    return [frame.header[name] for name in names]


class Link:
    """A party's requests.

    Args:
        transport: carries the frames.
        agreed: against which answers are checked; None: the usual limits.
    """

    def __init__(self, transport: Transport, agreed: Agreed | None = None) -> None:
        self.transport = transport
        self.agreed = agreed or Agreed.of(MOST_PARTIES)
        self.standing = Standing()
        self.told: Mapping[str, Any] | None = None  # what has become of the round of the last request
        self.metrics: Mapping[str, float] = {}  # the server's latest
        self._calls = 0
        self.asked: float | None = None  # since when it waits for an answer (monotonic)
        self.seconds: dict[str, float] = {}  # by what it has asked, for which it has waited

    def ask(
        self,
        key: Key,
        say: str,
        header: Mapping[str, Any] | None = None,
        tensors: Sequence[Tensor] = (),
        bits: Sequence[int | None] | None = None,
    ) -> Frame | None:
        """The server's answer to a request at a turn of a round; None if that round is closed.

        Raises:
            FederationEnded: if the server has ended the training.
            ConfigurationError: if the server refuses the request.
        """
        about = {**(header or {}), "call": self._calls, "at": list(key.at), "turn": key.turn, "say": say}
        self._calls += 1
        content = pack(about, tensors, bits)
        allowed = self.agreed.limits
        if max(len(content), sum(piece.nbytes for piece in tensors)) > allowed.frame_bytes:
            raise ConfigurationError(
                f"a message of this party has more than the {allowed.frame} MiB that limits.frame of federation.yaml "
                "allows; raise it on all hosts"
            )
        self.asked = began = monotonic()
        with span(say, **key.at._asdict(), turn=key.turn):
            frame = self.transport.exchange(content, self._read)
        self.asked = None
        self.seconds[say] = self.seconds.get(say, 0.0) + monotonic() - began
        standing = frame.header.get("standing")
        if standing is not None:
            at = At(*standing["at"])
            called = frozenset(standing["called"])
            more = (standing[name] for name in ("enough", "counts", "keyed", "joins", "retries"))
            self.standing = Standing(at, called, *more)
        self.told = frame.header.get("plan")
        self.metrics = frame.header.get("metrics", self.metrics)
        match frame.header["outcome"]:
            case "go":
                return frame
            case "closed":
                return None
            case "over":
                raise FederationEnded(printable(frame.header.get("why", "the server has ended the training")))
            case _:
                raise ConfigurationError(printable(frame.header.get("why", "the server refuses this request")))

    def knock(self, say: str, header: Mapping[str, Any] | None = None, tensors: Sequence[Tensor] = ()) -> Frame:
        """The server's answer to a request that belongs to no round, before the training.

        Raises:
            ConfigurationError: if the server refuses the request, or has ended.
        """
        frame = self.ask(DOOR, say, header, tensors)
        if frame is None:
            raise ConfigurationError("the server has closed the federation; start it again")
        return frame

    def _read(self, pieces: Iterable[bytes]) -> Frame:
        """The server's answer, which may have a message of every party.

        Raises:
            ConfigurationError: naming the server, for another answer than the tables allow.
        """
        most = self.agreed.limits.frame_bytes * len(self.agreed.names)
        try:
            return unpack_pieces(pieces, most, lambda header, _: refuse_answer(header, self.agreed))
        except MalformedFrame as error:
            raise ConfigurationError(
                f"the server has sent what is refused: {error}; check who runs the server"
            ) from None
