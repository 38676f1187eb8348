"""A federation as a job of NVFlare: its controller and its executors carry the sealed frames of a relay.

The job starts ``lightning-vfl serve`` and ``party`` at the sites, each with ``--relay``, and passes bytes between their
sockets over NVFlare's auxiliary channel. NVFlare decides which sites take part, how they are connected, and who may
submit the job. What runs at a site is in a folder of the site: ``local/lightning_vfl/SITE`` of its NVFlare workspace.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Charter

TASK = "take_part"
TOPIC = "lightning_vfl"  # of the messages of a party to the server
FRAME = "frame"  # the bytes of a message, empty: a sign of life; a message without them: the party's process has ended
LARGEST = 2**30  # bytes
HOLD = 10.0  # seconds for which the server's answer is awaited in one message
SILENCE = 60.0  # seconds without a message after which a party counts as gone; it sends one after 20 s at the latest
TRANSFER = 60.0  # seconds that a message and its answer may travel
LOOK = 0.2  # seconds between looks whether a process has ended
OVER = 30.0  # seconds in which the parties end after the server
END = 10.0  # seconds in which a process that is asked to end can end by itself
OUTPUT = "output.txt"
SERVER = "server"  # the folder of the server's site, which has other names in NVFlare's simulator
# the process ends with the job, also if NVFlare kills the job
_PROGRAM = (
    "import sys; from lightning_vfl.orphans import end_with_parent; end_with_parent(int(sys.argv.pop(1))); "
    "from lightning_vfl.cli import main; main(sys.argv[1:])"
)


class Program:
    """``lightning-vfl serve`` or ``party`` in a process, which ends with the process of the job.

    Args:
        arguments: of ``lightning-vfl``.
        folder: in which it runs, and writes what it prints into ``output.txt``.
    """

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self.output = folder / OUTPUT
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(os.getpid()), *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def status(self) -> int | None:
        """Its exit status; None: it runs."""
        return self.process.poll()

    def wait(self, abort: Signal, look: Callable[[], None] = lambda: None) -> int:
        """Wait for its end, and end it if the job is aborted; its exit status. ``look`` is called again and again."""
        while self.process.poll() is None and not abort.triggered:
            look()
            sleep(LOOK)
        self.process.terminate()
        try:
            return self.process.wait(END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class _Seat:
    """What a site runs; see ``Federation`` and ``Party``.

    Args:
        federation: the file in the folder of the site.
        recipe: the same of the recipe.
        do: the method, as ``--do`` of ``serve`` and ``party``.
    """

    def __init__(self, federation: str, recipe: str, do: str) -> None:
        for name in (federation, recipe, do):
            # a job is written by others, and must not choose other files of a site, or further options
            if not isinstance(name, str) or not name.replace("_", "").replace(".", "").isalnum():
                raise ConfigurationError(f"a job names a file of the site's folder or a method; got {name!r}")
        self.federation = federation
        self.recipe = recipe
        self.do = do

    def folder(self, context: FLContext, name: str) -> Path:
        """The folder of this site.

        Raises:
            ConfigurationError: if it is not there.
        """
        workspace: Any = context.get_engine().get_workspace()
        folder = Path(workspace.get_site_config_dir()) / "lightning_vfl" / name
        if not folder.is_dir():
            raise ConfigurationError(
                f"{folder} is not there; make it, with {self.federation}, {self.recipe} and seat.yaml"
            )
        return folder

    def arguments(self, socket: Path) -> list[str]:
        """The arguments that a server and a party have in common."""
        return [self.federation, "--config", self.recipe, "--do", self.do, "--relay", str(socket)]


class _Line:
    """The server's end of one party's line.

    Args:
        socket: of ``lightning-vfl serve --relay``.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._one_at_a_time = Lock()
        self._left = Event()
        self._connection: Connection | None = None
        self._asked = b""  # what has no answer yet
        self._heard = monotonic()

    @property
    def silent(self) -> bool:
        """Whether a party that was there has sent nothing for long."""
        return self._connection is not None and monotonic() - self._heard > SILENCE

    def ask(self, frame: bytes) -> bytes:
        """The server's answer; empty: it takes longer, and the same frame is to be sent again.

        Args:
            frame: empty: there is none, and the party is there.
        """
        self._heard = monotonic()
        with self._one_at_a_time:
            try:
                return self._ask(frame) if frame else b""
            except (OSError, EOFError):  # the server's process has not started, or has ended
                self._close()
                sleep(LOOK)
                return b""

    def leave(self) -> None:
        """Tell the server that the party is not there any more."""
        self._left.set()  # the request that waits hears of it
        with self._one_at_a_time:
            self._close()
            self._left.clear()

    def _ask(self, frame: bytes) -> bytes:
        if self._asked not in (b"", frame):
            self._close()  # another process of the party asks: the last one's answer would be taken for this one's
        if self._connection is None:
            self._connection = Client(str(self._socket), "AF_UNIX")
        if self._asked != frame:
            self._connection.send_bytes(frame)
            self._asked = frame
        end = monotonic() + HOLD
        while not self._connection.poll(LOOK):
            if self._left.is_set() or monotonic() > end:
                return b""
        answer = self._connection.recv_bytes(LARGEST)
        self._asked = b""
        return answer

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._asked = b""


class Federation(Controller):
    """The server of a federation: runs ``lightning-vfl serve``, and passes what the parties ask on to it.

    Guarantee: NVFlare sees frames that party and server have sealed; see ``sealed_line``.
    Not guaranteed: that a site does not disturb the line of another one: NVFlare's messages name their sender.

    Args:
        federation: the file ``federation.yaml`` in the folder of the site.
        recipe: the same of the recipe.
        do: the method, as ``--do`` of ``serve``.
    """

    def __init__(self, federation: str = "federation.yaml", recipe: str = "recipe.yaml", do: str = "fit") -> None:
        super().__init__()
        self.seat = _Seat(federation, recipe, do)
        self._lines: dict[str, _Line] = {}
        self._sockets = TemporaryDirectory(prefix="vfl")  # the path of a socket must be short

    def start_controller(self, fl_ctx: FLContext) -> None:
        charter = Charter.read(self.seat.folder(fl_ctx, SERVER) / self.seat.federation)
        self._lines = {party.name: _Line(self._socket) for party in charter.parties}
        engine: Any = fl_ctx.get_engine()
        engine.register_aux_message_handler(TOPIC, self._carry)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        folder = self.seat.folder(fl_ctx, SERVER)
        program = Program(["serve", *self.seat.arguments(self._socket), "--events", "events.csv"], folder)
        task = Task(name=TASK, data=Shareable())
        self.broadcast(task, fl_ctx, targets=list(self._lines), min_responses=len(self._lines))

        def look() -> None:
            for name, line in self._lines.items():
                if line.silent:
                    self.log_warning(fl_ctx, f"{name} has sent nothing for {SILENCE:g} s and counts as gone")
                    line.leave()

        status = program.wait(abort_signal, look)
        if status and not abort_signal.triggered:
            self.system_panic(f"the server has ended with status {status}; {program.output} says why", fl_ctx)
        end = monotonic() + OVER
        while self.get_num_standing_tasks() and not abort_signal.triggered and monotonic() < end:
            sleep(LOOK)  # the parties end by themselves

    def stop_controller(self, fl_ctx: FLContext) -> None:
        self._sockets.cleanup()

    def process_result_of_unknown_task(self, *args: Any, **kwargs: Any) -> None:
        """A party has ended after its task was over."""

    @property
    def _socket(self) -> Path:
        return Path(self._sockets.name) / "server"

    def _carry(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Answer a message of a party."""
        name = fl_ctx.get_peer_context().get_identity_name()
        line = self._lines.get(name)
        if line is None:
            self.log_error(fl_ctx, f"{name} is no party of federation.yaml; give the site the name of its party")
            return make_reply(ReturnCode.BAD_PEER_CONTEXT)
        reply = make_reply(ReturnCode.OK)
        if FRAME in request:
            reply[FRAME] = line.ask(request[FRAME])
        else:
            line.leave()
        return reply


class Party(Executor):
    """A party of a federation: runs ``lightning-vfl party``, and passes what it asks on to the server.

    A process that is killed is started again, with its newest checkpoint.

    Args:
        federation: the file ``federation.yaml`` in the folder of the site.
        recipe: the same of the recipe.
        do: the method, as ``--do`` of ``party``.
        restarts: how often the process is started again.
    """

    def __init__(
        self,
        federation: str = "federation.yaml",
        recipe: str = "recipe.yaml",
        do: str = "fit",
        restarts: int = 3,
    ) -> None:
        super().__init__()
        self.seat = _Seat(federation, recipe, do)
        self.restarts = restarts

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        name = str(fl_ctx.get_identity_name())
        folder = self.seat.folder(fl_ctx, name)
        with TemporaryDirectory(prefix="vfl") as sockets:
            socket = Path(sockets) / "party"
            arguments = ["party", *self.seat.arguments(socket), "--name", name]
            for left in range(self.restarts, -1, -1):
                program = Program(arguments, folder)
                Thread(target=self._carry, args=(program, socket, fl_ctx), name="frames", daemon=True).start()
                status = program.wait(abort_signal)
                self._send(Shareable(), fl_ctx)
                if status >= 0 or abort_signal.triggered or not left:
                    break
                self.log_warning(fl_ctx, f"the process of {name} was killed; it is started again")
                if any(folder.rglob("*.ckpt")):
                    arguments = [*arguments, "--ckpt_path", "last"]
        if status and not abort_signal.triggered:
            # NVFlare sends errors to the server, so the reason stays in the file
            self.log_error(fl_ctx, f"{name} has ended with status {status}; {program.output} says why")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return make_reply(ReturnCode.OK)

    def _carry(self, program: Program, socket: Path, fl_ctx: FLContext) -> None:
        """Pass frames and answers on until the process has ended."""
        answer = b""
        while program.status is None:
            try:
                with Client(str(socket), "AF_UNIX") as party:
                    party.send_bytes(answer)
                    frame = party.recv_bytes(LARGEST) if party.poll(2 * HOLD) else b""
            except (OSError, EOFError):
                sleep(LOOK)  # it has not started yet, or has ended
                continue
            answer = self._send(Shareable({FRAME: frame}), fl_ctx)
            while frame and not answer and program.status is None:
                answer = self._send(Shareable({FRAME: frame}), fl_ctx)

    def _send(self, message: Shareable, fl_ctx: FLContext) -> bytes:
        """The server's answer to a message; empty: it has none yet, or none has come."""
        engine: Any = fl_ctx.get_engine()
        replies = engine.send_aux_request([], TOPIC, message, HOLD + TRANSFER, fl_ctx, optional=True)
        content: bytes = next((reply[FRAME] for reply in replies.values() if FRAME in reply), b"")
        return content
