"""The server's port: two unary methods over gRPC, with mutual TLS."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import grpc

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.hub import Hub, Interrupted
from lightning_vfl.federation.identity import Identity

SERVICE = "lightning_vfl.Federation"
LARGEST = 2**30  # bytes of a frame


def options(silence: float) -> list[tuple[str, int]]:
    """Settings of both ends of a connection.

    A ping after half of ``silence`` seconds without traffic, which has the other half to be answered, notices a frozen
    host. A frame of an upload fits into the first window of HTTP/2.
    """
    half = max(500, round(500 * silence))  # milliseconds
    return [
        ("grpc.max_receive_message_length", LARGEST),
        ("grpc.max_send_message_length", LARGEST),
        ("grpc.http2.lookahead_bytes", 2**20),
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", max(400, half - 1000)),
    ]


def server_credentials(identity: Identity, charter: Charter) -> Any:
    """TLS of the server, which asks every caller for one of the parties' certificates.

    A pinned certificate is a trust root and could sign others: who calls is decided by ``Charter.holder``.
    """
    roots = b"".join(party.certificate.content for party in charter.parties)
    return grpc.ssl_server_credentials([(identity.key, identity.certificate.content)], roots, True)


class Port:
    """Answers the calls of parties.

    Args:
        hub: reads requests and holds answers.
        address: ``host:port`` to listen at; port 0 takes a free one.
        who: from the certificate that a caller has shown (PEM; None without TLS) to the number of its party.
        credentials: of the server; None: without TLS.
        silence: seconds without an answer after which a connection has ended.

    Raises:
        ConfigurationError: for an address that is taken.
    """

    def __init__(
        self,
        hub: Hub,
        address: str,
        who: Callable[[bytes | None], int],
        credentials: Any = None,
        silence: float = 15.0,
    ) -> None:
        self.hub = hub
        self.who = who
        self._pool = ThreadPoolExecutor(max_workers=4 * hub.parties + 4, thread_name_prefix="federation")
        self._server = grpc.server(self._pool, options=[*options(silence), ("grpc.so_reuseport", 0)])
        methods = {
            "Exchange": grpc.unary_unary_rpc_method_handler(self._exchange),
            "Alive": grpc.unary_unary_rpc_method_handler(self._alive),
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
        try:
            if credentials is None:
                self.port: int = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigurationError(f"the server cannot listen at {address}; use an address that is free") from error
        self._over = Event()
        self._server.start()

    def close(self) -> None:
        """Stop listening, after the answers that are on their way."""
        self._over.set()
        self._server.stop(grace=2.0).wait()

    def _caller(self, context: Any) -> int:
        shown: Sequence[bytes] = context.auth_context().get("x509_pem_cert", ())
        try:
            return self.who(shown[0] if shown else None)
        except ConfigurationError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise  # abort has raised already

    def _exchange(self, content: bytes, context: Any) -> bytes:
        party = self._caller(context)
        try:
            return self.hub.call(party, content, context.is_active)
        except Interrupted as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    def _alive(self, content: bytes, context: Any) -> bytes:
        """Held open: its end is how the death of a party is noticed."""
        party = self._caller(context)
        self.hub.joined(party, content)
        if not context.add_callback(lambda: self.hub.left(party, content)):  # it has ended already
            self.hub.left(party, content)
        while context.is_active() and not self._over.wait(timeout=1.0):
            pass
        return b""
