"""What a process of a federation shows to those who watch it: who is there, since when, and what is awaited."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler
from socket import AF_INET, AF_INET6
from socketserver import ThreadingTCPServer
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from lightning_vfl.errors import ConfigurationError, printable
from lightning_vfl.federation.charter import Log, SeatFile
from lightning_vfl.federation.log import log

_PREFIX = "lightning_vfl_federation"
_LOOK = 1.0  # seconds between two looks of a journal
_PROGRESS = 60.0  # seconds between its lines about the rounds
_LONG = 20.0  # seconds of a wait that is logged
_SECONDS = 5.0  # that ``status`` waits for a process
_POLL = 0.1  # seconds after which ``close`` is noticed
_MOST = 2**20  # bytes of a state that ``status`` reads


@dataclass(frozen=True)
class Peer:
    """The process at the other end of a line.

    Args:
        since: when its connection began or ended, in seconds since 1970; None: it has never been there.
        connected: whether it is there; None: a relay is between, which does not tell.
        awaited: this process waits for it.
        losses: how often its connection has ended.
    """

    since: float | None
    connected: bool | None
    awaited: bool
    losses: int = 0


class Shown(Protocol):
    """The state of a process, as ``Watch`` shows it."""

    def content(self) -> bytes:
        """The JSON of ``/health``."""

    def metrics(self) -> str:
        """The text format of Prometheus."""


@dataclass(frozen=True)
class State:
    """What a process shows: counts, times and the names of ``federation.yaml``.

    Guarantee: no record, id, label, name of a column or metric of the model.

    Args:
        federation: its name.
        name: of this process.
        started: when it has started, in seconds since 1970.
        phase: ``joining``, ``running`` or ``over``.
        waited: seconds for which it has been waiting; None: it works.
        peers: by name, the processes at the other ends of its lines.
        rounds: by stage, those that have begun.
        given_up: rounds in which no network learnt.
        traffic: by leg, the bytes that all parties have sent and been sent, as the books count it.
        seconds: for which it has waited: the server by leg, a party by what it has asked.
        epsilon: the latest ε of the log; None: nothing is charged.
        epsilon_left: of the budget; None: there is none.
    """

    federation: str
    name: str
    started: float
    phase: str
    waited: float | None
    peers: Mapping[str, Peer]
    rounds: Mapping[str, int] = field(default_factory=dict)
    given_up: int = 0
    traffic: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    epsilon: float | None = None
    epsilon_left: float | None = None

    @classmethod
    def read(cls, content: bytes) -> Self:
        """The state that ``/health`` has given.

        Raises:
            ConfigurationError: for anything else.
        """
        try:
            said = json.loads(content)
            return cls(**{**said, "peers": {name: Peer(**one) for name, one in said["peers"].items()}})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(f"no process of a federation answers at this address ({error})") from None

    def content(self) -> bytes:
        """The JSON of ``/health``."""
        return json.dumps(asdict(self)).encode()

    def metrics(self) -> str:
        """The text format of Prometheus."""
        peers = self.peers.items()
        there = {name: int(one.connected) for name, one in peers if one.connected is not None}
        lines = [
            *family(f"{_PREFIX}_started_seconds", "gauge", "", {"": self.started}),
            *family(f"{_PREFIX}_waiting_seconds", "gauge", "", {"": self.waited or 0.0}),
            *family(f"{_PREFIX}_peer_connected", "gauge", "peer", there),
            *family(f"{_PREFIX}_peer_awaited", "gauge", "peer", {name: int(one.awaited) for name, one in peers}),
            *family(f"{_PREFIX}_peer_losses_total", "counter", "peer", {name: one.losses for name, one in peers}),
            *family(f"{_PREFIX}_rounds_total", "counter", "stage", self.rounds),
            *family(f"{_PREFIX}_rounds_given_up_total", "counter", "", {"": self.given_up}),
            *family(f"{_PREFIX}_leg_bytes_total", "counter", "leg", self.traffic),
            *family(f"{_PREFIX}_leg_seconds_total", "counter", "leg", self.seconds),
            *known(f"{_PREFIX}_epsilon", self.epsilon),
            *known(f"{_PREFIX}_epsilon_left", self.epsilon_left),
        ]
        return "\n".join(lines) + "\n"


def family(name: str, kind: str, label: str, samples: Mapping[str, float]) -> Iterable[str]:
    """The lines of one metric in the text format of Prometheus.

    Args:
        name: of the metric.
        kind: ``gauge`` or ``counter``.
        label: what tells its samples apart; empty: there is one sample.
        samples: by the value of the label.
    """
    yield f"# TYPE {name} {kind}"
    for value, number in samples.items():
        braces = f"{{{label}={json.dumps(value)}}}" if label else ""
        yield f"{name}{braces} {number}"


def known(name: str, value: float | None) -> Iterable[str]:
    """The lines of a gauge; none if there is no value."""
    return () if value is None else family(name, "gauge", "", {"": value})


def counts(model: Any, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The counts of ``State``.

    Args:
        model: of the training.
        seconds: by leg, those that the process has waited.
    """
    books = model.books
    privacy = model.privacy
    legs = {leg: int(count.sum()) for leg, count in books.meter.state_dict().items()}
    left = None if privacy.target is None else privacy.target - (privacy.shown or 0.0)
    return {
        "rounds": dict(books.rounds),
        "given_up": books.given_up,
        "traffic": legs,
        "seconds": dict(seconds),
        "epsilon": privacy.shown,
        "epsilon_left": left,
    }


@contextmanager
def watched(seat: SeatFile, state: Callable[[], State]) -> Iterator[None]:
    """Show the state of this process and log its events, as its ``seat.yaml`` says, until the block ends.

    Raises:
        ConfigurationError: if the address of ``metrics`` cannot be listened at.
    """
    with ExitStack() as ends:
        if seat.metrics is not None:
            ends.callback(Watch(seat.metrics, state).close)
        if seat.log is Log.JSON:
            ends.enter_context(Journal(state))
        yield


class Journal:
    """Logs the events of a process: what has changed in its state, which it looks at once a second.

    Guarantee: a line has words of this file, counts, times and the names of ``federation.yaml``, because
        it is made of ``State``.
    Not guaranteed: a line for a connection that ends and comes back within a second; ``losses`` counts it.

    Args:
        state: is asked in a thread.
    """

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state
        self._seen = state()
        self._over = Event()
        self._thread = Thread(target=self._look, name="journal", daemon=True)

    def __enter__(self) -> Self:
        log("started", federation=self._seen.federation, name=self._seen.name, phase=self._seen.phase)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._note()
        self._progress("ended", error=None if kind is None else kind.__name__)

    def _look(self) -> None:
        due = monotonic() + _PROGRESS
        while not self._over.wait(_LOOK):
            self._note()
            if monotonic() >= due:
                due += _PROGRESS
                self._progress("progress")

    def _note(self) -> None:
        before = self._seen
        self._seen = self._state()
        for event, values in changes(before, self._seen):
            log(event, **values)

    def _progress(self, event: str, **more: str | None) -> None:
        seen = self._seen
        log(event, rounds=seen.rounds, given_up=seen.given_up, bytes=sum(seen.traffic.values()), **more)


def changes(before: State, after: State) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events between two states of a process, each with its values."""
    for name, peer in after.peers.items():
        earlier = before.peers[name]
        if peer.losses > earlier.losses:
            yield "disconnected", {"peer": name, "losses": peer.losses}
        if peer.connected and (not earlier.connected or peer.losses > earlier.losses):
            yield "connected", {"peer": name}
    if after.phase != before.phase:
        yield "phase", {"phase": after.phase}
    if after.given_up > before.given_up:
        yield "rounds given up", {"count": after.given_up - before.given_up}
    if (before.waited or 0.0) < _LONG <= (after.waited or 0.0):
        yield "waiting", {"seconds": _LONG, "peers": [name for name, peer in after.peers.items() if peer.awaited]}


class Watch:
    """Serves ``/health`` and ``/metrics`` of this process until it is closed; of each request it reads the path alone.

    Not guaranteed: any check of who asks: whoever reaches the address reads the state.

    Args:
        address: ``host:port`` at which it listens.
        state: is asked at each request, in a thread.

    Raises:
        ConfigurationError: if the address cannot be listened at.
    """

    def __init__(self, address: str, state: Callable[[], Shown]) -> None:
        host, _, port = address.rpartition(":")

        class Listener(ThreadingTCPServer):  # that of http.server asks for the host's name, which can take seconds
            address_family = AF_INET6 if ":" in host else AF_INET
            allow_reuse_address = True
            daemon_threads = True

        class Answers(BaseHTTPRequestHandler):
            timeout = _SECONDS

            def do_GET(self) -> None:
                pages: dict[str, tuple[str, Callable[[], bytes]]] = {
                    "/health": ("application/json", lambda: state().content()),
                    "/metrics": ("text/plain; version=0.0.4", lambda: state().metrics().encode()),
                }
                if self.path not in pages:
                    self.send_error(404)
                    return
                kind, content = pages[self.path]
                body = content()
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Print nothing: the log is of the training."""

        try:
            self._server = Listener((host.strip("[]"), int(port)), Answers)
        except OSError as error:
            raise ConfigurationError(f"metrics of seat.yaml cannot listen at {address}: {error.strerror}") from None
        self.address = address
        Thread(target=self._server.serve_forever, args=(_POLL,), name="watch", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def ask(address: str) -> State:
    """The state of the process that shows it at this address.

    Raises:
        ConfigurationError: if there is none.
    """
    try:
        with build_opener(ProxyHandler({})).open(f"http://{address}/health", timeout=_SECONDS) as answer:
            return State.read(answer.read(_MOST))
    except (URLError, OSError) as error:
        reason = printable(str(getattr(error, "reason", error)))
        raise ConfigurationError(f"nothing answers at {address}, metrics of seat.yaml: {reason}") from None
