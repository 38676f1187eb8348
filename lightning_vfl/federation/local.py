"""A whole federation on this machine: a process for the server and one for each party, over real mutual TLS."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep

import yaml

from lightning_vfl.errors import ConfigurationError, on_one_line
from lightning_vfl.federation.charter import Charter, Weights
from lightning_vfl.federation.identity import make_identity, paths
from lightning_vfl.orphans import end_with_parent

TOLD = 1.0  # seconds in which the server tells the others that a process has failed
GRACE = 5.0  # seconds in which a process that is asked to end can end by itself


def found(name: str, parties: int | Sequence[str], folder: Path, weights: Weights = Weights.SECRET) -> Charter:
    """A charter of a server and M parties at a free port of this machine, with new identities.

    Args:
        name: of the federation.
        parties: the names of the M parties; a number: they are ``party0``, ``party1`` and so on.
        folder: of ``federation.yaml`` and the keys.
        weights: where initial weights and the noise of parties come from.

    Raises:
        ConfigurationError: for names that are not allowed.
    """
    named = [f"party{number}" for number in range(parties)] if isinstance(parties, int) else list(parties)
    if "server" in named:
        raise ConfigurationError("no party may be named 'server' in federate --local; give its table another name")
    folder.mkdir(parents=True, exist_ok=True)
    names = ["server", *named]
    for one in names:
        make_identity(one, folder / "keys")
    files = {one: f"keys/{paths(one, folder / 'keys')[1].name}" for one in names}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = {
        "federation": name,
        "server": {"name": "server", "address": f"127.0.0.1:{port}", "certificate": files["server"]},
        "parties": [{"name": one, "certificate": files[one]} for one in names[1:]],
        "weights": str(weights),
    }
    (folder / "federation.yaml").write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    return Charter.read(folder / "federation.yaml")


def start(role: Callable[[], None], log: Path | None) -> int:
    """Run a role in a child process, which ends with this process at the latest; returns its number.

    Args:
        role: what the process does; it must not have been prepared with threads.
        log: the file of what it prints; None: it prints here.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        end_with_parent(parent)
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("w", encoding="utf-8") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        role()
        status = 0
    except ConfigurationError as error:
        print(f"lightning-vfl: error: {on_one_line(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        status = 130
    except SystemExit as ended:  # the command has said why
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait_for(processes: dict[str, int], logs: dict[str, Path]) -> None:
    """Wait until all processes have ended; if one fails or is killed, end the others.

    Raises:
        ConfigurationError: naming the process that failed first, with its last line.
        SystemExit: with the status of the process that failed first, if it has no log: its line is here already.
    """
    left = dict(processes)
    try:
        while left:
            for name, status in _ended(left).items():
                if status:
                    code = os.waitstatus_to_exitcode(status)
                    if code > 0 and name not in logs:
                        raise SystemExit(code)
                    raise ConfigurationError(f"{name} {how_it_ended(code)}{_last_line(logs.get(name))}")
            sleep(0.02)
    finally:
        _end(left)


def how_it_ended(code: int) -> str:
    """The words for an exit code that is not 0; negative: of a process that a signal has killed."""
    if code >= 0:
        return "has failed"
    name = signal.Signals(-code).name
    return f"was killed by {name}" + (" (the memory of this machine may be full)" if name == "SIGKILL" else "")


def _ended(left: dict[str, int]) -> dict[str, int]:
    """The status of each process that has ended since; these are taken out of ``left``."""
    statuses = {}
    for name, process in list(left.items()):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            del left[name]
            statuses[name] = status
    return statuses


def _end(left: dict[str, int]) -> None:
    """End processes: first the server's answers may do it, then a signal, which a training may not act on."""
    for seconds, what in ((TOLD, signal.SIGTERM), (GRACE, signal.SIGKILL)):
        end = monotonic() + seconds
        while left and monotonic() < end:
            _ended(left)
            sleep(0.02)
        for process in left.values():
            os.kill(process, what)
    for process in left.values():
        os.waitpid(process, 0)


def _last_line(log: Path | None) -> str:
    if log is None or not log.exists():
        return ""
    lines = log.read_text(encoding="utf-8").strip().splitlines()
    return f": {lines[-1].removeprefix('lightning-vfl: error: ')} ({log})" if lines else f" ({log})"
