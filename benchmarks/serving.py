"""What predictions in production cost: a gateway and three parties on this machine, with HTTP, gRPC and mutual TLS.

An MLP for each of three parties (30 columns, hidden 64, width 32) and a top of the server. One client asks in turn:

- echo: FastAPI and uvicorn, which read the same request and send an answer of the same size, without parties and model;
- one process: the same pages, with all halves in ONNX Runtime in the process of the server;
- clear, masked: ``lightning-vfl gateway`` and three ``lightning-vfl endpoint``.

Single records come at a fixed rate, and the time of each counts from when it was due. Batches of 1,000 records come
from four clients, each as soon as its answer is there.

    python -m benchmarks.serving [--json FILE] [--rate R] [--seconds S]
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
from lightning_vfl.networks import MLP

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
            answers = {name: Embeddings(0, *half.embed(ids), none) for name, half in self.halves.items()}
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
    module = SplitVFL(aggregator, bottom, top, WIDTH, seed=0, party_shapes=shapes, num_classes=2)
    module.configure_model()
    export_model(module, folder / "halves")
    random = np.random.default_rng(0)
    for name in PARTIES:
        features = random.normal(size=(RECORDS, COLUMNS)).astype(np.float32)
        np.savez(folder / f"{name}.npz", features=features, id=np.arange(RECORDS))
    found("serving", PARTIES, folder)
    for name in (*PARTIES, "server"):
        (folder / f"{name}.yaml").write_text(f"key: keys/{name}.key\n")


@contextmanager
def running(kind: str, folder: Path) -> Iterator[int]:
    """The processes of a kind; the port of its pages."""
    (port,) = free_ports(1)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, "-c", LOCAL, kind, str(folder), str(port)]]
    if kind in ("clear", "masked"):
        program = [sys.executable, "-m", "lightning_vfl"]
        host = ["--federation", str(folder / "federation.yaml"), "--seat"]
        server = ["gateway", str(folder / "halves" / "server"), "--http", f"127.0.0.1:{port}"]
        commands = [[*program, *server, *host, str(folder / "server.yaml")]]
        for name in PARTIES:
            endpoint = ["endpoint", str(folder / "halves" / name), "--table", str(folder / f"{name}.npz")]
            commands.append([*program, *endpoint, *host, str(folder / f"{name}.yaml")])
    with (folder / f"{kind}.log").open("w") as log:
        started = [subprocess.Popen(words, stdout=log, stderr=log, env=environment) for words in commands]
        try:
            asyncio.run(until_ready(port))
            yield port
        finally:
            for process in started:
                process.send_signal(signal.SIGKILL)
                process.wait()


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
    with running(kind, folder) as port:
        times = asyncio.run(single_records(port, rate, seconds))
        batches = asyncio.run(records_a_second(port, seconds))
    p50, p99 = np.percentile(times, [50, 99])
    return {"kind": kind, "p50 ms": float(p50), "p99 ms": float(p99), "records/s": batches}


def goals_of(rows: Mapping[str, Mapping[str, Any]]) -> list[Goal]:
    clear, masked, echo = rows["clear"], rows["masked"], rows["echo"]
    return [
        Goal("p50 of single records, in the clear, ms", clear["p50 ms"], 10.0),
        Goal("p50 in the clear / echo", clear["p50 ms"] / echo["p50 ms"], 2.0),
        Goal("p99 / p50 in the clear", clear["p99 ms"] / clear["p50 ms"], 5.0),
        Goal("p50 masked / clear", masked["p50 ms"] / clear["p50 ms"], 1.5),
        Goal("records/s in the clear", clear["records/s"], 20_000, "higher"),
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="requests for single records in a second")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    given = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folders = {"clear": Path(name) / "clear", "masked": Path(name) / "masked"}
        for kind, folder in folders.items():
            folder.mkdir()
            prepare(folder, Sum() if kind == "clear" else MaskedSum())
        for kind in ("echo", "one process", "clear", "masked"):
            rows[kind] = measure(kind, folders.get(kind, folders["clear"]), given.rate, given.seconds)
    report([*rows.values()], goals_of(rows), given.json)


if __name__ == "__main__":
    main()
