"""A federation through a relay that others run, such as a Flower app: both ends have a socket of their own host.

The relay calls each end at a Unix socket, and passes bytes between them: what the server has answered to a party, and
what the party asks next. Processes, networks and identities of the relay are its own matter; see ``sealed_line``.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from threading import Condition, Thread
from time import monotonic, sleep
from typing import TypeVar

from lightning_vfl.errors import ConfigurationError, printable
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.frames import Frame
from lightning_vfl.federation.hub import Hub, Interrupted
from lightning_vfl.federation.identity import Identity
from lightning_vfl.federation.link import Transport, Way
from lightning_vfl.federation.long_waits import LongWait
from lightning_vfl.federation.sealed_line import (
    ANSWER,
    FRAME,
    HELLO,
    PROCESS,
    REFUSED,
    UNKNOWN,
    Greeting,
    SealedLine,
    number_of,
    welcome,
)

T = TypeVar("T")

SEALED = 1024  # bytes that sealing can add to a frame
HOLD = 10.0  # seconds for which a call of the relay waits for the next frame; the relay waits longer
_DONE, _AGAIN, _REFUSED = b"d", b"a", b"r"  # the first byte of a sealed answer


def listen(socket: Path) -> Listener:
    """Listen at a Unix socket that only this user can open; a socket that a dead process has left is replaced.

    Raises:
        ConfigurationError: for a path that cannot be listened at.
    """
    before = os.umask(0o177)
    try:
        if socket.is_socket():
            socket.unlink()
        return Listener(str(socket), "AF_UNIX")
    except OSError as error:
        raise ConfigurationError(
            f"--relay {socket} cannot be listened at ({error.strerror or error}); give a path of at most 100 "
            "characters in a folder that exists"
        ) from None
    finally:
        os.umask(before)


class ThroughRelay(Way):
    """Both ends wait at a socket of their own for the calls of a relay.

    Args:
        socket: where the relay calls.
        charter: of the federation.
        identity: of this host.
    """

    last_words = 60.0

    def __init__(self, socket: Path, charter: Charter, identity: Identity) -> None:
        self.socket = socket
        self.charter = charter
        self.identity = identity
        self.place = str(socket)

    def port(self, hub: Hub) -> "RelayPort":
        return RelayPort(hub, self.socket, self.identity, self.charter)

    def transport(self, party: int) -> "Relayed":
        return Relayed(self.socket, party, self.identity, self.charter)


class Relayed(Transport):
    """A party's transport through a relay, which fetches its frames at a Unix socket.

    Guarantee: the relay can withhold, repeat and delay, but neither read nor change a frame or its answer.

    Args:
        socket: where the relay calls.
        party: the number of this party.
        identity: of this host.
        charter: of the federation.
    """

    def __init__(self, socket: Path, party: int, identity: Identity, charter: Charter) -> None:
        self.socket = socket
        self.process = os.urandom(PROCESS)
        self._greet = partial(Greeting, party, self.process, identity, charter)
        self._reconnect = charter.patience.reconnect
        self._most = len(charter.parties) * charter.limits.frame_bytes + SEALED
        self._line: SealedLine | None = None
        self._number = 0
        self._changed = Condition()
        self._out: bytes | None = None  # what the relay is to fetch
        self._answers: list[bytes] = []
        self._heard = monotonic()
        self._open = True
        self._listener = listen(socket)
        Thread(target=self._attend, name="relay", daemon=True).start()

    def exchange(self, frame: bytes, read: Callable[[Iterable[bytes]], Frame]) -> Frame:
        while True:
            if self._line is None:
                greeting = self._greet()
                self._line = self._pass(greeting.content, partial(_welcomed, greeting))
                self._number = 0
            line = self._line
            number = self._number
            self._number += 1
            answer = self._pass(FRAME + line.sends.seal(frame, number), partial(_opened, line, number))
            kind, content = answer[:1], answer[1:]
            if kind == _DONE:
                return read([content])
            if kind == _REFUSED:
                raise ConfigurationError(
                    f"the server refuses this party: {printable(content.decode(errors='replace'))}"
                )
            if kind == UNKNOWN:  # another process of the server, or another connection of the relay
                self._line = None
            else:
                sleep(0.2)

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._listener.close()

    def _pass(self, content: bytes, accept: Callable[[bytes], T | None]) -> T:
        """Have the relay fetch this; what ``accept`` makes of the first answer that it accepts."""
        waiting = LongWait(self._server)
        with self._changed:
            self._out, self._heard = content, monotonic()
            self._answers.clear()
            self._changed.notify_all()
            while True:
                while self._answers:
                    answer = self._answers.pop(0)
                    accepted = accept(answer)
                    if accepted is not None:
                        self._out = None
                        return accepted
                self._changed.notify_all()
                self._changed.wait(timeout=1.0)
                waiting.look()
                if monotonic() - self._heard > self._reconnect:
                    raise ConfigurationError(
                        f"the relay has not called at {self.socket} for {self._reconnect:g} s; check that it runs, and "
                        "that it was given this socket"
                    )

    def _server(self) -> str:
        calls = "calls here" if monotonic() - self._heard < HOLD else f"has not called at {self.socket}"
        return f"the server; the relay {calls}"

    def _attend(self) -> None:
        """Answer the relay's calls, one after the other."""
        while self._open:
            try:
                with self._listener.accept() as call:
                    answer = call.recv_bytes(self._most)
                    with self._changed:
                        self._heard = monotonic()
                        if answer and self._out is not None:
                            self._answers.append(answer)
                            self._changed.notify_all()
                        self._changed.wait_for(self._ready, timeout=HOLD)
                        content = self._out or b""
                        self._heard = monotonic()
                    if self._open:
                        call.send_bytes(content)
            except (OSError, EOFError):
                continue

    def _ready(self) -> bool:
        return not self._open or (self._out is not None and not self._answers)


def _welcomed(greeting: Greeting, content: bytes) -> SealedLine | None:
    if content[:1] == REFUSED:
        raise ConfigurationError(f"the server refuses this party: {printable(content[1:].decode(errors='replace'))}")
    return greeting.accept(content)


def _opened(line: SealedLine, number: int, content: bytes) -> bytes | None:
    """The answer to a frame; None for another answer, which a relay may bring late or twice."""
    if content[:1] == UNKNOWN:
        return UNKNOWN
    try:
        return line.hears.open(content[1:], number) if content[:1] == ANSWER else None
    except ValueError:
        return None


class RelayPort:
    """The server's end of a relay: a connection for each party, at a Unix socket.

    Args:
        hub: reads requests and holds answers.
        socket: where the relay calls.
        identity: of this host.
        charter: of the federation.

    Raises:
        ConfigurationError: for a socket that cannot be listened at.
    """

    def __init__(self, hub: Hub, socket: Path, identity: Identity, charter: Charter) -> None:
        self.hub = hub
        self.socket = socket
        self._identity = identity
        self._charter = charter
        self._open = True
        self._calls: list[Connection] = []
        self._listener = listen(socket)
        Thread(target=self._accept, name="relay", daemon=True).start()

    def close(self) -> None:
        """Stop listening; the relay still reads the answers that were given."""
        self._open = False
        self._listener.close()
        for call in self._calls:
            with suppress(OSError):
                call.close()

    def _accept(self) -> None:
        while self._open:
            try:
                call: Connection = self._listener.accept()
            except OSError:
                continue
            self._calls.append(call)
            Thread(target=self._attend, args=(call,), name="relayed", daemon=True).start()

    def _attend(self, call: Connection) -> None:
        """Answer what one party asks, until the relay hangs up."""
        desk = _Desk(self.hub, lambda: not call.poll())
        hello = welcomed = b""
        try:
            while self._open:
                content = call.recv_bytes(self.hub.agreed.limits.frame_bytes + SEALED)
                if content == hello:
                    answer = welcomed
                elif content[:1] == HELLO:
                    try:
                        welcomed, desk.fresh = welcome(content, self._identity, self._charter)
                    except ConfigurationError as error:
                        welcomed = REFUSED + str(error).encode()
                    hello = content
                    answer = welcomed
                elif content[:1] == FRAME:
                    answer = desk.answer(content[1:])
                else:
                    answer = UNKNOWN
                call.send_bytes(answer)
        except (OSError, EOFError):
            pass
        finally:
            desk.leave()
            self._calls.remove(call)
            with suppress(OSError):
                call.close()


class _Desk:
    """One connection: the party behind it, and the last answer, for a frame that comes twice."""

    def __init__(self, hub: Hub, alive: Callable[[], bool]) -> None:
        self.hub = hub
        self.alive = alive
        self.fresh: SealedLine | None = None  # welcomed, and not heard since: anybody could repeat an old hello
        self._line: SealedLine | None = None
        self._last: tuple[int, bytes] = (-1, b"")

    def answer(self, sealed: bytes) -> bytes:
        """The sealed answer to a sealed frame; UNKNOWN for a frame of no greeting here."""
        number = number_of(sealed)
        for line in (self.fresh, self._line):
            if line is None:
                continue
            try:
                frame = line.hears.open(sealed, number)
            except ValueError:
                continue
            if line is self.fresh:
                self.leave()
                self._line = line
                self.fresh = None
                self._last = (-1, b"")
                self.hub.joined(line.party, line.process)
            if number == self._last[0]:
                return self._last[1]
            if number < self._last[0]:
                break
            self._last = number, ANSWER + line.sends.seal(self._asked(line.party, frame), number)
            return self._last[1]
        return UNKNOWN

    def leave(self) -> None:
        """The party behind this connection has left it."""
        if self._line is not None:
            self.hub.left(self._line.party, self._line.process)
            self._line = None

    def _asked(self, party: int, frame: bytes) -> bytes:
        try:
            return _DONE + self.hub.call(party, frame, self.alive)
        except Interrupted:
            return _AGAIN
        except ValueError as error:
            return _REFUSED + str(error).encode()
