"""A party's line over gRPC: it dials out, tries again when a connection breaks, and holds one call open."""

import os
from collections.abc import Callable, Iterable
from threading import Event, Thread
from time import monotonic, sleep, time
from typing import Any

import grpc

from lightning_vfl.errors import ConfigurationError, printable
from lightning_vfl.federation.connections import PIECE, SERVICE, calling, in_words
from lightning_vfl.federation.frames import Frame
from lightning_vfl.federation.grpc_server import PROCESS_KEY, pieces
from lightning_vfl.federation.link import Transport
from lightning_vfl.federation.long_waits import LongWait
from lightning_vfl.federation.watch import Peer

ATTEMPT = 5.0  # seconds that a connection may take, as at the server
_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class Dialled(Transport):
    """A transport over one gRPC channel to the server.

    Args:
        address: ``host:port`` of the server.
        credentials: of this party; None: without TLS.
        reconnect: seconds for which a broken connection is tried again.
        silence: seconds without an answer after which the connection has ended.
        expected: the name in the server's certificate, if it is not the host of the address.
        proxy: as ``calling`` takes it.
    """

    def __init__(
        self,
        address: str,
        credentials: Any = None,
        reconnect: float = 600.0,
        silence: float = 15.0,
        expected: str | None = None,
        proxy: str | None = None,
    ) -> None:
        self.address = address
        self.reconnect = reconnect
        self.proxy = proxy
        attempt = min(ATTEMPT, max(1.0, reconnect / 4))
        settings: list[tuple[str, Any]] = [
            *calling(silence, expected, proxy),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.min_reconnect_backoff_ms", round(1000 * attempt)),  # how long an attempt to connect may take
        ]
        self._channel = (
            grpc.insecure_channel(address, settings)
            if credentials is None
            else grpc.secure_channel(address, credentials, settings)
        )
        self._exchange: Callable[..., Any] = self._channel.unary_stream(f"/{SERVICE}/Exchange")
        self._exchange_in_pieces: Callable[..., Any] = self._channel.stream_stream(f"/{SERVICE}/Exchange")
        # an answer that is read as a stream: what the server sends at the beginning of the call is seen at once
        self._alive: Callable[..., Any] = self._channel.unary_stream(f"/{SERVICE}/Alive")
        self.process = os.urandom(16)  # tells the server that a call is of this process
        self._closed = Event()
        self._apart: float | None = monotonic()  # since when there is no connection; None: there is one
        self._since: float | None = None  # the same in seconds since 1970; None: there has been none
        self._losses = 0
        self._trouble = "no connection has been made"
        self._waiting: LongWait | None = None
        for name, role in (("alive", self._stay), ("waits", self._watch)):
            Thread(target=role, name=name, daemon=True).start()

    def exchange(self, frame: bytes, read: Callable[[Iterable[bytes]], Frame]) -> Frame:
        began = monotonic()
        failed = None
        self._waiting = LongWait(self._server)
        try:
            while True:
                try:
                    return self._sent(frame, read)
                except grpc.RpcError as error:
                    code = error.code()
                    details = printable(error.details())
                if code not in _AGAIN:
                    raise ConfigurationError(f"the server at {self.address} refuses this party: {details}")
                failed = monotonic() if failed is None else failed
                self._trouble = in_words(details)
                since = failed if self._apart is None else max(began, self._apart)
                if monotonic() - since > self.reconnect:
                    raise ConfigurationError(
                        f"the server at {self.address} has not answered for {self.reconnect:g} s{self._way()}: "
                        f"{self._trouble} ({details}); check that it runs, and that both sides have each other's "
                        "certificates"
                    )
                sleep(0.2)
        finally:
            self._waiting = None

    def _sent(self, frame: bytes, read: Callable[[Iterable[bytes]], Frame]) -> Frame:
        """The answer to a frame. One that fits into a piece goes as a single message, which needs no thread."""
        answer = self._exchange(frame) if len(frame) <= PIECE else self._exchange_in_pieces(pieces(frame))
        try:
            return read(answer)
        finally:
            answer.cancel()  # of an answer that was refused before its end; it changes nothing otherwise

    def server(self, awaited: bool) -> Peer:
        return Peer(self._since, self._apart is None, awaited, self._losses)

    def close(self) -> None:
        self._closed.set()
        self._channel.close()

    def _stay(self) -> None:
        """Hold a call open, so that each side notices when the process of the other one ends."""
        while not self._closed.is_set():
            try:
                call = self._alive(b"", metadata=((PROCESS_KEY, self.process),), wait_for_ready=True)
                call.initial_metadata()  # which the server sends when it knows the party
                if not call.done():
                    self._apart, self._since = None, time()
                for _ in call:  # until the server ends the call
                    pass
                return
            except (grpc.RpcError, ValueError):  # ValueError: the channel was closed
                if self._apart is None:
                    self._apart, self._since = monotonic(), time()
                    self._losses += 1
                self._closed.wait(0.2)

    def _watch(self) -> None:
        """Say when an answer takes long."""
        while not self._closed.wait(1.0):
            waiting = self._waiting
            if waiting is not None:
                waiting.look()

    def _way(self) -> str:
        return "" if self.proxy is None else f" through the proxy {self.proxy}"

    def _server(self) -> str:
        """The server, and what stands between it and this party."""
        if self._apart is None:
            return f"the server at {self.address}: it is connected, and may wait for other parties"
        way = self._way() or " directly, without a proxy"
        return f"the server at {self.address}, which is called{way}: {self._trouble}"
