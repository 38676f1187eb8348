"""Law: a server outlives any number of callers at once, and shows new certificates after a change alone."""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from lightning_vfl.federation.connections import renewable_credentials, server_credentials
from lightning_vfl.federation.identity import load, paths, renew_identity
from lightning_vfl.federation.local import found


def of_server(charter, folder):
    return load(*paths("server", folder / "keys")), charter.read(folder / "federation.yaml")


def test_nothing_is_new_without_a_change(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda *given: made.append(given))
    charter = found("production", ["bank"], tmp_path)
    now = [of_server(charter, tmp_path)]
    renewable_credentials(lambda: now[0])
    ((first, changed, needed),) = made
    assert needed
    assert isinstance(first, grpc.ServerCertificateConfiguration)
    assert [changed() for _ in range(3)] == [None] * 3
    for name in ("bank", "server"):
        renew_identity(name, tmp_path / "keys")
        now[0] = of_server(charter, tmp_path)
        assert isinstance(changed(), grpc.ServerCertificateConfiguration)
        assert changed() is None


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["fixed", "renewable"])
def test_a_server_outlives_callers_that_come_at_once(kind, tmp_path):
    """The C core of gRPC once crashed here within a second: connections shared what it had freed."""
    found("production", ["bank"], tmp_path)
    command = [sys.executable, __file__, kind, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert (ended.returncode, ended.stdout) == (0, "there\n"), ended.stderr[-2000:]


def crowd(kind, folder):
    """Let threads connect to a server for a second, and say that it is there."""
    from lightning_vfl.federation.charter import Charter

    own = of_server(Charter, folder)
    credentials = server_credentials(*own) if kind == "fixed" else renewable_credentials(lambda: own)
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()

    def connect(_):
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.send(b"x")

    end = time.monotonic() + 1.0
    with ThreadPoolExecutor(16) as pool:
        while time.monotonic() < end:
            list(pool.map(connect, range(64)))
    server.stop(0).wait()
    print("there")


if __name__ == "__main__":
    crowd(sys.argv[1], Path(sys.argv[2]))
