"""What predictions in production cost: a gateway and three parties on this machine, with HTTP, gRPC and mutual TLS.

An MLP for each of three parties (30 columns, hidden 64, width 32) and a top of the server. One client asks in turn:

- echo: FastAPI and uvicorn, which read the same request and send an answer of the same size, without parties and model;
- echo of parties: the same, after each request has been to three processes and back (``benchmarks.echo_parties``);
- one process: the same pages, with all halves in ONNX Runtime in the process of the server;
- clear, masked: ``lightning-vfl gateway`` and three ``lightning-vfl endpoint``.

Single records come at a fixed rate, and the time of each counts from when it was due. Batches of 1,000 records come
from four clients, each as soon as its answer is there.

    python -m benchmarks.serving [--json FILE] [--rate R] [--seconds S]

``--kills MINUTES`` measures something else: whether an answer is wrong or lost while one party's process is killed and
started again, and another one is frozen for half of the time.

    python -m benchmarks.serving --kills 30 [--json FILE]
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.free_ports import free_ports
from benchmarks.harness import Goal, arguments, report
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, MaskedSum, Sum
from lightning_vfl.export.write import export_model
from lightning_vfl.federation.local import found
from lightning_vfl.missing import Exclude
from lightning_vfl.networks import MLP
from lightning_vfl.serving.messages import Embeddings
from lightning_vfl.serving.party_half import Records, ServedParty
from lightning_vfl.serving.server_half import ServedServer

PARTIES = ("party-0", "party-1", "party-2")
COLUMNS, WIDTH, RECORDS, BATCH, CLIENTS = 30, 32, 100_000, 1000, 4
LOCAL = """
import asyncio, socket, sys
from pathlib import Path
import numpy as np
from lightning_vfl.serving.batches import Batches
from lightning_vfl.serving.http import HTTPServer, pages
from lightning_vfl.serving.messages import Embeddings
from lightning_vfl.serving.metrics import Metrics
from lightning_vfl.serving.party_half import Records, ServedParty
from lightning_vfl.serving.server_half import Joined, ServedServer

kind, folder, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

class Local:
    def __init__(self):
        self.server = ServedServer(folder / "halves" / "server")
        self.metrics = Metrics(self.server.parties)
        self.ids, self.ready, self.states = "whole numbers", True, {}
        if kind == "one process":
            names = self.server.parties
            self.halves = {n: ServedParty(folder / "halves" / n, Records(folder / f"{n}.npz")) for n in names}

    async def predict(self, ids):
        none = np.zeros(len(ids), np.bool_)
        if kind == "one process":
            answers = {name: Embeddings(0, None, *half.embed(ids)) for name, half in self.halves.items()}
            return self.server.join(answers, len(ids), ())
        values = np.full(len(ids), 0.123456789, np.float32)
        return Joined(self.server, values, ~none, none, none, ~none[:, None], ())

gateway = Local()
with socket.create_server(("127.0.0.1", port)) as place:
    place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    asyncio.run(HTTPServer.of(pages(gateway, Batches(gateway.predict))).answer(place))
"""


def prepare(folder: Path, aggregator: Aggregator) -> None:
    """The exported halves of a model with random weights, the parties' records, and the files of a federation."""
    torch.manual_seed(0)
    bottom, top = partial(MLP, hidden=(64,)), partial(MLP, hidden=(64,))
    shapes = tuple((COLUMNS,) for _ in PARTIES)
    missing = Exclude() if isinstance(aggregator, Sum) else None
    module = SplitVFL(aggregator, bottom, top, WIDTH, missing=missing, seed=0, party_shapes=shapes, num_classes=2)
    module.configure_model()
    export_model(module, folder / "halves")
    random = np.random.default_rng(0)
    for name in PARTIES:
        features = random.normal(size=(RECORDS, COLUMNS)).astype(np.float32)
        np.savez(folder / f"{name}.npz", features=features, id=np.arange(RECORDS))
    found("serving", PARTIES, folder)
    for name in (*PARTIES, "server"):
        (folder / f"{name}.yaml").write_text(f"key: keys/{name}.key\n")


class Hosts:
    """Processes on this machine, by name: ``server``, and the parties where they have processes of their own.

    Args:
        kind: what runs.
        folder: of the halves and tables.
        deadline: milliseconds that the gateway gives the parties.
    """

    def __init__(self, kind: str, folder: Path, deadline: float = 1000.0) -> None:
        (self.port,) = free_ports(1)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._log = folder / f"{kind}.log"
        self._commands = {"server": [sys.executable, "-c", LOCAL, kind, str(folder), str(self.port)]}
        if kind == "echo of parties":
            program = [sys.executable, "-m", "benchmarks.echo_parties"]
            self._commands = {"server": [*program, "server", str(folder), str(self.port)]}
            self._commands |= {name: [*program, name, str(folder)] for name in PARTIES}
        self._served = kind in ("clear", "masked")
        if self._served:
            program = [sys.executable, "-m", "lightning_vfl"]
            host = ["--federation", str(folder / "federation.yaml"), "--seat"]
            server = ["gateway", str(folder / "halves" / "server"), "--http", f"127.0.0.1:{self.port}"]
            server += ["--deadline_ms", str(deadline)]
            self._commands = {"server": [*program, *server, *host, str(folder / "server.yaml")]}
            for name in PARTIES:
                endpoint = ["endpoint", str(folder / "halves" / name), "--table", str(folder / f"{name}.npz")]
                self._commands[name] = [*program, *endpoint, *host, str(folder / f"{name}.yaml")]

    def start(self, name: str) -> None:
        """Start a process."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with self._log.open("a") as log:
            self.processes[name] = subprocess.Popen(self._commands[name], stdout=log, stderr=log, env=environment)

    def kill(self, name: str) -> None:
        """Kill a process at once."""
        self.processes[name].kill()
        self.processes[name].wait()

    def memory(self, name: str) -> float:
        """The MiB of memory that a process uses."""
        status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    @contextmanager
    def running(self) -> Iterator[int]:
        """All processes, until the block ends; the port of the pages."""
        try:
            for name in self._commands:
                self.start(name)
            asyncio.run(until_ready(self.port))
            if self._served:
                asyncio.run(until_connected(self.port))
            yield self.port
        finally:
            for name in self.processes:
                self.kill(name)


async def ask(port: int, path: str, body: str, link: Any = None) -> tuple[int, bytes, Any]:
    """One request over an open connection, or a new one: status, content, and the connection."""
    if link is not None and link[0].at_eof():  # the server has ended a connection that was idle
        link = None
    reader, writer = link or await asyncio.open_connection("127.0.0.1", port)
    method = "POST" if body else "GET"
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write((head + body).encode())
    answered = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(answered.partition("content-length: ")[2].partition("\r\n")[0])
    return int(answered.split()[1]), await reader.readexactly(length), (reader, writer)


async def until_ready(port: int) -> None:
    """Wait until predictions are possible."""
    end = perf_counter() + 120
    while perf_counter() < end:
        try:
            status, _, (_, writer) = await ask(port, "/ready", "")
            writer.close()
            if status == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.2)
    raise TimeoutError("the processes are not ready after 120 s")


async def until_connected(port: int) -> None:
    """Wait until all parties are connected and none is late."""
    async with asyncio.timeout(120):
        while True:
            _, content, (_, writer) = await ask(port, "/health", "")
            writer.close()
            if {*json.loads(content)["parties"].values()} == {"connected"}:
                return
            await asyncio.sleep(0.2)


async def single_records(port: int, rate: float, seconds: float) -> list[float]:
    """The milliseconds of requests for single records that come at a fixed rate."""
    links: list[Any] = []
    times: list[float] = []
    random = np.random.default_rng(1)

    async def one(due: float, record: int) -> None:
        status, _, link = await ask(port, "/predict", json.dumps({"ids": [record]}), links.pop() if links else None)
        times.append(1000 * (perf_counter() - due))
        links.append(link)
        if status != 200:
            raise RuntimeError(f"the answer has status {status}")

    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - perf_counter()))
            group.create_task(one(due, int(random.integers(RECORDS))))
    return times[int(rate) :]  # the first second warms up


async def records_a_second(port: int, seconds: float) -> float:
    """Predictions a second in batches of 1,000."""
    end = perf_counter() + seconds
    counts = [0] * CLIENTS
    began = perf_counter()

    async def client(number: int) -> None:
        random, link = np.random.default_rng(number), None
        while perf_counter() < end:
            ids = random.integers(RECORDS, size=BATCH).tolist()
            status, _, link = await ask(port, "/predict", json.dumps({"ids": ids}), link)
            counts[number] += BATCH if status == 200 else 0

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return sum(counts) / (perf_counter() - began)


def measure(kind: str, folder: Path, rate: float, seconds: float) -> dict[str, Any]:
    """The row of a kind."""
    with Hosts(kind, folder).running() as port:
        times = asyncio.run(single_records(port, rate, seconds))
        batches = asyncio.run(records_a_second(port, seconds))
    p50, p99 = np.percentile(times, [50, 99])
    return {"kind": kind, "p50 ms": float(p50), "p99 ms": float(p99), "records/s": batches}


class Oracle:
    """The predictions of all halves in this process, from the parties that are not absent.

    Args:
        folder: of the halves and tables.
    """

    def __init__(self, folder: Path) -> None:
        self._server = ServedServer(folder / "halves" / "server")
        self._halves = {
            name: ServedParty(folder / "halves" / name, Records(folder / f"{name}.npz")) for name in PARTIES
        }

    def is_right(self, ids: list[int], answer: Mapping[str, Any]) -> bool:
        """Whether an answer has the right probability for every record."""
        there = {name: half for name, half in self._halves.items() if name not in answer["absent"]}
        asked = np.array(ids)
        answers = {name: Embeddings(0, None, *half.embed(asked)) for name, half in there.items()}
        joined = self._server.join(answers, len(ids), tuple(answer["absent"]))
        expected = self._server.rows(ids, joined, slice(None))
        close = [
            one["id"] == other["id"] and abs(one["probability"] - other["probability"]) < 1e-5
            for one, other in zip(answer["predictions"], expected, strict=True)
        ]
        return all(close)


def under_kills(folder: Path, seconds: float, pause: float = 20.0) -> dict[str, Any]:
    """Requests while one party is killed and started again, and another one is frozen for half of the time.

    Args:
        folder: of the halves and tables.
        seconds: how long.
        pause: seconds between two kills.
    """
    oracle = Oracle(folder)
    hosts = Hosts("clear", folder, deadline=300.0)
    row: dict[str, Any] = {"requests": 0, "without a party": 0, "wrong": 0, "lost": 0, "kills": 0, "freezes": 0}

    async def client(number: int, end: float) -> None:
        random, link = np.random.default_rng(number), None
        while perf_counter() < end:
            ids = random.integers(RECORDS, size=5).tolist()
            row["requests"] += 1
            try:
                asked = ask(hosts.port, "/predict", json.dumps({"ids": ids}), link)
                status, content, link = await asyncio.wait_for(asked, 10)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                status, link = 0, None
            if status == 200:
                answer = json.loads(content)
                row["without a party"] += bool(answer["absent"])
                row["wrong"] += not oracle.is_right(ids, answer)
            else:
                row["lost"] += 1
            await asyncio.sleep(0.02)
        if link is not None:
            link[1].close()

    async def disturb(end: float) -> None:
        while perf_counter() < end - pause:
            hosts.kill(PARTIES[1])
            hosts.processes[PARTIES[2]].send_signal(signal.SIGSTOP)
            await asyncio.sleep(pause / 2)
            hosts.start(PARTIES[1])
            hosts.processes[PARTIES[2]].send_signal(signal.SIGCONT)
            row["kills"] += 1
            row["freezes"] += 1
            await until_connected(hosts.port)
            await asyncio.sleep(pause / 2)

    async def all_together(end: float) -> None:
        await asyncio.gather(disturb(end), *(client(number, end) for number in range(CLIENTS)))

    with hosts.running():
        asyncio.run(all_together(perf_counter() + min(pause, seconds / 4)))  # memory grows at first
        row |= dict.fromkeys(("requests", "without a party"), 0)
        before = hosts.memory("server")
        asyncio.run(all_together(perf_counter() + seconds))
        row["gateway MiB"] = hosts.memory("server")
        row["grown MiB"] = row["gateway MiB"] - before
    return row


def goals_under_kills(row: Mapping[str, Any]) -> list[Goal]:
    return [Goal("wrong answers", row["wrong"], 0), Goal("lost requests", row["lost"], 0)]


def goals_of(rows: Mapping[str, Mapping[str, Any]]) -> list[Goal]:
    clear, masked = rows["clear"], rows["masked"]
    return [
        Goal("p50 of single records, in the clear, ms", clear["p50 ms"], 10.0),
        Goal("p50 in the clear / echo", clear["p50 ms"] / rows["echo"]["p50 ms"], 2.0),
        Goal("p50 in the clear / echo of parties", clear["p50 ms"] / rows["echo of parties"]["p50 ms"], 2.0),
        Goal("p99 / p50 in the clear", clear["p99 ms"] / clear["p50 ms"], 5.0),
        Goal("p50 masked / clear", masked["p50 ms"] / clear["p50 ms"], 1.5),
        Goal("records/s in the clear", clear["records/s"], 20_000, "higher"),
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="requests for single records in a second")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--kills", type=float, metavar="MINUTES", help="answers while parties are killed and frozen")
    given = parser.parse_args()
    if given.kills:
        with tempfile.TemporaryDirectory() as name:
            prepare(Path(name), Sum())
            row = under_kills(Path(name), 60 * given.kills)
        report([row], goals_under_kills(row), given.json)
        return
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folders = {"clear": Path(name) / "clear", "masked": Path(name) / "masked"}
        for kind, folder in folders.items():
            folder.mkdir()
            prepare(folder, Sum() if kind == "clear" else MaskedSum())
        for kind in ("echo", "echo of parties", "one process", "clear", "masked"):
            rows[kind] = measure(kind, folders.get(kind, folders["clear"]), given.rate, given.seconds)
    report([*rows.values()], goals_of(rows), given.json)


if __name__ == "__main__":
    main()
