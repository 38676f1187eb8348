"""Federations of real processes for tests: the commands ``serve`` and ``party`` over mutual TLS on this machine."""

import csv
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
import yaml

from benchmarks.free_ports import free_ports
from lightning_vfl.commands.program import run_or_exit
from lightning_vfl.federation.frames import Frame
from lightning_vfl.federation.identity import make_identity
from lightning_vfl.federation.local import start

BASE = ("--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu")


def prepare() -> None:
    """In a process of its own, before anything runs.

    It has one thread, so that bits do not depend on the machine. A warning ends it no more than it ends a user's, and
    what it prints is in its log.
    """
    warnings.resetwarnings()
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(one), "w", buffering=1) for one in (1, 2))  # not those of pytest
    for handler in logging.getLogger("lightning.pytorch").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)  # it has the stream that there was when Lightning was imported
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def tap(keep: Callable[[bytes, bytes], None]) -> Callable[[], None]:
    """What a party's process does before its command: ``keep`` gets every frame that it sends, and the answer."""

    def before() -> None:
        from lightning_vfl.federation.grpc_client import Dialled

        exchange = Dialled.exchange

        def tapped(self: Dialled, frame: bytes, read: Callable[[Iterable[bytes]], Frame]) -> Frame:
            def kept(pieces: Iterable[bytes]) -> Frame:
                answer = b"".join(pieces)
                keep(frame, answer)
                return read([answer])

            return exchange(self, frame, kept)

        Dialled.exchange = tapped  # type: ignore[method-assign]

    return before


def cut_digits(folder: Path, parties: int = 4, data: str = "data/digits", more: tuple[str, ...] = ()) -> Path:
    """Write the digits, or other data, as a table for each party, and one with the labels; returns the folder."""

    def role() -> None:
        prepare()
        run_or_exit(["cut", "--config", data, "--data.partitioner.parties", str(parties), "--out", str(folder), *more])

    _, status = os.waitpid(start(role, folder / "cut.txt"), 0)
    if status:
        raise RuntimeError((folder / "cut.txt").read_text())
    return folder


class Federation:
    """Processes of one federation, in a folder.

    Args:
        folder: of keys, logs and runs.
        names: of the parties.
        recipe: arguments of every process.
        sockets: by name, where a relay calls each process; None: over gRPC.
        weights: as in ``federation.yaml``; seeded ones are those of a simulation.
        patience: as in ``federation.yaml``.
    """

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        recipe: tuple[str, ...],
        sockets: Mapping[str, Path] | None = None,
        weights: str = "seeded",
        **patience: float,
    ) -> None:
        self.folder, self.names, self.recipe, self.sockets = folder, names, recipe, sockets or {}
        self.weights = weights
        self.running: dict[str, int] = {}
        self.started: dict[str, int] = {}
        self.before: dict[str, Callable[[], None]] = {}  # by name, what a process does before its command
        keys = folder / "keys"
        for name in ("scorer", *names):
            make_identity(name, keys)
            seat = {"key": f"keys/{name}.key", "evaluate": "plain"}
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(seat))
        self.patience = {"join": 60, "reconnect": 60, **patience}
        self.charter = folder / "federation.yaml"
        self.move()
        self.events = folder / "events.csv"

    def move(self) -> None:
        """Give the server an address at which it listens from its next start on."""
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        said = {
            "federation": "trial",
            "server": {"name": "scorer", "address": self.address, "certificate": "keys/scorer.crt"},
            "parties": [{"name": name, "certificate": f"keys/{name}.crt"} for name in self.names],
            "weights": self.weights,
            "patience": self.patience,
        }
        self.charter.write_text(yaml.safe_dump(said, sort_keys=False))

    def serve(self, *more: str) -> None:
        """Start the server."""
        self._start("scorer", "serve", str(self.charter), "--events", str(self.events), then=more)

    def party(self, name: str, *more: str) -> None:
        """Start a party."""
        self._start(name, "party", str(self.charter), "--name", name, then=more)

    def everybody(self) -> None:
        """Start the server and all parties."""
        self.serve()
        for name in self.names:
            self.party(name)

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        """End a process at once."""
        os.kill(self.running[name], how)
        if how == signal.SIGKILL:
            os.waitpid(self.running.pop(name), 0)

    def wait(self, seconds: float = 90.0, names: Collection[str] = ()) -> dict[str, int]:
        """Wait until all processes have ended, or those of some ``names``; their exit statuses.

        Raises:
            TimeoutError: naming those that run.
        """
        end, statuses = time.monotonic() + seconds, {}
        awaited = set(names or self.running)
        while awaited & self.running.keys():
            for name in awaited & self.running.keys():
                ended, status = os.waitpid(self.running[name], os.WNOHANG)
                if ended:
                    statuses[name] = os.waitstatus_to_exitcode(status)
                    del self.running[name]
            if time.monotonic() > end:
                stuck = list(self.running)
                self.stop()
                raise TimeoutError(f"{stuck} have not ended; see {self.folder}")
            time.sleep(0.02)
        return statuses

    def stop(self) -> None:
        """End all processes."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        self.running.clear()

    def rounds(self) -> list[dict[str, str]]:
        """The lines of the record so far."""
        if not self.events.exists():
            return []
        with self.events.open(newline="") as file:
            return [row for row in csv.DictReader(file) if row.get("restored") is not None]

    def await_round(self, number: int, seconds: float = 60.0) -> None:
        """Wait until a training round is over."""
        end = time.monotonic() + seconds
        while not any(int(row["round"]) >= number for row in self.rounds()):
            if time.monotonic() > end:
                self.stop()
                raise TimeoutError(f"round {number} has not come; see {self.folder}")
            time.sleep(0.005)

    def log(self, name: str) -> str:
        """What a process has printed since its last start."""
        return (self.folder / f"{name}.{self.started[name]}.txt").read_text()

    def checkpoint(self, name: str) -> Path:
        """The newest checkpoint of a process."""
        found = (self.folder / "runs" / name).rglob("*.ckpt")
        return max(found, key=lambda path: path.stat().st_mtime)

    def states(self) -> dict[str, torch.Tensor]:
        """The weights of all processes together, from their newest checkpoints."""
        together: dict[str, torch.Tensor] = {}
        for name in ("scorer", *self.names):
            together |= torch.load(self.checkpoint(name), weights_only=True)["state_dict"]
        return together

    def replay(self, *more: str, seconds: float = 300.0) -> dict[str, torch.Tensor]:
        """The weights of the simulation of the record."""
        folder = ("--secrets", str(self.folder / "runs")) if self.weights == "secret" else ()
        self._start("replay", "replay", str(self.events), *folder, *more, own=False)
        if self.wait(seconds)["replay"]:
            raise RuntimeError(self.log("replay"))
        weights: dict[str, torch.Tensor] = torch.load(self.checkpoint("replay"), weights_only=True)["state_dict"]
        return weights

    def _start(self, name: str, command: str, *more: str, own: bool = True, then: tuple[str, ...] = ()) -> None:
        number = self.started[name] = self.started.get(name, -1) + 1
        seat = ("--seat", str(self.folder / f"{name}.yaml")) if own else ()
        relay = ("--relay", str(self.sockets[name])) if name in self.sockets else ()
        root = ("--trainer.default_root_dir", str(self.folder / "runs" / name))
        arguments = [command, *more, *seat, *relay, *self.recipe, *BASE, *root, *then]

        def role() -> None:
            prepare()
            self.before.get(name, lambda: None)()
            run_or_exit(arguments)

        self.running[name] = start(role, self.folder / f"{name}.{number}.txt")
