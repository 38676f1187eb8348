"""The server's port: two methods over gRPC, with mutual TLS. Requests and answers travel in pieces."""

import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from stat import S_ISSOCK
from threading import Event, Lock, Thread
from typing import Any

import grpc

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.connections import PIECE, SERVICE, options, raise_descriptors, refuse_taken
from lightning_vfl.federation.hub import Hub, Interrupted, Request

PROCESS = 64  # bytes that name a process
PROCESS_KEY = "process-bin"  # where a call has this name
CALLS = 2  # open calls of a party to each method: the one that waits, and the one that a new connection repeats
HANDSHAKE = 5.0  # seconds that a connection may take to show a certificate
SOURCE = 64  # connections of an address from which no call has come yet


def pieces(frame: bytes) -> Iterator[bytes]:
    """A frame in the order in which it travels."""
    return (frame[start : start + PIECE] for start in range(0, len(frame), PIECE))


class Port:
    """Answers the calls of parties.

    Args:
        hub: reads requests and holds answers.
        address: ``host:port`` to listen at; port 0 takes a free one.
        who: from the certificate that a caller has shown (PEM; None without TLS) to the number of its party.
        credentials: of the server; None: without TLS.
        silence: seconds without an answer after which a connection has ended.
        about: what a party is told that asks before it joins, as ``lightning-vfl doctor`` does.

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
        about: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.hub = hub
        self.about = about
        self.who = who
        raise_descriptors()
        workers = 2 * CALLS * hub.parties + 4
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="federation")
        settings = [
            *options(silence),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE)),
            ("grpc.max_concurrent_streams", 2 * CALLS),
            ("grpc.http2.bdp_probe", 0),  # else windows grow, and gRPC keeps that much of messages that are not read
        ]
        self._server = grpc.server(self._pool, options=settings)
        self._open = Counter[tuple[int, str]]()  # calls by party and method
        self._lock = Lock()
        self._reading = [Lock() for _ in range(hub.parties)]
        self._known: dict[str, None] = {}  # addresses and ports from which a party has called, the newest last
        # a stream of pieces: who calls is known before the first one is received
        methods = {
            "Exchange": grpc.stream_stream_rpc_method_handler(self._exchange),
            "Alive": grpc.stream_unary_rpc_method_handler(self._alive),
            "About": grpc.unary_unary_rpc_method_handler(self._about),
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
        refuse_taken(address)
        try:
            if credentials is None:
                self.port: int = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigurationError(f"the server cannot listen at {address}; use an address that is free") from error
        self._over = Event()
        self._server.start()
        Thread(target=self._guard, name="guard", daemon=True).start()

    def close(self) -> None:
        """Stop listening, after the answers that are on their way."""
        self._over.set()
        self._server.stop(grace=2.0).wait()

    def _caller(self, context: Any) -> int:
        shown: Sequence[bytes] = context.auth_context().get("x509_pem_cert", ())
        try:
            party = self.who(shown[0] if shown else None)
            with self._lock:
                self._known.pop(context.peer(), None)
                self._known[context.peer()] = None
                while len(self._known) > 100 * self.hub.parties:
                    self._known.pop(next(iter(self._known)))
            return party
        except ConfigurationError as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise  # abort has raised already

    @contextmanager
    def _counted(self, party: int, method: str, context: Any) -> Iterator[None]:
        """A call of a party; one too many is refused at once, so that the calls of others have threads."""
        with self._lock:
            full = self._open[party, method] >= CALLS
            self._open[party, method] += 0 if full else 1
        if full:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"{CALLS} calls of this party are open; close one")
        try:
            yield
        finally:
            with self._lock:
                self._open[party, method] -= 1

    def _guard(self) -> None:
        """Close the connections of an address that has too many without a call."""
        while not self._over.wait(timeout=1.0):
            with self._lock:
                known = {*self._known}
            close_idle(self.port, known, SOURCE)

    def _exchange(self, request: Iterator[bytes], context: Any) -> Iterator[bytes]:
        party = self._caller(context)
        with self._counted(party, "Exchange", context):  # until the party has read its answer
            yield from pieces(self._answer(party, request, context))

    def _answer(self, party: int, request: Iterator[bytes], context: Any) -> bytes:
        try:
            return self.hub.answer(self._received(party, request), context.is_active)
        except Interrupted as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    def _received(self, party: int, request: Iterator[bytes]) -> Request:
        """The request of a party, one at a time: its tensors, besides those of the request that waits.

        Raises:
            Interrupted: if the party hangs up before its frame is whole.
            ValueError: for a frame that is refused. Neither keeps the tensors in memory, as its cause would.
        """
        with self._reading[party]:
            try:
                return self.hub.read(party, request)
            except grpc.RpcError:
                kind: type[ValueError] = Interrupted
                line = f"{self.hub.agreed.party(party)} has hung up within a frame"
            except ValueError as refused:
                kind = ValueError
                line = str(refused)
                with suppress(grpc.RpcError):
                    pass_over(request, self.hub.agreed.limits.frame_bytes)
        raise kind(line)  # an error that is a variable here would keep this call, and its stream, until Python collects

    def _about(self, _: bytes, context: Any) -> bytes:
        with self._counted(self._caller(context), "About", context):
            return json.dumps(dict(self.about())).encode()

    def _alive(self, _: Iterator[bytes], context: Any) -> bytes:
        """Held open: its end is how the death of a party is noticed. Its message is not read."""
        party = self._caller(context)
        with self._counted(party, "Alive", context):
            content = dict(context.invocation_metadata()).get(PROCESS_KEY, b"")  # a message could be large
            if len(content) > PROCESS:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a process has a name of up to {PROCESS} bytes")
            self.hub.joined(party, content)
            context.send_initial_metadata(())  # the party knows that it is connected
            if not context.add_callback(lambda: self.hub.left(party, content)):  # it has ended already
                self.hub.left(party, content)
            while context.is_active() and not self._over.wait(timeout=1.0):
                pass
        return b""


def pass_over(rest: Iterator[bytes], most: int) -> None:
    """Read the rest of a refused frame, up to so many bytes: its sender gets the reason after its last byte."""
    for piece in rest:
        most -= max(len(piece), 1)  # empty pieces must end too
        if most < 0:
            return


def close_idle(port: int, known: Collection[str], most: int) -> int:
    """Close connections to a port of this process: those of each address beyond ``most`` from which no call has come.

    gRPC accepts connections by itself and has no limit for an address. A copy of a descriptor belongs to the same
    connection whatever gRPC does meanwhile, and is looked at before it is shut down. Without /dev/fd nothing is closed.

    Returns:
        How many connections were closed.
    """
    closed = 0
    idle = Counter[str]()
    try:
        descriptors = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return 0
    if len(descriptors) <= most:
        return 0
    for descriptor in descriptors:
        try:
            number = os.dup(descriptor)
        except OSError:  # closed since
            continue
        if not S_ISSOCK(os.fstat(number).st_mode):  # socket.socket would refuse it, and leave it open
            os.close(number)
            continue
        with socket.socket(fileno=number) as copy, suppress(OSError):
            if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.getsockname()[1] != port:
                continue
            host, own = copy.getpeername()[:2]
            host = host.removeprefix("::ffff:")
            if {f"ipv4:{host}:{own}", f"ipv6:%5B{host}%5D:{own}", f"ipv6:[{host}]:{own}"} & {*known}:
                continue
            idle[host] += 1
            if idle[host] > most:
                copy.shutdown(socket.SHUT_RDWR)
                closed += 1
    return closed
