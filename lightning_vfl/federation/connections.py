"""Connections over gRPC with mutual TLS: their settings, for training and for predictions in production."""

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from time import sleep
from typing import Any

import grpc

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.identity import Identity

SERVICE = "lightning_vfl.Federation"
ABOUT = f"/{SERVICE}/About"  # what lightning-vfl doctor asks a server
_SETTLED = 0.05  # seconds
PIECE = 2**20  # bytes of a piece of a frame: gRPC holds several copies of what it receives

_WORDS = (  # for what gRPC says when there is no connection; the first that fits
    ("proxy", "the proxy does not connect"),
    ("connection refused", "nothing listens there"),
    ("lookup", "the name of the host is not known"),
    ("verify_failed", "another certificate than that of federation.yaml is shown there"),
    ("handshake", "what listens there does not answer as a server of this federation"),
)


def options(silence: float, largest: int = PIECE) -> list[tuple[str, int]]:
    """Settings of both ends of a connection.

    A ping after half of ``silence`` seconds without traffic, which has the other half to be answered, notices a frozen
    host. A ping that is sent with traffic has as long: without ``ping_timeout_ms`` gRPC waits a minute for its answer,
    and sends no other ping meanwhile. A frame of an upload fits into the first window of HTTP/2. ``largest``: bytes of
    the largest message.
    """
    half = max(500, round(500 * silence))  # milliseconds
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.http2.lookahead_bytes", 2**20),
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        ("grpc.http2.ping_timeout_ms", half),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", max(400, half - 1000)),
    ]


def calling(silence: float, expected: str | None, proxy: str | None, largest: int = PIECE) -> list[tuple[str, Any]]:
    """Settings of a party's end of a connection.

    Args:
        silence: seconds without an answer after which the connection has ended.
        expected: the name in the server's certificate, if it is not the host of the address.
        proxy: ``http://host:port`` through which the server is called; None: directly, whatever the environment says.
        largest: bytes of the largest message.
    """
    settings: list[tuple[str, Any]] = [*options(silence, largest), ("grpc.enable_http_proxy", int(proxy is not None))]
    if proxy is not None:
        settings.append(("grpc.http_proxy", proxy))
    if expected is not None:
        settings.append(("grpc.ssl_target_name_override", expected))
    return settings


def server_credentials(identity: Identity, charter: Charter) -> Any:
    """TLS of the server, which asks every caller for one of the parties' certificates.

    A pinned certificate is a trust root and could sign others: who calls is decided by ``Charter.holder``.
    """
    return grpc.ssl_server_credentials(*_shown(identity, charter), True)


def renewable_credentials(current: Callable[[], tuple[Identity, Charter]]) -> Any:
    """As ``server_credentials``, of what is ``current`` when a party connects; open connections go on."""
    shown = _shown(*current())

    def changed() -> Any:
        """What a new connection is shown; None: the same as the one before.

        gRPC calls this for every connection, certificate or not, under a lock. If there is something new, gRPC frees
        what it had, although a connection of another thread may have left the lock and not have taken it yet: a process
        ends by SIGSEGV (https://github.com/grpc/grpc/issues/36693). So nothing is new without a change, and after one
        those connections, which need microseconds, are waited for.
        """
        nonlocal shown
        now = _shown(*current())
        if now == shown:
            return None
        shown = now
        sleep(_SETTLED)
        return grpc.ssl_server_certificate_configuration(*now)

    return grpc.dynamic_ssl_server_credentials(grpc.ssl_server_certificate_configuration(*shown), changed, True)


def _shown(identity: Identity, charter: Charter) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The key and the certificate of the server, and the certificates of the parties that it trusts."""
    roots = b"".join(party.certificate.content for party in charter.parties)
    return [(identity.key, identity.certificate.content)], roots


def party_credentials(identity: Identity, charter: Charter) -> Any:
    """TLS of a party, which trusts the server's pinned certificate and nothing else."""
    return grpc.ssl_channel_credentials(charter.server.certificate.content, identity.key, identity.certificate.content)


def refuse_taken(address: str) -> None:
    """Refuse an address at which another program listens: gRPC is content with one of the addresses of a name.

    Raises:
        ConfigurationError: naming the address that is taken.
    """
    host, _, port = address.rpartition(":")
    hosts = ("127.0.0.1", "::1") if host == "localhost" else (host.strip("[]"),)  # gRPC listens at both
    for one in hosts:
        try:
            resolved = socket.getaddrinfo(one, int(port), type=socket.SOCK_STREAM)
        except OSError:  # add_port says so
            continue
        for family, *_, where in resolved:
            try:
                socket.create_server(where, family=family).close()
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise ConfigurationError(
                        f"the server cannot listen at {address}: another program listens at {where[0]}, port {port}; "
                        "end that program, or use an address that is free"
                    ) from None


def raise_descriptors() -> None:
    """Allow this process as many open connections as the system lets it."""
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def in_words(details: str) -> str:
    """What keeps a party from its server, from gRPC's words."""
    return next((words for part, words in _WORDS if part in details.lower()), "there is no connection")
