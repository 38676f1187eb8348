"""What it costs that every party is a process: a federated round beside the simulated round of the same recipe.

SplitVFL with Mean, batch 256, width 64, without faults. All processes are on this machine, with one thread each. The
kinds of a round are measured in turn, some rounds each, over and over:

- simulated: all parties in one process;
- mutual TLS: a process for the server and for each party, over loopback, as ``lightning-vfl federate --local``;
- plaintext: the same without TLS;
- by hand: bare gRPC with mutual TLS, the same networks, tensors and optimisers, without frames, Lightning and rules. It
  is what the engine and the arithmetic cost at least where all processes share the cores.

With the interpreters of environments that have them, two platforms carry the same tensors, without arithmetic:

- NVFlare: the server asks all clients with requests on the auxiliary channel, as NVFlare's SplitNN does; its simulator,
  a process for each client, without TLS;
- Flower: the Message API with a SuperLink and a SuperNode for each client, without TLS.

A proxy then delays every byte by 10 ms in each direction: a round cannot take less than one round trip for each leg
that is answered.

    python -m benchmarks.federation [--json FILE] [--parties 2 4 8 16] [--rounds R] [--repeats N] \
        [--nvflare PYTHON] [--flower PYTHON]
"""

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from benchmarks.delayed_link import DelayedLink
from benchmarks.free_ports import free_ports
from benchmarks.harness import Goal, Pairs, arguments, report
from benchmarks.hostile import ANSWERS, SENDERS, measure_party
from benchmarks.hostile import measure as measure_hostile
from benchmarks.other_platforms.measure import over_flower, over_nvflare
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import ContiguousColumns, Layout, Partitioner, Split, Unchanged, VerticalDataModule
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.hub import Hub
from lightning_vfl.federation.identity import load, paths
from lightning_vfl.federation.local import found, start, wait_for
from lightning_vfl.federation.reception import Reception
from lightning_vfl.networks import MLP
from lightning_vfl.types import Seat

COLUMNS, CLASSES, BATCH, WIDTH, BATCHES = 784, 10, 256, 64, 8
FEW = 3  # rounds of seconds
COLD = 10  # rounds at the start of a process that are not counted
LINK = 0.010  # seconds in each direction
KINDS = ("simulated", "mutual TLS", "plaintext", "by hand")

Figures = Mapping[str, Any]


class Floats(VerticalDataModule):
    """2,048 records of 784 standard normal floats and ten classes."""

    @property
    def layout(self) -> Layout:
        return Layout((COLUMNS,))

    @property
    def num_classes(self) -> int:
        return CLASSES

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(4)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(BATCHES * BATCH, COLUMNS, generator=generator)
        y = torch.randint(CLASSES, (len(x),), generator=generator)
        return {"train": Split(x, y, np.arange(len(x)))}


class Rounds(Callback):
    """The milliseconds of each round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, *args: object, **kwargs: object) -> None:
        self.ends.append(perf_counter())

    @property
    def milliseconds(self) -> list[float]:
        return [1e3 * (b - a) for a, b in zip(self.ends[COLD:-1], self.ends[COLD + 1 :], strict=True)]


def data_of(parties: int) -> Floats:
    return Floats(ContiguousColumns(parties), Unchanged(), BATCH, drop_last=True)


def module_of(data: Floats) -> SplitVFL:
    bottom, top = partial(MLP, hidden=(128,)), partial(MLP, hidden=(64,))
    return SplitVFL(Mean(), bottom, top, WIDTH, seed=0, party_shapes=data.party_shapes, num_classes=CLASSES)


def fit(module: SplitVFL, data: Floats, rounds: int) -> Rounds:
    timed = Rounds()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=rounds,
        max_epochs=-1,
        logger=False,
        callbacks=[timed],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data)
    return timed


def simulate(parties: int, rounds: int, file: Path) -> None:
    """The role of the one process of a simulation."""
    data = data_of(parties)
    file.write_text(json.dumps({"ms": fit(module_of(data), data, rounds).milliseconds}))


def serve(charter: Charter, ports: list[int], rounds: int, file: Path) -> None:
    """The server's role; with one port for each party, nothing is encrypted and the port says who calls."""
    from lightning_vfl.federation.connections import server_credentials
    from lightning_vfl.federation.grpc_server import Port
    from lightning_vfl.federation.rounds_at_server import RoundsAtServer  # grpc, after the processes have parted

    parties, folder = len(charter.parties), file.parent
    hub, data = Hub(parties), data_of(parties)
    reception = Reception(tuple(party.name for party in charter.parties), {"injected": False}, lambda *_: None)
    hub.greet = reception.answer
    if ports:
        opened = [Port(hub, f"127.0.0.1:{port}", lambda _, m=m: m) for m, port in enumerate(ports)]  # type: ignore[misc]
    else:
        secret = server_credentials(load(*paths("server", folder / "keys")), charter)
        opened = [Port(hub, charter.server.address, lambda shown: charter.holder(shown or b""), secret)]
    reception.await_all(60.0)
    data.take_seat(Seat(None))
    module = module_of(data)
    module.place = RoundsAtServer(hub, injected=False)
    before = hub.bytes_in, hub.bytes_out
    milliseconds = fit(module, data, rounds).milliseconds
    meter = module.books.meter
    figures = {
        "ms": milliseconds,
        "up": hub.bytes_in - before[0],
        "down": hub.bytes_out - before[1],
        "booked": int((meter.total("up") + meter.total("down")).sum()),
    }
    file.write_text(json.dumps(figures))
    hub.end({"outcome": "over", "why": "the benchmark is over"})
    for port in opened:
        port.close()


def take_part(charter: Charter, party: int, port: int | None, secure: bool, rounds: int, folder: Path) -> None:
    """A party's role.

    Args:
        charter: of the federation.
        party: its number.
        port: where to call; None: the server's address.
        secure: with mutual TLS.
        rounds: of training.
        folder: of the keys.
    """
    from lightning_vfl.federation.at_party import join
    from lightning_vfl.federation.connections import party_credentials
    from lightning_vfl.federation.grpc_client import Dialled
    from lightning_vfl.federation.link import Link
    from lightning_vfl.federation.rounds_at_party import RoundsAtParty

    name = charter.parties[party].name
    secret = party_credentials(load(*paths(name, folder / "keys")), charter) if secure else None
    address = charter.server.address if port is None else f"127.0.0.1:{port}"
    transport = Dialled(address, secret, expected="server" if secure else None)
    link = Link(transport)
    place = join(RoundsAtParty, link, party, charter.digest, {"rounds": 0}, False, lambda _: b"", lambda *_: None)
    data = data_of(len(charter.parties))
    data.take_seat(Seat(party))
    module = module_of(data)
    module.place = place
    fit(module, data, rounds)
    transport.close()


def serve_by_hand(charter: Charter, rounds: int, file: Path) -> None:
    """The server of the hand-written loop: bare gRPC, tensors as bytes."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    from lightning_vfl.federation.connections import server_credentials

    parties = len(charter.parties)
    uploads: list[SimpleQueue[Tensor]] = [SimpleQueue() for _ in range(parties)]
    answers: list[SimpleQueue[bytes]] = [SimpleQueue() for _ in range(parties)]

    def exchange(content: bytes, context: Any) -> bytes:
        uploads[content[0]].put(torch.frombuffer(bytearray(content[1:]), dtype=torch.float32).view(BATCH, WIDTH))
        return answers[content[0]].get()

    handlers = {"Exchange": grpc.unary_unary_rpc_method_handler(exchange)}
    server = grpc.server(ThreadPoolExecutor(parties + 2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("by_hand", handlers)])
    secret = server_credentials(load(*paths("server", file.parent / "keys")), charter)
    server.add_secure_port(charter.server.address, secret)
    server.start()
    data = data_of(parties)
    data.setup("fit")
    labels, top = data.records("train").labels, _networks(data)[-1]
    if labels is None:
        raise ValueError("the benchmark's records have labels")
    adam, loss_of, ends = torch.optim.Adam(top.parameters(), fused=True), torch.nn.CrossEntropyLoss(), []
    for number in range(rounds):
        start_row = number % BATCHES * BATCH
        z = torch.stack([queue.get() for queue in uploads]).mean(0).requires_grad_()
        loss = loss_of(top(z), labels[start_row : start_row + BATCH])
        adam.zero_grad()
        loss.backward()
        if z.grad is None:
            raise ValueError("the loss depends on z")
        answer = (z.grad / parties).numpy().tobytes()
        for queue in answers:
            queue.put(answer)
        adam.step()
        ends.append(perf_counter())
    file.write_text(json.dumps({"ms": [1e3 * (b - a) for a, b in zip(ends[COLD:-1], ends[COLD + 1 :], strict=True)]}))
    server.stop(grace=2.0).wait()


def take_part_by_hand(charter: Charter, party: int, rounds: int, folder: Path) -> None:
    """A party of the hand-written loop."""
    import grpc

    from lightning_vfl.federation.connections import party_credentials

    secret = party_credentials(load(*paths(charter.parties[party].name, folder / "keys")), charter)
    options = [("grpc.ssl_target_name_override", "server")]
    channel = grpc.secure_channel(charter.server.address, secret, options)
    exchange = channel.unary_unary("/by_hand/Exchange")
    data = data_of(len(charter.parties))
    data.setup("fit")
    bottom = _networks(data)[party]
    x = data.records("train").rows(torch.arange(BATCHES * BATCH))[party]
    adam = torch.optim.Adam(bottom.parameters(), fused=True)
    for number in range(rounds):
        start_row = number % BATCHES * BATCH
        h = bottom(x[start_row : start_row + BATCH])
        answer = exchange(bytes([party]) + h.detach().numpy().tobytes(), wait_for_ready=True)
        adam.zero_grad()
        h.backward(torch.frombuffer(bytearray(answer), dtype=torch.float32).view(BATCH, WIDTH))
        adam.step()
    channel.close()


def _networks(data: Floats) -> list[torch.nn.Module]:
    """The bottoms and the top."""
    module = module_of(data)
    module.configure_model()
    return [*module.bottoms.parties, module.top]


def measure(kind: str, parties: int, rounds: int) -> Figures:
    """The figures of one kind of a round, from processes of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, linked = folder / "figures.json", folder / "link.json"
        roles: dict[str, Callable[[], None]] = {}
        if kind == "simulated":
            roles["simulation"] = partial(simulate, parties, rounds, file)
        else:
            charter = found("benchmark", parties, folder)
            ports = free_ports(parties) if kind == "plaintext" else []
            to: list[int | None] = [*ports] or [None] * parties
            if kind == "link":
                (through,) = free_ports(1)
                link = DelayedLink(through, int(charter.server.address.rpartition(":")[2]), LINK)
                roles["link"] = partial(link.run, linked)
                to = [through] * parties
            if kind == "by hand":
                roles["server"] = partial(serve_by_hand, charter, rounds, file)
                each = [partial(take_part_by_hand, charter, m, rounds, folder) for m in range(parties)]
            else:
                roles["server"] = partial(serve, charter, ports, rounds, file)
                each = [
                    partial(take_part, charter, m, to[m], kind != "plaintext", rounds, folder) for m in range(parties)
                ]
            roles |= {f"party{m}": role for m, role in enumerate(each)}
        logs = {role: folder / f"{role}.txt" for role in roles}
        wait_for({role: start(action, logs[role]) for role, action in roles.items()}, logs)
        figures: dict[str, Any] = json.loads(file.read_text())
        if linked.exists():
            figures["link"] = json.loads(linked.read_text())
        return figures


def compare(
    parties: int, rounds: int, repeats: int, platforms: Mapping[str, Callable[[int], list[float]]]
) -> tuple[dict[str, Any], list[Goal]]:
    """All kinds of a round in turn: a row, and the goals.

    Args:
        parties: M.
        rounds: of each process.
        repeats: how often each kind is measured.
        platforms: by name, the milliseconds of rounds of M parties over another platform.
    """
    elsewhere: dict[str, list[float]] = {name: [] for name in platforms}
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    figures: dict[str, Figures] = {}
    for _ in range(repeats):
        for kind in KINDS:
            figures[kind] = measure(kind, parties, rounds)
            taken[kind].append(median(figures[kind]["ms"]))
        for name, rounds_over in platforms.items():
            elsewhere[name].append(median(rounds_over(parties)))
    pairs = {kind: Pairs(taken["mutual TLS"], taken[kind]) for kind in KINDS}
    link = measure("link", parties, rounds)
    legs = 1  # SplitVFL in the clear: the upload, answered with the gradients
    trip = 2 * LINK
    secure = figures["mutual TLS"]
    frames = (secure["up"] + secure["down"]) / secure["booked"] - 1
    wire = (link["link"]["up"] + link["link"]["down"]) / link["booked"] - 1
    seconds = median(link["ms"]) / 1e3
    row = {
        "M": parties,
        **{f"{kind} ms": median(taken[kind]) for kind in KINDS},
        **{f"{name} ms": median(milliseconds) for name, milliseconds in elsewhere.items()},
        "TLS/simulated": pairs["simulated"].ratio,
        "spread": pairs["simulated"].spread,
        "TLS/plaintext": pairs["plaintext"].ratio,
        "TLS/by hand": pairs["by hand"].ratio,
        "frames over books %": 100 * frames,
        "TCP over books %": 100 * wire,
        "rounds/s at 20 ms": 1 / seconds,
        "of 1/(RTT x legs)": legs * trip / seconds,
    }
    goals = [
        Goal(f"M = {parties}: round with mutual TLS over simulated round", pairs["simulated"].ratio, 5.0),
        Goal(f"M = {parties}: mutual TLS over plaintext", pairs["plaintext"].ratio, 1.15),
        Goal(f"M = {parties}: federated over the hand-written loop", pairs["by hand"].ratio, 1.25),
        Goal(f"M = {parties}: bytes of frames over the books, share", abs(frames), 0.02),
    ]
    return row, goals


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parties", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=200, help="of each process")
    parser.add_argument("--repeats", type=int, default=3, help="how often each kind is measured")
    parser.add_argument("--nvflare", type=Path, help="the interpreter of an environment with nvflare")
    parser.add_argument("--flower", type=Path, help="the interpreter of an environment with flwr")
    chosen = parser.parse_args()
    platforms: dict[str, Callable[[int], list[float]]] = {}
    if chosen.nvflare is None:
        print("NVFlare is left out; give the interpreter of an environment with it: --nvflare PYTHON")
    else:
        platforms["NVFlare"] = lambda parties: over_nvflare(chosen.nvflare, parties, chosen.rounds, BATCH, WIDTH)
    if chosen.flower is None:
        print("Flower is left out; give the interpreter of an environment with it: --flower PYTHON")
    else:
        platforms["Flower"] = lambda parties: over_flower(chosen.flower, parties, FEW, BATCH, WIDTH)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # threads do not survive a fork
    rows, goals = [], []
    for parties in chosen.parties:
        row, found_goals = compare(parties, chosen.rounds, chosen.repeats, platforms)
        rows.append(row)
        goals += found_goals
    hostile = [measure_hostile(sender) for sender in SENDERS]
    heard = [measure_party(answer) for answer in ANSWERS]
    worst = max(row["of a frame"] for row in hostile)
    taken = max(row["of the largest answer"] for row in heard)
    slowest = max(row["another's answer, s"] for row in hostile)
    goals.append(Goal("memory of the server under one hostile sender, of the charter's largest frame", worst, 4.0))
    goals.append(Goal("memory of a party under a hostile server, of the charter's largest answer", taken, 4.0))
    goals.append(Goal("hostile sender: seconds until another party has its answer", slowest, 1.0))
    tables = [{"table": "rounds", **row} for row in rows] + [{"table": "hostile sender", **row} for row in hostile]
    tables += [{"table": "hostile server", **row} for row in heard]
    report(tables, goals, chosen.json, "table")


if __name__ == "__main__":
    main()
