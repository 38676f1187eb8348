"""The server's desk: what parties have asked, and what they are answered. Threads, and no network.

Every request of a party has a key: where it stands in the training, and which turn of that round it is. A transport
calls ``call`` in a thread for each request; the thread of the server's trainer reads requests and posts answers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from threading import Condition, RLock
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import MalformedFrame
from lightning_vfl.federation.agreed import Agreed
from lightning_vfl.federation.fields import refuse_request
from lightning_vfl.federation.frames import Frame, pack, unpack_pieces
from lightning_vfl.federation.long_waits import LongWait
from lightning_vfl.federation.spans import span
from lightning_vfl.federation.watch import Peer

T = TypeVar("T")


class At(NamedTuple):
    """Where a round is in the training; earlier rounds are smaller.

    Args:
        round: training rounds that have begun before it.
        stage: 0 sanity check, 1 validation, 2 training, 3 test, 4 prediction.
        batch: number of the batch in an evaluation.
    """

    round: int
    stage: int
    batch: int


class Key(NamedTuple):
    """A turn of a round: requests and answers with the same key belong together."""

    at: At
    turn: int


LINES = 5  # refused requests of a party that are printed
DOOR = Key(At(-1, 0, 0), 0)  # of requests that belong to no round


@dataclass(eq=False)
class Request:
    """What a party has asked.

    Args:
        party: who.
        call: the number of the call, so that a repeated call has one effect.
        key: where the party stands.
        say: what it wants.
        frame: all that it has sent.
        arrived: when, on the monotonic clock.
        decoded: the numbers of a compressed upload, from the moment at which its form was checked.
    """

    party: int
    call: int
    key: Key
    say: str
    frame: Frame
    arrived: float
    decoded: Tensor | None = None

    @cached_property
    def sealed(self) -> Mapping[int, Tensor] | None:
        """What the party has sealed, by receiver; None if the frame does not list it."""
        listed = self.frame.header.get("sealed", [])
        tensors = self.frame.tensors
        if not isinstance(listed, list) or not all(type(one) is int for one in listed):
            return None
        if len({*listed}) != len(listed) or len(listed) > len(tensors):
            return None
        pieces = tensors[len(tensors) - len(listed) :]
        bytes_alone = all(piece.dtype == torch.uint8 and piece.ndim == 1 for piece in pieces)
        return dict(zip(listed, pieces, strict=True)) if bytes_alone else None


class Interrupted(ValueError):
    """A request has no answer because a connection has ended; the party may send it again."""


@dataclass
class _Desk:
    """One party's requests and answers; ``changed`` wakes the threads of its requests, and nobody else's."""

    changed: Condition
    waiting: Request | None = None
    posted: dict[Key, bytes] = field(default_factory=dict)
    last: tuple[int, bytes] = (-1, b"")
    lines: list[bytes] = field(default_factory=list)  # the process behind each open connection
    called: bytes | None = None  # the process that was called last
    has_come: bool = False  # a connection has been open
    since: float | None = None  # when the party has come or gone, in seconds since 1970
    losses: int = 0  # how often it has gone


class Hub:
    """The requests of M parties.

    Guarantee: a call that is repeated with the same number gets the same answer. A request for a round that is closed
        is answered at once. A request of one party never waits for the answer to another party's request.

    Args:
        parties: M.
        agreed: against which requests are checked; None: the usual limits, and the labels at the server.
    """

    def __init__(self, parties: int, agreed: Agreed | None = None) -> None:
        self.parties = parties
        self.agreed = agreed or Agreed.of(parties)
        self.greet: Callable[[Request], bytes | None] | None = None  # answers who joins
        lock = RLock()
        self.changed = Condition(lock)  # wakes the server: a party has asked, joined or left
        self._desks = [_Desk(Condition(lock)) for _ in range(parties)]
        self._closed: At | None = None  # rounds before this one, and turns of it that nobody answers any more
        self._closing: Callable[[Request], bytes | None] | None = None
        self._over: bytes | None = None
        self.bytes_in = self.bytes_out = 0
        self._refused = [0] * parties  # requests of each party
        self._waits: float | None = None  # since when the server waits for requests (monotonic)
        self.seconds: dict[str, float] = {}  # by leg, for which it has waited

    # ---- called by the transport

    def call(self, party: int, content: bytes, alive: Callable[[], bool] = lambda: True) -> bytes:
        """Answer a request; waits until there is an answer.

        Raises:
            Interrupted: if the connection has ended.
            ValueError: for a frame that is none, and one that is no request.
        """
        read = [self.read(party, [content])]
        del content  # a request that waits keeps its tensors alone
        return self.answer(read.pop(), alive)

    def answer(self, request: Request, alive: Callable[[], bool] = lambda: True) -> bytes:
        """Answer a request that has been read, as ``call`` does."""
        party = request.party
        call = request.call
        desk = self._desks[party]
        met = None if self.greet is None else self.greet(request)
        if met is not None:
            if request.say == "hello":  # the process is a new one, and counts its calls from here
                with self.changed:
                    desk.last = (call, met)
                    desk.waiting = None
                    desk.posted = {}
            return met
        with self.changed:
            self.bytes_in += request.frame.size
            if call == desk.last[0]:
                return desk.last[1]
            if call < desk.last[0]:
                raise ValueError(f"{self.agreed.party(party)} has sent call {call} after call {desk.last[0]}")
            desk.waiting = request
            key = request.key
            del request  # what an earlier call of the party has sent is freed, also while that call has no answer
            for older in [older for older in desk.posted if older < key]:  # nobody asks for older answers any more
                del desk.posted[older]
            self._notify(desk)
            while True:
                if call == desk.last[0]:  # the same call came twice, and the other one took the answer
                    return desk.last[1]
                if desk.waiting is None:  # a connection has ended; it may have been an earlier one
                    raise Interrupted(f"{self.agreed.party(party)} has lost its connection; it may ask again")
                if desk.waiting.call != call:
                    raise ValueError(f"{self.agreed.party(party)} has made another call before this one was answered")
                answer = self._answer(desk, desk.waiting)
                if answer is not None:
                    desk.waiting = None
                    desk.last = (call, answer)
                    self.bytes_out += len(answer)
                    return answer
                desk.changed.wait(timeout=5.0)
                if not alive():
                    raise Interrupted(f"{self.agreed.party(party)} has hung up")

    def read(self, party: int, pieces: Iterable[bytes]) -> Request:
        """The request of a frame that comes in pieces, after its sizes and its fields are checked.

        Raises:
            MalformedFrame: naming the party.
        """
        agreed = self.agreed
        try:
            frame = unpack_pieces(
                pieces,
                agreed.limits.frame_bytes,
                lambda header, tensors: refuse_request(party, header, tensors, agreed),
            )
        except MalformedFrame as error:
            name = agreed.party(party)
            line = str(error) if str(error).startswith(name) else f"{name} has sent what is refused: {error}"
            self._tell(party, line)
            raise MalformedFrame(line) from None
        header = frame.header
        key = Key(At(*header["at"]), header["turn"])
        return Request(party, header["call"], key, header["say"], frame, monotonic())

    def _tell(self, party: int, line: str) -> None:
        """Print why a request was refused; a party that sends many such requests is printed a few times."""
        self._refused[party] += 1
        if self._refused[party] <= LINES:
            rank_zero_info(f"refused: {line}")

    def joined(self, party: int, process: bytes = b"") -> None:
        """A connection of this party is open; ``process``: random bytes of the process behind it."""
        with self.changed:
            desk = self._desks[party]
            desk.since = desk.since if desk.lines else time()
            desk.lines.append(process)
            desk.has_come = True
            self._notify(desk)

    def left(self, party: int, process: bytes = b"") -> None:
        """A connection of this party has ended."""
        with self.changed:
            desk = self._desks[party]
            desk.lines.remove(process)
            if not desk.lines:
                desk.waiting = None
                desk.since = time()
                desk.losses += 1
            self._notify(desk)

    # ---- called by who watches

    def waited(self) -> float | None:
        """Seconds for which the server has been waiting for requests; None: it works."""
        since = self._waits
        return None if since is None else monotonic() - since

    def peers(self) -> list[Peer]:
        """Every party, as a watcher is told of it."""
        with self.changed:
            waits = self._waits is not None and not self.over
            return [
                Peer(desk.since, bool(desk.lines), waits and desk.waiting is None, desk.losses) for desk in self._desks
            ]

    # ---- called by the server

    def wait(
        self, found: Callable[[], T | None], until: Callable[[], float | None] = lambda: None, leg: str = ""
    ) -> T | None:
        """What ``found`` gives, asked again after every change; None when ``until`` (monotonic) has passed.

        Args:
            found: None: there is nothing yet.
            until: when the wait ends.
            leg: whose messages are awaited; its seconds are counted.
        """
        waiting = LongWait(self._silent)
        at = (self._closed or DOOR.at)._asdict()  # the round that has begun
        with span(leg, **at) if leg else nullcontext(), self.changed:
            self._waits = began = monotonic()
            try:
                while True:
                    result = found()
                    if result is not None:
                        return result
                    end = until()
                    left = inf if end is None else end - monotonic()
                    if left <= 0:
                        return None
                    waiting.look()
                    self.changed.wait(min(left, 30.0, waiting.seconds))
            finally:
                self._waits = None
                if leg:
                    self.seconds[leg] = self.seconds.get(leg, 0.0) + monotonic() - began

    def _silent(self) -> str:
        """The parties that have no request here, and whether they are connected."""
        words = []
        for party, desk in enumerate(self._desks):
            if desk.waiting is None:
                state = "is connected, and has sent nothing" if desk.lines else "has no connection"
                words.append(f"{self.agreed.party(party)}, which {state}")
        return "; ".join(words) or "parties whose requests belong to another round"

    def request(self, party: int, key: Key) -> Request | None:
        """The request of a party at this turn, if it has come."""
        waiting = self._desks[party].waiting
        return waiting if waiting is not None and waiting.key == key else None

    def waiting(self, party: int) -> Request | None:
        """The request of a party that has no answer yet."""
        return self._desks[party].waiting

    def present(self, party: int) -> bool:
        """Whether a connection of this party is open."""
        return bool(self._desks[party].lines)

    def process(self, party: int) -> bytes:
        """The process behind the newest open connection of this party; empty: there is none."""
        lines = self._desks[party].lines
        return lines[-1] if lines else b""

    def call_upon(self, parties: Iterable[int]) -> None:
        """These parties are called: from now on, ``stays`` is about the processes that are there now."""
        for party in parties:
            self._desks[party].called = self.process(party)

    def stays(self, party: int) -> bool:
        """Whether the process that was called is there; a party that is started again has other keys."""
        desk = self._desks[party]
        return self.present(party) and desk.called in (None, self.process(party))

    def runs_twice(self, party: int, process: bytes) -> bool:
        """Whether a connection of another process of this party is open."""
        with self.changed:
            return any(other != process for other in self._desks[party].lines)

    def post(
        self,
        party: int,
        key: Key,
        header: Mapping[str, Any],
        tensors: Sequence[Tensor] = (),
        bits: Sequence[int | None] | None = None,
    ) -> None:
        """Answer the request of a party at this turn, which may not have come yet."""
        self.put([(party, key, pack(header, tensors, bits))])

    def post_to_all(self, parties: Iterable[int], key: Key, header: Mapping[str, Any]) -> None:
        """Give the requests of these parties at this turn the same answer."""
        content = pack(header)
        self.put([(party, key, content) for party in parties])

    def refuse(self, request: Request, wrong: str) -> None:
        """Answer a request that cannot be used; its sender and this process say why."""
        why = f"refused: {self.agreed.party(request.party)} sent {wrong}; all must run the same recipe"
        rank_zero_warn(why)
        self.post(request.party, request.key, {"outcome": "refused", "why": why})

    def put(self, answers: Iterable[tuple[int, Key, bytes]]) -> None:
        """Answer requests by party and turn with packed frames.

        All answers of a round are put at once: a thread that sends one would otherwise run while the server still makes
        the others, and both would wait for each other at every operation.
        """
        with self.changed:
            for party, key, content in answers:
                desk = self._desks[party]
                desk.posted[key] = content
                if desk.waiting is not None and desk.waiting.key == key:
                    desk.changed.notify_all()

    def close(self, before: At, answer: Callable[[Request], bytes | None]) -> None:
        """From now on, requests of rounds before ``before`` are answered at once, with ``answer``; None: they wait."""
        with self.changed:
            self._closed = before
            self._closing = answer
            for desk in self._desks:  # a thread that is woken for nothing takes time from the server's
                if desk.waiting is not None and desk.waiting.key.at < before:
                    desk.changed.notify_all()

    @property
    def over(self) -> bool:
        """Whether no further round begins."""
        return self._over is not None

    def all_have_come(self) -> bool:
        """Whether every party has had a connection."""
        return all(desk.has_come for desk in self._desks)

    def end(self, header: Mapping[str, Any]) -> None:
        """From now on, every request that has no answer of its own gets this one."""
        with self.changed:
            self._over = pack(header)
            self._notify(*self._desks)

    def _notify(self, *desks: _Desk) -> None:
        """Wake the server, and the requests of these desks."""
        self.changed.notify_all()
        for desk in desks:
            desk.changed.notify_all()

    def _answer(self, desk: _Desk, request: Request) -> bytes | None:
        posted = desk.posted.pop(request.key, None)
        if posted is not None:
            return posted
        if self._closed is not None and self._closing is not None and request.key.at < self._closed:
            closing = self._closing(request)
            if closing is not None:
                return closing
        return self._over
