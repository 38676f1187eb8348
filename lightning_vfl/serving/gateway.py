"""The server's process: it asks the parties for embeddings, and joins those that come in time."""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import grpc

from lightning_vfl.errors import ConfigurationError, MalformedFrame, nearest
from lightning_vfl.export.manifest import Kind, Moments
from lightning_vfl.federation.charter import Charter, SeatFile
from lightning_vfl.federation.connections import options, raise_descriptors, refuse_taken, renewable_credentials
from lightning_vfl.federation.identity import load
from lightning_vfl.federation.log import log
from lightning_vfl.federation.spans import span
from lightning_vfl.serving.drift import Drift
from lightning_vfl.serving.messages import METHOD, SERVICE, Ask, Embeddings, Hello, Keys, Withheld, read, written
from lightning_vfl.serving.metrics import Metrics
from lightning_vfl.serving.server_half import Joined, ServedServer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Answer = asyncio.Future[Embeddings | None]

_HANDSHAKE = 5000  # milliseconds that a connection may take to show a certificate
_GRACE = 2.0  # seconds in which answers that are on their way are received, at the end


class _Party:
    """A connected party.

    Args:
        name: of the party.
        hello: its first message.
    """

    def __init__(self, name: str, hello: Hello) -> None:
        self.name = name
        self.hello = hello
        self.outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._asked: dict[int, tuple[float, Answer]] = {}  # by number, the time of the request
        self._overdue: set[int] = set()
        self.budget_left: float | None = None

    @property
    def late(self) -> bool:
        """Whether the answer to an earlier request is overdue. A late party is not asked until it has answered."""
        return bool(self._overdue)

    @property
    def awaited(self) -> "list[Answer]":
        """The answers that are waited for."""
        return [answer for _, answer in self._asked.values()]

    def ask(self, number: int, content: bytes) -> "Answer":
        """Send a request; the answer is None if there is none."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._asked[number] = (monotonic(), answer)
        self.outgoing.put_nowait(content)
        return answer

    def give_up(self, number: int) -> None:
        """The deadline of a request has passed."""
        asked = self._asked.pop(number, None)
        if asked is not None:
            self._overdue.add(number)

    def answered(self, number: int, answer: Embeddings | None) -> float | None:
        """An answer has come; the seconds since the request, None if it is late or was never asked for."""
        self._overdue.discard(number)
        asked = self._asked.pop(number, None)
        if asked is None:
            return None
        since, future = asked
        if not future.done():
            future.set_result(answer)
        return monotonic() - since

    def end(self) -> None:
        """The connection has ended: nothing is waited for."""
        for _, future in self._asked.values():
            if not future.done():
                future.set_result(None)
        self._asked.clear()


class Version:
    """A version of the model: the server's half, and the parties that are connected with their halves of it.

    Args:
        server: the server's half.
    """

    def __init__(self, server: ServedServer) -> None:
        self.server = server
        self.parties: dict[str, _Party] = {}
        training = server.manifest.training
        self.drift = None if training is None else Drift(training)

    @property
    def states(self) -> dict[str, str]:
        """Party -> ``connected``, ``late`` or ``absent``."""
        found = {}
        for name in self.server.parties:
            party = self.parties.get(name)
            found[name] = "absent" if party is None else "late" if party.late else "connected"
        return found

    @property
    def ready(self) -> bool:
        """Whether predictions are possible with the parties that are connected."""
        states = [*self.states.values()]
        return all(one == "connected" for one in states) if self.server.needs_all else "connected" in states

    @property
    def complete(self) -> bool:
        """Whether all parties are connected, late ones included."""
        return len(self.parties) == len(self.server.parties)

    def share_keys(self) -> None:
        """Give everybody the keys of all parties, if all are there and embeddings are masked."""
        if self.server.protection.kind is not Kind.MASKED or not self.complete:
            return
        publics = {name: (party.hello.public, party.hello.signature) for name, party in self.parties.items()}
        content = written(Keys(publics))
        for party in self.parties.values():
            party.outgoing.put_nowait(content)


class Gateway:
    """Asks the parties that are connected, and waits for them until a deadline.

    Guarantee: a party that does not answer in time is absent from the batch, and is asked again after its late answer
        or its next connection. A party's answer is used for the request that it answers, and for no other. All
        embeddings of a request are of one version of the model: the newest with which all parties are connected, else
        the newest with which predictions are possible. A party that is not connected with this version is absent.

    Args:
        servers: the server's half of each version, the oldest first.
        charter: of the federation; it has the address to listen at, and the parties' certificates.
        seat: the settings of this host.
        deadline: seconds that the parties have for an answer.

    Raises:
        ConfigurationError: for parties that the charter does not name, another host's key, and a version twice.
    """

    def __init__(
        self, servers: Sequence[ServedServer], charter: Charter, seat: SeatFile, deadline: float = 1.0
    ) -> None:
        parties = [*dict.fromkeys(name for server in servers for name in server.parties)]
        self.versions = {server.manifest.model: Version(server) for server in servers}
        if len(self.versions) < len(servers):
            raise ConfigurationError("two halves are of one version of the model; give each version once")
        self.metrics = Metrics(parties)
        self.renew(charter, seat)
        self._deadline = deadline
        self._number = 0
        self._grpc: Any = None
        self._stopping = asyncio.Event()
        self._connections: set[asyncio.Task[Any]] = set()
        self.port = 0

    def renew(self, charter: Charter, seat: SeatFile) -> None:
        """Take the certificates of a charter and the key of a seat for connections to come; those that are open go on.

        Not guaranteed: the end of an open connection of somebody who has an old key; start the gateway again for that.

        Raises:
            ConfigurationError: as for the constructor; nothing has changed then.
        """
        names = [party.name for party in charter.parties]
        if unknown := [name for name in self.metrics.parties if name not in names]:
            raise ConfigurationError(
                f"the model has party '{unknown[0]}', which {charter.federation} does not have; "
                f"{nearest(unknown[0], names)}"
            )
        self._identity = load(seat.key, charter.server.certificate)
        self._charter = charter

    @property
    def current(self) -> Version:
        """The version that answers the next request."""
        newest = [*reversed(self.versions.values())]
        possible = [one for one in newest if one.complete] or [one for one in newest if one.ready]
        return [*possible, *newest][0]

    @property
    def server(self) -> ServedServer:
        """The server's half of the version that answers the next request."""
        return self.current.server

    @property
    def states(self) -> dict[str, str]:
        """Party -> ``connected``, ``late`` or ``absent``, with the version that answers the next request."""
        return self.current.states

    @property
    def ready(self) -> bool:
        """Whether predictions are possible with the parties that are connected."""
        return self.current.ready

    @property
    def budgets(self) -> dict[str, float]:
        """Party -> how much ε its budget had left at its last answer; parties without a budget are not named."""
        parties = self.current.parties.values()
        return {party.name: party.budget_left for party in parties if party.budget_left is not None}

    @property
    def ids(self) -> str | None:
        """``whole numbers`` or ``text``, the kind of the parties' ids; None: no party is connected."""
        connected = [party for version in self.versions.values() for party in version.parties.values()]
        return connected[0].hello.ids if connected else None

    @property
    def drift(self) -> Drift | None:
        """The drift of the predictions of the version that answers the next request; None: it is not measured."""
        return self.current.drift

    def measure_drift(self, training: Moments) -> None:
        """Measure how far predictions are from those of these records of training, and not of those of the halves.

        Raises:
            ConfigurationError: for another number of columns than the model predicts.
        """
        for version in self.versions.values():
            width = version.server.width
            if len(training.mean) != width:
                raise ConfigurationError(
                    f"--training has {len(training.mean)} columns of predictions, the model predicts {width}; give "
                    "predictions of this model"
                )
            version.drift = Drift(training)

    async def start(self) -> None:
        """Listen for the parties.

        Raises:
            ConfigurationError: for an address that is taken.
        """
        address = self._charter.server.address
        refuse_taken(address)
        raise_descriptors()
        self._grpc = grpc.aio.server(
            options=[
                *options(self._charter.patience.silence, self._charter.limits.frame_bytes),
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE),
                ("grpc.max_concurrent_streams", 4),
            ]
        )
        methods = {METHOD: grpc.stream_stream_rpc_method_handler(self._serve)}
        self._grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
        try:
            credentials = renewable_credentials(lambda: (self._identity, self._charter))
            self.port = self._grpc.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigurationError(f"the gateway cannot listen at {address}; use an address that is free") from error
        await self._grpc.start()

    async def stop(self) -> None:
        """Stop listening, after the answers that are on their way, and end the connections of the parties.

        Guarantee: no task of the gateway is left.
        """
        parties = [party for version in self.versions.values() for party in version.parties.values()]
        if waiting := [answer for party in parties for answer in party.awaited]:
            await asyncio.wait(waiting, timeout=_GRACE)
        self._stopping.set()
        stopped = asyncio.create_task(self._grpc.stop(_GRACE))
        if self._connections:
            await asyncio.wait(self._connections)
        await stopped

    async def predict(self, ids: "NDArray[Any]") -> Joined:
        """The predictions of the records with these ids, from the parties that answer before the deadline."""
        self._number += 1
        number = self._number
        version = self.current
        server = version.server
        there = {name: party for name, party in version.parties.items() if not party.late}
        possible = len(there) == len(server.parties) or not server.needs_all
        asked = there if possible else {}
        content = written(Ask(number, server.manifest.model, ids))
        futures = {name: party.ask(number, content) for name, party in asked.items()}
        if futures:
            with span("parties", asked=len(asked), records=len(ids)) as current:
                answered, _ = await asyncio.wait(futures.values(), timeout=self._deadline)
                if current is not None:
                    current.set_attribute("lightning_vfl.answered", len(answered))
        answers = {}
        for name, future in futures.items():
            answer = future.result() if future.done() else None
            if not future.done():
                asked[name].give_up(number)
                log("party is late", party=name)
            if answer is None:
                continue
            if server.fits(name, answer, len(ids)):
                answers[name] = answer
            else:
                log("answer refused", party=name, reason="it has another shape or type, or numbers that are not finite")
        present = answers if possible else there
        absent = tuple(name for name in server.parties if name not in present)
        self.metrics.absences.update(absent)
        joined = server.join(answers, len(ids), absent)
        if version.drift is not None and joined.values is not None:
            version.drift.add(joined.values[joined.predicted])
        return joined

    # ---- connections

    async def _serve(self, _: Any, call: Any) -> None:
        """One connection of a party, until it ends or the gateway stops."""
        connection = asyncio.current_task()
        if connection is not None:
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)
        name = await self._caller(call)
        party = _Party(name, await self._hello(name, call))
        await call.send_initial_metadata(())
        if self._stopping.is_set():
            return
        version = self.versions[party.hello.model]
        before = version.parties.get(name)
        version.parties[name] = party
        if before is not None:  # the party was started again before its old connection has ended
            before.end()
        version.share_keys()  # before the next request, which is sent after them
        log("party connected", party=name)
        tasks = {
            asyncio.create_task(self._write(party, call)),
            asyncio.create_task(self._read(party, call)),
            asyncio.create_task(self._stopping.wait()),
        }
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            party.end()
            if version.parties.get(name) is party:
                del version.parties[name]
                log("party disconnected", party=name)
            await asyncio.gather(*tasks, return_exceptions=True)  # last, as gRPC may cancel this coroutine meanwhile

    async def _caller(self, call: Any) -> str:
        """The name of the party with the certificate that the caller has shown."""
        shown = call.auth_context().get("x509_pem_cert", ())
        try:
            name = self._charter.parties[self._charter.holder(shown[0] if shown else b"")].name
        except ConfigurationError as error:
            await call.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise  # abort has raised already
        return name

    async def _hello(self, name: str, call: Any) -> Hello:
        content = await call.read()
        refusal = "the first message is no greeting; install equal versions"
        if content is not grpc.aio.EOF:
            try:
                hello = read(content, self._charter.limits.frame_bytes)
            except MalformedFrame as error:
                await call.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                raise
            if isinstance(hello, Hello):
                refusal = self._refusal(name, hello)
                if not refusal:
                    return hello
        log("party refused", party=name, reason=refusal)
        await call.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        raise ConfigurationError(refusal)  # abort has raised already

    def _refusal(self, name: str, hello: Hello) -> str:
        """Why a party cannot take part; empty: it can."""
        version = self.versions.get(hello.model)
        if version is None:
            return "the halves were exported from different checkpoints; export all halves from one checkpoint"
        if name not in version.server.parties:
            return f"the model has no party '{name}'"
        if bool(hello.public) != (version.server.protection.kind is Kind.MASKED):
            return "the halves differ in whether embeddings are masked; export all halves again"
        if self.ids not in (None, hello.ids):
            return f"ids are {hello.ids} here and {self.ids} at another party; write them in the same form"
        return ""

    async def _write(self, party: _Party, call: Any) -> None:
        while True:
            await call.write(await party.outgoing.get())

    async def _read(self, party: _Party, call: Any) -> None:
        while True:
            content = await call.read()
            if content is grpc.aio.EOF:
                return
            try:
                message = read(content, self._charter.limits.frame_bytes)
            except MalformedFrame as error:
                log("answer refused", party=party.name, reason="it has another form than a message of a prediction")
                await call.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if isinstance(message, Withheld):
                log("party withholds an answer", party=party.name)  # its reason may say anything; it is in its own log
                party.answered(message.number, None)
            elif isinstance(message, Embeddings):
                party.budget_left = message.budget_left
                seconds = party.answered(message.number, message)
                if seconds is not None:
                    self.metrics.parties[party.name].add(seconds)
