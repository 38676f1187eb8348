"""An echo of predictions through three parties: the floor of what ``lightning-vfl gateway`` and its parties can reach.

The server answers the same pages, and sends every request over gRPC with mutual TLS to three processes that send it
back as it is. There are no records, no model, no deadline, no checks and no counts.

    python -m benchmarks.echo_parties server FOLDER PORT
    python -m benchmarks.echo_parties NAME FOLDER
"""

import asyncio
import socket
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.connections import options, party_credentials, server_credentials
from lightning_vfl.federation.identity import load
from lightning_vfl.serving.batches import Batches
from lightning_vfl.serving.http import HTTPServer, pages
from lightning_vfl.serving.messages import METHOD, SERVICE, Ask, written
from lightning_vfl.serving.metrics import Metrics
from lightning_vfl.serving.server_half import Joined, ServedServer

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Connection:
    """A party that sends back what it is sent, in the same order."""

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self.awaited: deque[asyncio.Future[None]] = deque()

    def ask(self, content: bytes) -> "asyncio.Future[None]":
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.awaited.append(answer)
        self.outgoing.put_nowait(content)
        return answer

    async def serve(self, call: Any) -> None:
        writing = asyncio.create_task(self._write(call))
        try:
            while await call.read() is not grpc.aio.EOF:
                self.awaited.popleft().set_result(None)
        finally:
            writing.cancel()

    async def _write(self, call: Any) -> None:
        while True:
            await call.write(await self.outgoing.get())


class Gateway:
    """What the pages ask of a gateway; every record has the same prediction."""

    def __init__(self, folder: Path) -> None:
        self.server = ServedServer(folder / "halves" / "server")
        self.metrics = Metrics(self.server.parties)
        self.ids = "whole numbers"
        self.connections: list[Connection] = []

    @property
    def ready(self) -> bool:
        return len(self.connections) == len(self.server.parties)

    @property
    def states(self) -> dict[str, str]:
        return dict.fromkeys(self.server.parties, "connected" if self.ready else "absent")

    async def serve(self, _: Any, call: Any) -> None:
        connection = Connection()
        self.connections.append(connection)
        await connection.serve(call)

    async def predict(self, ids: "NDArray[Any]") -> Joined:
        content = written(Ask(1, self.server.manifest.model, ids))
        await asyncio.gather(*(connection.ask(content) for connection in self.connections))
        no = np.zeros(len(ids), np.bool_)
        values = np.full(len(ids), 0.123456789, np.float32)
        return Joined(self.server, values, ~no, no, no, ~no[:, None], ())


async def serve(folder: Path, port: int) -> None:
    gateway = Gateway(folder)
    charter = Charter.read(folder / "federation.yaml")
    server = grpc.aio.server(options=options(charter.patience.silence))
    methods = {METHOD: grpc.stream_stream_rpc_method_handler(gateway.serve)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    identity = load(folder / "keys" / "server.key", charter.server.certificate)
    server.add_secure_port(charter.server.address, server_credentials(identity, charter))
    await server.start()
    with socket.create_server(("127.0.0.1", port)) as place:
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await HTTPServer.of(pages(gateway, Batches(gateway.predict))).answer(place)  # type: ignore[arg-type]


async def send_back(folder: Path, name: str) -> None:
    charter = Charter.read(folder / "federation.yaml")
    identity = load(folder / "keys" / f"{name}.key", charter.parties[charter.number(name)].certificate)
    settings = [*options(charter.patience.silence), ("grpc.ssl_target_name_override", charter.server.name)]
    credentials = party_credentials(identity, charter)
    async with grpc.aio.secure_channel(charter.server.address, credentials, settings) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(wait_for_ready=True)
        while (content := await call.read()) is not grpc.aio.EOF:
            await call.write(content)


if __name__ == "__main__":
    who = sys.argv[1]
    folder = Path(sys.argv[2])
    asyncio.run(serve(folder, int(sys.argv[3])) if who == "server" else send_back(folder, who))
