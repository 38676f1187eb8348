"""``lightning-vfl doctor`` over real sockets: it names each planted fault by its step, and a sound host by none."""

import io
import os
import shutil
import socket
import time
from contextlib import redirect_stdout
from threading import Thread

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from benchmarks.free_ports import free_ports
from lightning_vfl.commands.light import answer
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.hub import Hub
from lightning_vfl.federation.identity import load, make_identity, paths
from lightning_vfl.federation.versions import versions
from tests.integration.federations import prepare
from tests.integration.test_federated_walls import apart, listening
from tests.unit.federation.certificates import issued

pytestmark = [pytest.mark.processes, pytest.mark.slow]

HERE = ["disk", "table", "federation.yaml", "certificates", "identity"]
AWAY = ["proxy", "name", "tcp", "tls", "server", "access", "versions", "same file", "clock"]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Hosts:
    """A server that listens, and the files of its host and of the party ``bank``."""

    def __init__(self, folder, host="127.0.0.1"):
        from lightning_vfl.federation.connections import server_credentials
        from lightning_vfl.federation.grpc_server import Port
        from lightning_vfl.federation.over_grpc import OverGRPC
        from lightning_vfl.federation.versions import about

        self.folder = folder
        folder.mkdir()
        for name in ("scorer", "bank"):
            make_identity(name, folder)
            (folder / f"{name}.seat.yaml").write_text(f"key: {name}.key\n")
        (folder / "bank.csv").write_text("id,income\n7,secret-cell\n")
        self.number = free_ports(1)[0]
        self.address = f"{host}:{self.number}"
        self.write()
        charter = Charter.read(folder / "federation.yaml")
        own = load(*paths("scorer", folder))
        secret = server_credentials(own, charter)
        self.told = {}
        tell = lambda: {**about(charter), **self.told}  # noqa: E731
        self.port = Port(Hub(1), self.address, OverGRPC(charter, own)._holder, secret, about=tell)

    def write(self, address=None, **more):
        said = {
            "federation": "trial",
            "server": {"name": "scorer", "address": address or self.address, "certificate": "scorer.crt"},
            "parties": [{"name": "bank", "certificate": "bank.crt"}],
        }
        (self.folder / "federation.yaml").write_text(yaml.safe_dump({**said, **more}))

    def renew(self, name, folder="new"):
        """Another key and certificate of a host, in its files."""
        make_identity(name, self.folder / folder)
        for new, old in zip(paths(name, self.folder / folder), paths(name, self.folder), strict=True):
            old.write_bytes(new.read_bytes())

    def expire(self, name):
        key, certificate = paths(name, self.folder)
        private = load_pem_private_key(key.read_bytes(), None)
        certificate.write_bytes(issued(private, name, since=-9, until=-1, issuer=name))

    def examine(self, *more, name="bank"):
        """The status, the steps that are fine, and the lines of those that fail."""
        files = {"--seat": f"{name}.seat.yaml", "--table": "bank.csv", "--folder": "runs"}
        words = [word for option, file in files.items() for word in (option, str(self.folder / file))]
        host = [] if name == "scorer" else ["--name", name]
        with redirect_stdout(io.StringIO()) as out:
            status = answer(["doctor", str(self.folder / "federation.yaml"), *host, *words, *more])
        lines = out.getvalue().splitlines()
        fine = [line[8:23].strip() for line in lines if line.startswith("ok")]
        wrong = {line[8:23].strip(): line[25:] for line in lines if line.startswith("FAILED")}
        assert len(fine) + len(wrong) == len(lines), lines
        assert "secret-cell" not in out.getvalue()
        assert status == int(bool(wrong))
        return fine, wrong


def tunnel(target):
    """The port of a proxy that connects everybody to a port of this machine, whatever name is asked for."""
    proxy = socket.create_server(("127.0.0.1", 0))

    def carry(source, sink):
        while content := source.recv(65536):
            sink.sendall(content)
        sink.shutdown(socket.SHUT_WR)

    def run():
        while True:
            caller = proxy.accept()[0]
            if not caller.recv(4096).startswith(b"CONNECT "):
                continue
            server = socket.create_connection(("127.0.0.1", target))
            caller.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            Thread(target=carry, args=(caller, server), daemon=True).start()
            Thread(target=carry, args=(server, caller), daemon=True).start()

    Thread(target=run, daemon=True).start()
    return proxy.getsockname()[1]


def plant_proxy(hosts):
    os.environ["https_proxy"] = f"http://127.0.0.1:{tunnel(hosts.number)}"
    hosts.write(f"scorer.invalid:{hosts.number}")


FAULTS = {  # what is planted -> the step, words of its line
    "wrong name": ("name", "correct server.address"),
    "closed port": ("tcp", "start lightning-vfl serve there"),
    "another program": ("tls", "end that program"),
    "silent program": ("tls", "end that program"),
    "another server": ("server", "get the certificate that the server has now"),
    "another key": ("identity", "does not belong"),
    "unknown certificate": ("access", "give it the certificate of bank"),
    "expired certificate": ("certificates", "correct the clock of this host, or make one"),
    "clock": ("clock", "2:00:00 behind that of the server"),
    "newer server": ("versions", "upgrade this host"),
    "older server": ("versions", "upgrade the server"),
    "other frames": ("versions", "frames of version 2, this host of version 1; upgrade this host"),
    "other file": ("same file", "copy the file"),
    "no permission": ("disk", "get permission there"),
    "full disk": ("disk", "make room"),
    "no id column": ("table", "has no column 'customer'"),
    "proxy needed": ("proxy", "write proxy: env into seat.yaml"),
}


def plant(fault, hosts):
    """Plant a fault; the words that it adds to the command line."""
    match fault:
        case "wrong name":
            hosts.write(f"scorer.invalid:{hosts.number}")
        case "closed port":
            hosts.write(f"127.0.0.1:{free_ports(1)[0]}")
        case "another program":
            hosts.write(f"127.0.0.1:{listening(b'SSH-2.0-other')}")
        case "silent program":
            hosts.write(f"127.0.0.1:{listening(None)}")
        case "another server":
            hosts.renew("scorer")
        case "another key":
            (hosts.folder / "bank.key").write_bytes((hosts.folder / "scorer.key").read_bytes())
        case "unknown certificate":
            hosts.renew("bank")
        case "expired certificate":
            hosts.expire("bank")
        case "clock":
            hosts.told = {"time": time.time() + 7200}
        case "newer server":
            hosts.told = {"versions": {"frames": 2, "package": "1.10.0"}}
        case "older server":
            hosts.told = {"versions": {"frames": 1, "package": "0.9.9"}}
        case "other frames":
            hosts.told = {"versions": {**versions(), "frames": 2}}
        case "other file":
            hosts.write(patience={"join": 5})
        case "no permission":
            (hosts.folder / "runs").write_text("a file stands where the folder has to be")
        case "full disk":
            full = shutil._ntuple_diskusage(100, 100, 0)
            shutil.disk_usage = lambda _: full
        case "no id column":
            return ["--id_column", "customer"]
        case "proxy needed":
            plant_proxy(hosts)
    return []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_by_its_step(fault, tmp_path):
    def role():
        prepare()
        hosts = Hosts(tmp_path / "hosts")
        more = plant(fault, hosts)
        fine, wrong = hosts.examine(*more)
        step, words = FAULTS[fault]
        assert [*wrong] == [step], (fine, wrong)
        assert words in wrong[step]
        if step in AWAY:
            assert fine == [*HERE, *AWAY[: AWAY.index(step)]]
        if fault == "proxy needed":
            (hosts.folder / "bank.seat.yaml").write_text("key: bank.key\nproxy: env\n")
            assert [*hosts.examine()[1]] == ["same file"]  # it is reached; its server has another address

    apart(role, tmp_path / "role.txt")


@pytest.mark.parametrize("host", ["127.0.0.1", "LocalHost", "[::1]"])
def test_a_sound_host_has_no_failed_step(host, tmp_path):
    if host == "[::1]" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")

    def role():
        prepare()
        hosts = Hosts(tmp_path / "hosts", host)
        assert hosts.examine() == ([*HERE, *AWAY], {})
        fine, wrong = hosts.examine(name="scorer")
        assert (fine, [*wrong]) == ([*HERE, "name"], ["port"])
        assert "another program listens" in wrong["port"]
        hosts.port.close()
        assert hosts.examine(name="scorer") == ([*HERE, "name", "port"], {})

    apart(role, tmp_path / "role.txt")


def _has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
