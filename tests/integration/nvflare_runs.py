"""NVFlare for tests: a job in its simulator, and in its POC mode with processes of a server and sites."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.integration.federations import Federation

ROOT = Path(__file__).parents[2]
CLASSES = [f"lightning_vfl.federation.nvflare_job.{name}" for name in ("Federation", "Party")]


def program() -> Path:
    """NVFlare's program: in ``.nvflare/bin`` of the checkout, or on the path."""
    here, found = ROOT / ".nvflare" / "bin" / "nvflare", shutil.which("nvflare")
    if here.exists():
        return here
    if found is None:
        pytest.skip("needs NVFlare in an environment of its own: make .nvflare")
    return Path(found)


class Job:
    """A job in NVFlare, with the keys, the charter and the recipe of a federation over gRPC.

    Args:
        folder: of NVFlare.
        one: the federation, which need not run.
        recipe: of all processes.
        job: the folder that ``lightning-vfl cut --nvflare`` has written.
    """

    def __init__(self, folder: Path, one: Federation, recipe: Mapping[str, Any], job: Path) -> None:
        self.folder, self.one, self.recipe, self.job = folder, one, recipe, job
        self.program = program()
        self.environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "HOME": str(folder / "home"),
            "NVFLARE_POC_WORKSPACE": str(folder),
        }
        (folder / "home").mkdir(parents=True)
        self.local = dict.fromkeys(("server", *one.names), folder / "local")
        self.running: subprocess.Popen[bytes] | None = None

    # ---- the simulator

    def simulate(self) -> None:
        """Start the simulator, with a process for each site."""
        (self.folder / "startup").mkdir()
        local = self.folder / "local"
        local.mkdir()
        (local / "resources.json").write_text(json.dumps({"format_version": 2, "class_allow_list": CLASSES}))
        for name in self.local:
            self._settle(local, name)
            self.local[name] = self.folder / name / "local"  # a copy, which the simulator makes
        names = ",".join(self.one.names)
        sites = ("-c", names, "-t", str(len(self.one.names)))
        self._start("simulator", str(self.job), "-w", str(self.folder), *sites)

    # ---- a server and sites as processes

    def provision(self) -> None:
        """Make the start-up kits, certificates included, and let each site allow the classes of the job."""
        self._call("poc", "prepare", "-c", *self.one.names, "--force")
        (kits,) = self.folder.glob("*/prod_00")
        for name in self.local:
            self.local[name] = local = kits / name / "local"
            written = (local / "resources.json", local / "resources.json.default")
            resources = next(path for path in written if path.exists())
            content = json.loads(resources.read_text())
            content["class_allow_list"] += CLASSES
            resources.write_text(json.dumps(content))
            self._settle(local, name)

    def submit(self) -> None:
        """Start the processes, and submit the job."""
        self._call("poc", "start", "--timeout", "120")
        self._call("job", "submit", "-j", str(self.job))

    def process(self, name: str) -> int | None:
        """The process of the server or a party that runs now."""
        folder = os.path.realpath(self.seat(name))
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.path.realpath(path / "cwd") == folder and b"--relay" in (path / "cmdline").read_bytes():
                    return int(path.name)
        return None

    # ---- what has become of it

    def seat(self, name: str) -> Path:
        """The folder of a site's process."""
        return self.local[name] / "lightning_vfl" / name

    def events(self) -> Path:
        """The record of the server."""
        return self.seat("server") / "events.csv"

    def lines(self) -> list[str]:
        """The lines of the record so far."""
        return self.events().read_text().splitlines() if self.events().exists() else []

    def states(self) -> dict[str, torch.Tensor]:
        """The weights of all processes together, from their newest checkpoints."""
        together: dict[str, torch.Tensor] = {}
        for name in self.local:
            newest = max(self.seat(name).rglob("*.ckpt"), key=lambda path: path.stat().st_mtime)
            together |= torch.load(newest, weights_only=True)["state_dict"]
        return together

    def log(self) -> str:
        """What NVFlare has printed."""
        return (self.folder / "home" / "log.txt").read_text()

    def wait(self, seconds: float) -> int:
        """Wait for the simulator; its exit status."""
        assert self.running is not None
        return self.running.wait(seconds)

    def finish(self, seconds: float) -> None:
        """Wait until no process of the job runs."""
        end = time.monotonic() + seconds
        for name in self.local:
            while self.process(name) is not None:
                if time.monotonic() > end:
                    raise TimeoutError(name)
                time.sleep(0.1)

    def stop(self) -> None:
        """End all processes, which are those that were started with a path in the folder."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{self.folder}/".encode() in (path / "cmdline").read_bytes():
                    os.kill(int(path.name), signal.SIGKILL)
        if self.running is not None:
            self.running.kill()
            self.running.wait()

    def _settle(self, local: Path, name: str) -> None:
        """The files of a site."""
        own = "scorer" if name == "server" else name
        folder = local / "lightning_vfl" / name
        (folder / "keys").mkdir(parents=True)
        for path in (self.one.folder / "keys").glob("*.crt"):
            shutil.copy(path, folder / "keys")
        shutil.copy(self.one.folder / "keys" / f"{own}.key", folder / "keys")
        shutil.copy(self.one.folder / f"{own}.yaml", folder / "seat.yaml")
        shutil.copy(self.one.charter, folder / "federation.yaml")
        (folder / "recipe.yaml").write_text(yaml.safe_dump(dict(self.recipe)))

    def _start(self, *arguments: str) -> None:
        with (self.folder / "home" / "log.txt").open("wb") as log:
            self.running = subprocess.Popen(
                [self.program, *arguments],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _call(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.program, *arguments],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
        )
        if done.returncode:
            raise RuntimeError(done.stdout)
        return done.stdout


def await_lines(lines: Any, number: int, seconds: float) -> float:
    """Wait until a record has so many lines; the time at which it has."""
    end = time.monotonic() + seconds
    while len(lines()) < number:
        if time.monotonic() > end:
            raise TimeoutError(f"{len(lines())} of {number} lines")
        time.sleep(0.002)
    return time.monotonic()
