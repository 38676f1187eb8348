"""A party's line over gRPC: it dials out, tries again when a connection breaks, and holds one call open."""

import os
from collections.abc import Callable
from threading import Thread
from time import monotonic, sleep
from typing import Any

import grpc

from lightning_vfl.errors import ConfigurationError, printable
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.grpc_server import LARGEST, PIECE, PROCESS_KEY, SERVICE, options
from lightning_vfl.federation.identity import Identity
from lightning_vfl.federation.link import Transport

_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


def party_credentials(identity: Identity, charter: Charter) -> Any:
    """TLS of a party, which trusts the server's pinned certificate and nothing else."""
    return grpc.ssl_channel_credentials(charter.server.certificate.content, identity.key, identity.certificate.content)


class Dialled(Transport):
    """A transport over one gRPC channel to the server.

    Args:
        address: ``host:port`` of the server.
        credentials: of this party; None: without TLS.
        reconnect: seconds for which a broken connection is tried again.
        silence: seconds without an answer after which the connection has ended.
        expected: the name in the server's certificate, if it is not the host of the address.
        largest: bytes of an answer.
    """

    def __init__(
        self,
        address: str,
        credentials: Any = None,
        reconnect: float = 600.0,
        silence: float = 15.0,
        expected: str | None = None,
        largest: int = LARGEST,
    ) -> None:
        self.address = address
        self.reconnect = reconnect
        settings: list[tuple[str, Any]] = [*options(silence, largest), ("grpc.initial_reconnect_backoff_ms", 100)]
        settings.append(("grpc.max_reconnect_backoff_ms", 2000))
        if expected is not None:
            settings.append(("grpc.ssl_target_name_override", expected))
        self._channel = (
            grpc.insecure_channel(address, settings)
            if credentials is None
            else grpc.secure_channel(address, credentials, settings)
        )
        self._exchange: Callable[..., bytes] = self._channel.unary_unary(f"/{SERVICE}/Exchange")
        self._exchange_in_pieces: Callable[..., bytes] = self._channel.stream_unary(f"/{SERVICE}/Exchange")
        self._alive: Callable[..., bytes] = self._channel.unary_unary(f"/{SERVICE}/Alive")
        self.process = os.urandom(16)  # tells the server that a call is of this process
        self._open = True
        self._thread = Thread(target=self._stay, name="alive", daemon=True)
        self._thread.start()

    def exchange(self, frame: bytes) -> bytes:
        began: float | None = None
        while True:
            try:
                return self._sent(frame)
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
                if code not in _AGAIN:
                    raise ConfigurationError(
                        f"the server at {self.address} refuses this party: {printable(details)}"
                    ) from None
                began = monotonic() if began is None else began
                if monotonic() - began > self.reconnect:
                    raise ConfigurationError(
                        f"the server at {self.address} has not answered for {self.reconnect:g} s "
                        f"({printable(details)}); check that it runs, and that both "
                        "sides have each other's certificates"
                    ) from None
                sleep(0.2)

    def _sent(self, frame: bytes) -> bytes:
        """The answer to a frame. One that fits into a piece goes as a single message, which needs no thread."""
        if len(frame) <= PIECE:
            return self._exchange(frame)
        pieces = (frame[start : start + PIECE] for start in range(0, len(frame), PIECE))
        return self._exchange_in_pieces(pieces)

    def close(self) -> None:
        self._open = False
        self._channel.close()

    def _stay(self) -> None:
        """Hold a call open, so that the server notices when this process ends."""
        while self._open:
            try:
                self._alive(b"", metadata=((PROCESS_KEY, self.process),), wait_for_ready=True)
                return
            except (grpc.RpcError, ValueError):  # ValueError: the channel was closed
                sleep(0.2)
