"""Flower for tests: a SuperLink and SuperNodes as processes, with TLS and keys of nodes, which run the relay."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from benchmarks.free_ports import free_ports
from lightning_vfl.federation.identity import make_identity

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "federation" / "flower"


def programs() -> Path:
    """The folder of Flower's programs: ``.flower/bin`` of the checkout, or on the path."""
    here, found = ROOT / ".flower" / "bin", shutil.which("flower-superlink")
    if (here / "flower-superlink").exists():
        return here
    if found is None:
        pytest.skip("needs Flower in an environment of its own: make .flower")
    return Path(found).parent


class Flower:
    """A SuperLink and a SuperNode for each party.

    Args:
        folder: of logs and keys.
        sockets: by party, where its process listens.
        server: where the server's process listens.
        check: seconds after which the relay asks a party whether it is still there.
    """

    def __init__(self, folder: Path, sockets: dict[str, Path], server: Path, check: int) -> None:
        self.folder, self.sockets, self.server, self.check = folder, sockets, server, check
        self.programs = programs()
        folder.mkdir()
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",
        }
        (folder / "home").mkdir()

    def start(self) -> None:
        """Start the SuperLink, make the SuperNodes known to it, start them, and run the relay."""
        make_identity("superlink", self.folder)
        root = self.folder / "superlink.crt"
        (self.port,) = free_ports(1)
        self._start(
            "superlink",
            *("flower-superlink", "--port", str(self.port), "--enable-supernode-auth"),
            *("--ssl-ca-certfile", str(root), "--ssl-certfile", str(root)),
            *("--ssl-keyfile", str(self.folder / "superlink.key"), "--disable-runtime-dependency-installation"),
        )
        settings = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
        settings += f'root-certificates = "{root}"\n'
        (self.folder / "home" / "config.toml").write_text(settings)
        self._await_port(self.port)
        for name in self.sockets:
            self.call("supernode", "register", str(self._key(name).with_suffix(".pub")), "here")
            self.start_node(name)
        self.call("run", str(APP), "here", "--run-config", f'socket="{self.server}" check={self.check}')

    def start_node(self, name: str) -> None:
        """Start the SuperNode of a party."""
        (own,) = free_ports(1)
        self._start(
            name,
            *("flower-supernode", "--superlink", f"127.0.0.1:{self.port}"),
            *("--root-certificates", str(self.folder / "superlink.crt")),
            *("--auth-supernode-private-key", str(self.folder / f"{name}.key"), "--port", str(own)),
            *("--node-config", f'socket="{self.sockets[name]}"'),
        )

    def call(self, *arguments: str) -> str:
        """What ``flwr`` prints."""
        done = subprocess.run(
            [self.programs / "flwr", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return done.stdout

    def log(self, name: str) -> str:
        """What a process has printed."""
        return (self.folder / f"{name}.txt").read_text()

    def kill(self, name: str) -> None:
        """End a process and its children at once."""
        process = self.started[name]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all processes and their children."""
        for name in self.started:
            self.kill(name)

    def _start(self, name: str, program: str, *arguments: str) -> None:
        with (self.folder / f"{name}.txt").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [self.programs / program, *arguments],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _await_port(self, port: int) -> None:
        end = time.monotonic() + 60
        while True:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if time.monotonic() > end or self.started["superlink"].poll() is not None:
                raise TimeoutError(self.log("superlink"))
            time.sleep(0.1)

    def _key(self, name: str) -> Path:
        """A new key of a SuperNode; the file of its private half."""
        key, path = generate_private_key(SECP384R1()), self.folder / f"{name}.key"
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        path.chmod(0o600)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        path.with_suffix(".pub").write_bytes(public + b"\n")
        return path
