"""Runs the rounds of other platforms with their own interpreters, and reads the milliseconds of each round."""

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep

from benchmarks.free_ports import free_ports

HERE = Path(__file__).parent
TRIES = 3


def over_nvflare(python: Path, clients: int, rounds: int, rows: int, width: int) -> list[float]:
    """Milliseconds of rounds over NVFlare's auxiliary channel, in its simulator.

    On a busy machine, the simulator may lose clients at its start; it is then started again, three times in all.

    Args:
        python: the interpreter of an environment with ``nvflare``.
        clients: M.
        rounds: that are measured.
        rows: of a matrix.
        width: of a matrix.
    """
    for attempt in range(1, TRIES + 1):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            numbers = [str(number) for number in (clients, rounds + 1, rows, width)]
            environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
            command = [str(python), str(HERE / "nvflare_rounds.py"), *numbers, name]
            with (folder / "log.txt").open("wb") as log:
                process = subprocess.Popen(
                    command, env=environment, cwd=name, stdout=log, stderr=log, start_new_session=True
                )
            try:
                return _milliseconds(folder, [process], 120.0 + rounds)
            except (TimeoutError, RuntimeError):
                print(f"NVFlare with {clients} clients: attempt {attempt} of {TRIES} has failed")
                if attempt == TRIES:
                    raise
    raise AssertionError


def over_flower(python: Path, clients: int, rounds: int, rows: int, width: int) -> list[float]:
    """Milliseconds of rounds over Flower's Message API, with a SuperLink and a SuperNode for each client.

    Args:
        python: the interpreter of an environment with ``flwr``.
        clients: M.
        rounds: that are measured.
        rows: of a matrix.
        width: of a matrix.
    """
    programs = python.parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        link, *nodes = free_ports(1 + clients)
        environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "FLWR_HOME": name,
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        (folder / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
        )

        def start(*arguments: str) -> subprocess.Popen[bytes]:
            with (folder / "log.txt").open("ab") as log:
                return subprocess.Popen(
                    [str(programs / arguments[0]), *arguments[1:]],
                    env=environment,
                    cwd=name,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

        started = [start("flower-superlink", "--insecure", "--port", str(link))]
        try:
            _wait(lambda: socket.socket().connect_ex(("127.0.0.1", link)) == 0, 60.0, folder)
            address = f"127.0.0.1:{link}"
            for port in nodes:
                started.append(start("flower-supernode", "--insecure", "--superlink", address, "--port", str(port)))
            config = f'clients={clients} rounds={rounds + 1} rows={rows} width={width} file="{folder / "ends.json"}"'
            run = [str(programs / "flwr"), "run", str(HERE / "flower"), "here", "--run-config", config]
            subprocess.run(run, env=environment, cwd=name, check=True, capture_output=True)
        except BaseException:
            _end(started)
            raise
        return _milliseconds(folder, started, 180.0 + 20.0 * rounds)


def _milliseconds(folder: Path, started: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[float]:
    file = folder / "ends.json"
    try:

        def written() -> bool:
            if file.exists() and file.read_text().endswith("]"):
                return True
            if started[0].poll() is not None:
                raise RuntimeError((folder / "log.txt").read_text()[-3000:])
            return False

        _wait(written, seconds, folder)
        ends = json.loads(file.read_text())
        return [1e3 * (b - a) for a, b in pairwise(ends)]
    finally:
        _end(started)


def _wait(condition: Callable[[], bool], seconds: float, folder: Path) -> None:
    end = monotonic() + seconds
    while not condition():
        if monotonic() > end:
            raise TimeoutError((folder / "log.txt").read_text()[-3000:])
        sleep(0.05)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
