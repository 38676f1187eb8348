"""A TCP proxy on this machine that delivers every byte after a delay, as a link between two sites does."""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic


@dataclass
class DelayedLink:
    """Passes connections on to another port of this machine, and counts their bytes.

    The bandwidth is not limited. The proxy ends when all connections that were open have ended.

    Args:
        port: where to listen.
        to: the port of the server.
        seconds: the delay in each direction.
    """

    port: int
    to: int
    seconds: float
    up: int = 0
    down: int = 0
    _open: int = 0
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    def run(self, report: Path) -> None:
        """Run until the connections end; write the bytes in both directions."""
        asyncio.run(self._listen())
        report.write_text(json.dumps({"up": self.up, "down": self.down}))

    async def _listen(self) -> None:
        async with await asyncio.start_server(self._connect, "127.0.0.1", self.port):
            await self._over.wait()

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:  # the server does not listen yet; the party tries again
            writer.close()
            return
        self._open += 1
        await asyncio.gather(self._pass(reader, back, up=True), self._pass(there, writer, up=False))
        self._open -= 1
        if not self._open:
            self._over.set()

    async def _pass(self, reader: StreamReader, writer: StreamWriter, up: bool) -> None:
        """Read at once, and write later."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = asyncio.create_task(_send(queue, writer))
        try:
            while content := await reader.read(1 << 16):
                self.up, self.down = self.up + up * len(content), self.down + (not up) * len(content)
                queue.put_nowait((monotonic() + self.seconds, content))
        except ConnectionError:
            pass
        queue.put_nowait((monotonic() + self.seconds, b""))
        await sending


async def _send(queue: "asyncio.Queue[tuple[float, bytes]]", writer: StreamWriter) -> None:
    try:
        while True:
            due, content = await queue.get()
            await asyncio.sleep(max(0.0, due - monotonic()))
            if not content:
                break
            writer.write(content)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()
