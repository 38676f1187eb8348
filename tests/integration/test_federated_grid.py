"""Whoever is struck, at whatever moment, by whatever: all go on and the replay is equal, or all end with one line.

``python -m tests.integration.test_federated_grid FILE.jsonl`` makes the table of docs/results/federation.md from what
the tests have written there (``GRID=FILE.jsonl``).
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.free_ports import free_ports
from lightning_vfl.federation.local import start
from tests.integration.federations import Federation, cut_digits
from tests.integration.kills import differing
from tests.integration.test_federated import MASKED, VARYING

pytestmark = [pytest.mark.slow, pytest.mark.processes]

NAMES = ("party0", "party1")
STRUCK = {"server": "scorer", "party": "party1"}
WHEN = ("joining", "key exchange", "upload", "answer", "optimiser", "checkpoint", "validation", "end")
WHAT = ("kill -9", "SIGSTOP", "half-open", "disk full", "another address")
SILENCE = 3.0  # seconds after which a silent process counts as gone
HANG = 60.0  # seconds without any progress
STARTS = 3  # of a process, of which its owner gives up
MASKS = (*MASKED, *VARYING, "--model.aggregator.rekey_every", "20", "--model.missing", "Skip")
RECIPE = ("--config", "protocol/mean", *MASKS, "--trainer.max_epochs", "3", "--trainer.enable_model_summary", "false")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return cut_digits(tmp_path_factory.mktemp("grid"), len(NAMES))


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("who", STRUCK)
def test_all_go_on_or_all_end_with_one_line(parts, tmp_path, who, when, what):
    data = ("--config", str(parts / "csv_tables.yaml"), "--data.data_dir", str(parts))
    join = 40 if what == "another address" else 20  # the server may wait until all parties have given up the old one
    one = Federation(tmp_path, NAMES, (*data, *RECIPE), silence=SILENCE, join=join, reconnect=20)
    struck, mark = STRUCK[who], tmp_path / "struck"
    disk = one.folder / "runs" / struck
    one.events = disk / "events.csv" if who == "server" else one.events
    way = Way(one, mark)
    for name in NAMES:
        if what == "half-open" and who in ("server", name):
            one.before[name] = way.redirect
    moved = one.before.get(struck, lambda: None)
    blows = {**BLOWS, "disk full": lambda: fill(disk)}

    def before() -> None:
        moved()
        strike(who, when, blows[what], mark)

    def repair() -> None:
        """What the owner does before the struck process is started again."""
        (disk / FILLER).unlink(missing_ok=True)
        if what == "another address" and who == "server":
            one.move()
        elif what == "another address":
            one.before[struck] = way.redirect

    one.before[struck] = before
    with small_disk(disk) if what == "disk full" else nullcontext():
        try:
            one.everybody()
            result = watched(one, struck, what, mark, repair)
        finally:
            way.end()
            one.stop()
    if "GRID" in os.environ:
        with Path(os.environ["GRID"]).open("a") as file:
            print(json.dumps({"who": who, "when": when, "what": what, **result}), file=file)
    assert mark.exists(), "the moment has not come"
    assert result["outcome"] != "hangs", result
    assert not result["wrong"], result


def watched(one: Federation, struck: str, what: str, mark: Path, repair: Callable[[], None]) -> dict[str, object]:
    """Start again every process that ends with an error, as its owner would, until all have ended well or given up."""
    ended, wrong, begun = dict[str, int](), list[str](), time.monotonic()
    since, size, hit = begun, -1, 0.0
    while one.running or not ended:
        now = time.monotonic()
        if mark.exists() and not hit:
            hit = now
        grown = sum(path.stat().st_size for path in (*one.folder.glob("*.txt"), one.events) if path.exists())
        if grown != size:
            size, since = grown, now
        if hit and what == "SIGSTOP" and now > hit + SILENCE + 2:
            with suppress(ProcessLookupError, KeyError):
                os.kill(one.running[struck], signal.SIGCONT)
        if now - since > HANG:
            return {"outcome": "hangs", "wrong": wrong, "left": [*one.running], "seconds": now - hit}
        for name, process in [*one.running.items()]:
            over, status = os.waitpid(process, os.WNOHANG)
            if not over:
                continue
            del one.running[name]
            ended[name] = os.waitstatus_to_exitcode(status)
            wrong += said_wrong(one, name, ended[name])
            if ended[name] and one.started[name] + 1 < STARTS and (one.running or struck != name):
                if name == struck:
                    repair()
                again(one, name)
        time.sleep(0.02)
    whole = not any(ended.values())
    if whole and differing(one):
        wrong.append("the replay has other weights")
    outcome = "goes on" if whole else "ends with a line"
    return {"outcome": outcome, "wrong": wrong, "seconds": time.monotonic() - hit, "lines": last_lines(one)}


def last_lines(one: Federation) -> dict[str, str]:
    """The last line of every process that has ended with an error."""
    last = {name: one.log(name).splitlines()[-1] for name in ("scorer", *one.names)}
    return {name: line for name, line in last.items() if line.startswith("lightning-vfl: error: ")}


def said_wrong(one: Federation, name: str, status: int) -> list[str]:
    """What is wrong with the end of a process: it must say in one line why it has failed, unless it was killed."""
    log = one.log(name)
    lines = [line for line in log.splitlines() if line.startswith("lightning-vfl: error: ")]
    if "Traceback" in log:
        return [f"{name} has a traceback: {log.strip().splitlines()[-1]}"]
    return [f"{name} has said nothing ({status})"] if status > 0 and len(lines) != 1 else []


def again(one: Federation, name: str) -> None:
    """Start a process again, from its last checkpoint if it has one."""
    saved = any((one.folder / "runs" / name).rglob("*.ckpt"))
    more = ("--ckpt_path", "last") if saved else ()
    one.serve(*more) if name == "scorer" else one.party(name, *more)


# ---- moments


def strike(who: str, when: str, blow: Callable[[], None], mark: Path) -> None:
    """In a process before its command: once, at a moment, let ``blow`` happen to it."""
    from lightning_vfl.federation import session
    from lightning_vfl.federation.at_party import AtParty
    from lightning_vfl.federation.at_server import AtServer
    from lightning_vfl.federation.collecting import Collector
    from lightning_vfl.federation.link import Link
    from lightning_vfl.federation.reception import Reception
    from lightning_vfl.federation.rounds_at_server import RoundsAtServer
    from lightning_vfl.federation.run import Run
    from lightning_vfl.protocols import SplitVFL
    from lightning_vfl.types import Stage

    def late(stage: str, begun: int) -> bool:
        return stage == Stage.FIT and begun > 30

    def at_validation(self, module, *_):
        return module.stage == Stage.VALIDATION

    def trains(self, *_: object) -> bool:
        return late(self.stage, self.books.rounds.get("fit", 0))

    def tells(part: str) -> Callable[..., bool]:
        def due(self, key, say, header=None, *_: object, **__: object) -> bool:
            return (
                say == "tell"
                and (header or {}).get("part") == part
                and (part == "open" or late(Stage.FIT, key.at.round))
            )

        return due

    anything = lambda *_, **__: True  # noqa: E731
    of_round = lambda self, attendance, *_: trains(attendance.form.module)  # noqa: E731
    both = {
        "optimiser": (SplitVFL, "on_before_optimizer_step", trains, False),
        "checkpoint": (SplitVFL, "on_save_checkpoint", anything, True),
    }
    party = {
        "joining": (Link, "ask", lambda self, key, say, *_, **__: say == "hello", False),
        "key exchange": (Link, "ask", tells("open"), False),
        "upload": (Link, "ask", tells("upload"), False),
        "answer": (Link, "ask", tells("upload"), True),
        "validation": (AtParty, "output", at_validation, False),
        "end": (Run, "train", anything, True),
    }
    server = {
        "joining": (Reception, "answer", lambda self, request: request.say == "hello", False),
        "key exchange": (Collector, "_relay_opening", anything, False),
        "upload": (Collector, "_message", of_round, False),
        "answer": (RoundsAtServer, "_answer", lambda self, at, *_: late(Stage.FIT, at.round), False),
        "validation": (AtServer, "output", at_validation, False),
        "end": (session, "_part", anything, False),
    }
    owner, name, due, after = {**both, **(server if who == "server" else party)}[when]
    original = getattr(owner, name)

    def now(*arguments, **options) -> None:
        if not mark.exists() and due(*arguments, **options):
            mark.touch()
            blow()

    @wraps(original)
    def wrapped(*arguments, **options):
        if not after:
            now(*arguments, **options)
        answer = original(*arguments, **options)
        if after:
            now(*arguments, **options)
        return answer

    setattr(owner, name, wrapped)


# ---- what happens to a process


BLOWS: dict[str, Callable[[], None]] = {
    "kill -9": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "half-open": lambda: time.sleep(0.2),  # the way looks at the mark
    "another address": lambda: os.kill(os.getpid(), signal.SIGKILL),
}
FILLER = "filler"


def fill(disk: Path) -> None:
    """Fill a disk to the last byte."""
    with suppress(OSError), (disk / FILLER).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of its own for a folder, in memory."""
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Way:
    """A proxy in front of the server, from another address; from a mark on, it forgets the connections that it has."""

    def __init__(self, federation: Federation, mark: Path) -> None:
        self.mark = mark
        (self.port,) = free_ports(1)
        self.to = int(federation.address.rpartition(":")[2])
        self.process = start(self.run, federation.folder / "way.log")

    def run(self) -> None:
        listening = socket.create_server(("127.0.0.1", self.port))
        while True:
            here, _ = listening.accept()
            try:
                there = socket.create_connection(("127.0.0.1", self.to), source_address=("127.0.0.2", 0))
            except OSError:
                here.close()
                continue
            early = not self.mark.exists()
            for one, other in ((here, there), (there, here)):
                Thread(target=self.carry, args=(one, other, early), daemon=True).start()

    def carry(self, one: socket.socket, other: socket.socket, early: bool) -> None:
        with suppress(OSError):
            while content := one.recv(1 << 16):
                while early and self.mark.exists():  # half-open: nothing comes any more, and nobody hangs up
                    time.sleep(1.0)
                other.sendall(content)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def redirect(self):
        """In a party's process: dial the proxy instead of the server."""
        from lightning_vfl.federation import over_grpc
        from lightning_vfl.federation.grpc_client import Dialled

        over_grpc.Dialled = lambda _, *rest, **more: Dialled(f"127.0.0.1:{self.port}", *rest, **more)

    def end(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def table(path: str) -> str:
    """The table of a run: a line for each moment, a column for each blow, with the time until all was over."""
    rows = {(row["who"], row["when"], row["what"]): row for row in map(json.loads, Path(path).read_text().splitlines())}
    lines = [f"| who | when | {' | '.join(WHAT)} |", "|" + " --- |" * (2 + len(WHAT))]
    for who in STRUCK:
        for when in WHEN:
            cells = [rows[who, when, what] for what in WHAT]
            words = [f"{one['outcome']}, {one['seconds']:.0f} s" for one in cells]
            lines.append(f"| {who} | {when} | {' | '.join(words)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(sys.argv[1]))
