"""Law: connections from which no call has come are closed beyond a number, and no descriptor is left open for it."""

import os
import socket
from contextlib import ExitStack, suppress

from lightning_vfl.federation.grpc_server import close_idle


def test_idle_connections_are_closed_and_descriptors_do_not_grow():
    with ExitStack() as ends:
        server = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        for _ in range(8):  # a process has descriptors that are no sockets, and gRPC makes some
            for end in os.pipe():
                ends.callback(os.close, end)
        connections = [ends.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(6)]
        accepted = [ends.enter_context(server.accept()[0]) for _ in connections]
        own = connections[0].getsockname()[1]
        before = len(os.listdir("/dev/fd"))
        closed = [close_idle(port, {f"ipv4:127.0.0.1:{own}"}, 2) for _ in range(4)]
        assert closed[0] == 3
        assert len(os.listdir("/dev/fd")) == before
        connections[0].send(b"x")
        assert accepted[0].recv(1) == b"x"
        ended = 0
        for one in connections[1:]:
            one.settimeout(0.05)
            with suppress(TimeoutError):
                ended += one.recv(1) == b""
        assert ended == 3
