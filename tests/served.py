"""What the tests of predictions in production share: small halves in ONNX, made without torch, and their oracle."""

import asyncio
import csv
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lightning_vfl.datamodules.records.step_chain import plain_numbers
from lightning_vfl.export.manifest import (
    RECORDS,
    SERVER,
    Engine,
    Kind,
    Manifest,
    Missing,
    PartyHalf,
    Port,
    Program,
    Protection,
    ServerHalf,
    hash_of,
)
from lightning_vfl.federation.charter import SeatFile
from lightning_vfl.federation.local import found
from lightning_vfl.privacy import GaussianEvent, PoissonBinomialEvent
from lightning_vfl.serving.endpoint import Endpoint
from lightning_vfl.serving.gateway import Gateway
from lightning_vfl.serving.party_half import Records, ServedParty
from lightning_vfl.serving.server_half import ServedServer

PARTIES = ("bank", "shop", "telco")
WIDTH = 4
COLUMNS = 3
NETWORK = "a1"  # the name of the bottoms in ledgers
CLEAR = Protection(Kind.CLEAR, "Sum")
MASKED = Protection(Kind.MASKED, "MaskedSum", False, PARTIES, 8.0, 2**26)
NOISY = Protection(Kind.CLEAR, "LocalGaussian", clip=8.0, event=GaussianEvent(0.05, 16.0, 3).plain(), bounds="record")
DRAWS = PoissonBinomialEvent(2**14, 0.25, 3, WIDTH)
DRAWN = Protection(Kind.MASKED, "PoissonBinomial", False, PARTIES, 8.0, event=DRAWS.plain(), bounds="value")


class Subject:
    """Three parties with a linear bottom each, and a server with a sum and a sigmoid.

    Args:
        folder: of the files.
        protection: of the embeddings.
        missing: what a prediction without a party is.
        overlap: whether parties may lack records.
        ids: party -> the ids of its records; None: all have 0 to 49.
        before: of whose federation they are; this is another version of its model. None: of a new one.
        calibration: of the server's half.
    """

    def __init__(
        self, folder, protection=CLEAR, missing=Missing.EXCLUDE, overlap="inner", ids=None, before=None, calibration=()
    ):
        self.folder = Path(folder)
        self.model = ("f" if before is None else "e") * 64
        self.seat_settings = {}  # by party
        random = np.random.default_rng(0 if before is None else 1)
        self.weights = {name: random.normal(size=(COLUMNS, WIDTH)).astype(np.float32) for name in PARTIES}
        self.top = random.normal(size=(WIDTH,)).astype(np.float32)
        self.tables = {}
        for name in PARTIES:
            own = list(range(50)) if ids is None else ids[name]
            self.tables[name] = {one: random.uniform(-1, 1, COLUMNS) for one in own}
            with (self.folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["id", *(f"{name}{i}" for i in range(COLUMNS))])
                writer.writerows([one, *values.tolist()] for one, values in self.tables[name].items())
            self._write_party(name, protection)
        self._write_server(protection, missing, overlap, calibration)
        self.keys = self.folder / "keys" if before is None else before.keys
        self.charter = found("production", PARTIES, self.folder) if before is None else before.charter

    def seat(self, name, **settings):
        return SeatFile(self.keys / f"{name}.key", **settings)

    def records(self, name):
        return Records(self.folder / f"{name}.csv")

    def half(self, name):
        return self.folder / "halves" / name

    def endpoint(self, name, **settings):
        settings = self.seat_settings.get(name, {}) | settings
        return Endpoint(ServedParty(self.half(name), self.records(name)), self.charter, self.seat(name, **settings))

    def gateway(self, deadline=5.0, more=()):
        servers = [ServedServer(subject.half(SERVER)) for subject in (self, *more)]
        return Gateway(servers, self.charter, self.seat(SERVER), deadline)

    def expected(self, ids, parties=PARTIES):
        """The oracle: the predictions in float64, from the parties that have each record."""
        values = []
        for one in ids:
            there = [self.tables[name][one] @ self.weights[name] for name in parties if one in self.tables[name]]
            values.append(1 / (1 + np.exp(-(np.sum(there, axis=0) @ self.top))))
        return np.array(values)

    def _write_party(self, name, protection):
        weight = numpy_helper.from_array(self.weights[name], "weight")
        nodes = [
            helper.make_node("Cast", ["features"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["numbers", "weight"], ["embedding"]),
        ]
        inputs = [helper.make_tensor_value_info("features", TensorProto.DOUBLE, [RECORDS, COLUMNS])]
        outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [RECORDS, WIDTH])]
        encoders = tuple(plain_numbers(f"{name}{i}").state() for i in range(COLUMNS))
        half = PartyHalf(encoders, tuple(f"{name}{i}" for i in range(COLUMNS)), protection, NETWORK, 5)
        ports = (Port("features", (RECORDS, COLUMNS), "float64"),), (Port("embedding", (RECORDS, WIDTH), "float32"),)
        self._write(name, half, ports, helper.make_graph(nodes, name, inputs, outputs, [weight]))

    def _write_server(self, protection, missing, overlap, calibration):
        names = [f"embedding_{name}" for name in PARTIES]
        nodes = [helper.make_node("Cast", ["present"], ["held"], to=TensorProto.FLOAT)]
        nodes.append(helper.make_node("Split", ["held"], [f"held_{m}" for m in PARTIES], axis=1, num_outputs=3))
        nodes += [helper.make_node("Mul", [f"embedding_{m}", f"held_{m}"], [f"part_{m}"]) for m in PARTIES]
        nodes += [
            helper.make_node("Sum", [f"part_{m}" for m in PARTIES], ["total"]),
            helper.make_node("MatMul", ["total", "top"], ["logit"]),
            helper.make_node("Sigmoid", ["logit"], ["prediction"]),
        ]
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [RECORDS, WIDTH]) for name in names]
        inputs.append(helper.make_tensor_value_info("present", TensorProto.BOOL, [RECORDS, len(PARTIES)]))
        outputs = [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, [RECORDS])]
        half = ServerHalf(PARTIES, ("no", "yes"), "Sum()", overlap=overlap, protection=protection, missing=missing)
        half = replace(half, calibration=calibration)
        ports = (
            (
                *(Port(name, (RECORDS, WIDTH), "float32") for name in names),
                Port("present", (RECORDS, len(PARTIES)), "bool"),
            ),
            (Port("prediction", (RECORDS,), "float32"),),
        )
        top = numpy_helper.from_array(self.top, "top")
        self._write(SERVER, half, ports, helper.make_graph(nodes, SERVER, inputs, outputs, [top]))

    def _write(self, name, half, ports, graph):
        folder = self.half(name)
        folder.mkdir(parents=True)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.save(model, folder / "half.onnx")
        programs = {Engine.ONNX: Program("half.onnx", hash_of(folder / "half.onnx"))}
        Manifest(name, self.model, half, *ports, programs).write(folder)


@asynccontextmanager
async def running(subject, parties=PARTIES, deadline=5.0, **settings):
    """A gateway and endpoints in this process, over gRPC with TLS; the endpoints by name, and their tasks."""
    gateway = subject.gateway(deadline, **settings)
    await gateway.start()
    tasks = {}
    try:
        for name in parties:
            endpoint = subject.endpoint(name)
            tasks[name] = endpoint, asyncio.create_task(endpoint.run())
        await until(lambda: all(gateway.states[name] == "connected" for name in parties))
        yield gateway, tasks
    finally:
        for endpoint, _ in tasks.values():
            endpoint.stop()
        await asyncio.gather(*(task for _, task in tasks.values()), return_exceptions=True)
        await gateway.stop()


async def until(true, seconds=20.0):
    """Wait until something is true."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)
