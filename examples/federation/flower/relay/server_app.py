"""On the server's host: a line to ``lightning-vfl serve --relay`` for each SuperNode, and messages to the SuperNodes.

A message to a SuperNode has what the server has answered; its reply has what the party asks next.
"""

from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, wait
from time import monotonic, sleep

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

LARGEST = 2**30  # bytes
VALID = 3600.0  # seconds for which a message may wait for its SuperNode
AGAIN = 1.0  # seconds after which a party that was not there is asked again

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry frames until the server's process and the parties' processes have ended."""
    config = context.run_config
    waits = (float(config[name]) for name in ("poll", "check", "patience"))
    Relay(grid, str(config["socket"]), *waits).run()


@dataclass
class Line:
    """What is under way with one SuperNode."""

    server: Connection | None = None  # to lightning-vfl serve
    asked: bytes = b""  # what the party has asked the server, which has not answered yet
    message: str | None = None  # the message that the SuperNode has not replied to yet
    there: bool = True  # whether a party has answered the last message
    due: float = 0.0  # when it is asked what it wants, unless the server answers before

    def hang_up(self, due: float) -> None:
        """Forget the server's connection; the party is asked for its frame again."""
        if self.server is not None:
            self.server.close()
        self.server, self.asked, self.due = None, b"", due


class Relay:
    """Lines of all SuperNodes that are online.

    Args:
        grid: of Flower.
        socket: of ``lightning-vfl serve --relay``.
        poll: seconds between looks for replies.
        check: seconds after which a party that waits for an answer is asked whether it is still there.
        patience: seconds for which a server that has ended may come back.
    """

    def __init__(self, grid: Grid, socket: str, poll: float, check: float, patience: float) -> None:
        self.grid, self.socket, self.poll, self.check, self.patience = grid, socket, poll, check, patience
        self.lines: dict[int, Line] = {}
        self.served = False  # the server has been reached at least once
        self.gone: float | None = None  # since when it cannot be reached

    @property
    def over(self) -> bool:
        """Whether the server has ended, and all parties have too or the server does not come back."""
        if not self.served or self.gone is None:
            return False
        return not any(line.there for line in self.lines.values()) or monotonic() - self.gone > self.patience

    def run(self) -> None:
        """Carry frames until everybody has ended."""
        looked = 0.0
        while not self.over:
            if monotonic() - looked > 1.0:
                self.look()
                looked = monotonic()
            self.fetch()
            self.hear()

    def look(self) -> None:
        """Take in SuperNodes that have come, and hang up for those that have gone."""
        online = set(self.grid.get_node_ids())
        for node in self.lines.keys() - online:
            self.lines.pop(node).hang_up(0.0)
        for node in online - self.lines.keys():
            self.lines[node] = Line()

    def tell(self, node: int, content: bytes) -> None:
        """Send bytes to the party of a SuperNode, which replies with what it asks next."""
        record = RecordDict({"frame": ConfigRecord({"content": content})})
        message = Message(record, dst_node_id=node, message_type="query", ttl=VALID)
        (sent,) = self.grid.push_messages([message])
        self.lines[node].message = sent

    def fetch(self) -> None:
        """Pass the replies of SuperNodes on to the server."""
        now = monotonic()
        for node, line in self.lines.items():
            if line.message is None and now >= line.due:
                self.tell(node, b"")
        under_way = {line.message: line for line in self.lines.values() if line.message is not None}
        for reply in self.grid.pull_messages(list(under_way)) if under_way else ():
            line = under_way[reply.metadata.reply_to_message_id]
            line.message = None
            line.there = not reply.has_error() and bool(reply.content["frame"]["there"])
            if not line.there:
                line.hang_up(monotonic() + AGAIN)
                self.call()
            else:
                self.ask(line, reply.content["frame"]["content"])

    def ask(self, line: Line, content: bytes) -> None:
        """Pass what a party asks on to the server, once."""
        line.due = monotonic() + (self.check if content else 0.0)
        if not content or content == line.asked:
            return
        if line.server is None:
            line.server = self.call()
        if line.server is None:
            line.hang_up(monotonic() + AGAIN)
            return
        try:
            line.server.send_bytes(content)
            line.asked = content
        except OSError:
            line.hang_up(monotonic() + AGAIN)

    def call(self) -> Connection | None:
        """A connection to the server; None if it does not listen."""
        try:
            server = Client(self.socket, "AF_UNIX")
        except OSError:
            self.gone = monotonic() if self.gone is None else self.gone
            return None
        self.served, self.gone = True, None
        return server

    def hear(self) -> None:
        """Pass the answers of the server on to their parties."""
        nodes = {id(line.server): node for node, line in self.lines.items()}
        servers = [line.server for line in self.lines.values() if line.server is not None]
        if not servers:
            sleep(self.poll)
        ready = wait(servers, self.poll) if servers else ()
        for server in (one for one in servers if one in ready):
            node = nodes[id(server)]
            try:
                answer = server.recv_bytes(LARGEST)
            except (OSError, EOFError):
                self.lines[node].hang_up(monotonic() + AGAIN)
                continue
            self.lines[node].asked = b""
            self.tell(node, answer)
