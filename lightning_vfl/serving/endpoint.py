"""A party's process: it calls the gateway, and answers with embeddings of its records."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from lightning_vfl.crypto.keystream import Keystream
from lightning_vfl.errors import ConfigurationError, MalformedFrame, nearest, printable
from lightning_vfl.export.manifest import Kind, Protection
from lightning_vfl.federation.charter import Charter, Consent, SeatFile
from lightning_vfl.federation.connections import calling, in_words, party_credentials
from lightning_vfl.federation.identity import Identity, load
from lightning_vfl.federation.log import log
from lightning_vfl.federation.watch import family, known
from lightning_vfl.privacy.events import GaussianEvent, restored
from lightning_vfl.privacy.exact_normal import INSIDE, with_noise
from lightning_vfl.serving.charges import Charges
from lightning_vfl.serving.drift import Drift
from lightning_vfl.serving.masks import ConnectionKeys, codec_of
from lightning_vfl.serving.messages import (
    METHOD,
    SERVICE,
    Ask,
    Embeddings,
    Hello,
    Keys,
    Message,
    Withheld,
    read,
    written,
)
from lightning_vfl.serving.party_half import ServedParty
from lightning_vfl.serving.sums_before import SumsBefore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Embedded = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]

_AGAIN = 0.5  # seconds before a broken connection is tried again
_DRIFT_EVERY = 1000  # records
_LOOKUP = 5.0  # seconds that a database has for the records of a request
_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)


class _KeysRefused(Exception):
    """The gateway gives keys that other parties have not signed, or have signed with certificates of before."""


@dataclass(frozen=True)
class EndpointState:
    """What an endpoint shows to those who watch it: counts and distances, and nothing of a record.

    Args:
        name: of the party.
        model: the hash of the model.
        connected: whether the gateway is there.
        records: for which embeddings were sent.
        withheld: for which none were sent, to protect them.
        drift: of the embeddings against those of training; None: it is not measured, or too few records have come.
        budget_left: how much ε the budget has left; None: there is none.
    """

    name: str
    model: str
    connected: bool
    records: int
    withheld: int
    drift: float | None
    budget_left: float | None

    def content(self) -> bytes:
        """The JSON of ``/health``."""
        return json.dumps(asdict(self)).encode()

    def metrics(self) -> str:
        """The text format of Prometheus."""
        prefix = "lightning_vfl_endpoint"
        lines = [
            *family(f"{prefix}_connected", "gauge", "", {"": int(self.connected)}),
            *family(f"{prefix}_records_total", "counter", "", {"": self.records}),
            *family(f"{prefix}_withheld_total", "counter", "", {"": self.withheld}),
            *known(f"{prefix}_embedding_drift", self.drift),
            *known(f"{prefix}_budget_left", self.budget_left),
        ]
        return "\n".join(lines) + "\n"


class Endpoint:
    """Answers the requests of the gateway, one after the other.

    Args:
        half: embeddings of the party's records.
        charter: of the federation; it has the gateway's address and certificate.
        seat: the settings of this host.
        drift: of embeddings against training; None: against the moments of training in the half, if it has any. The
            gateway is not told.

    Raises:
        ConfigurationError: for a party that the charter does not name, another party's key, a protection to which the
            seat does not agree, and a ledger of the seat that cannot be read.
    """

    def __init__(self, half: ServedParty, charter: Charter, seat: SeatFile, drift: Drift | None = None) -> None:
        name = half.manifest.name
        names = [party.name for party in charter.parties]
        if name not in names:
            raise ConfigurationError(
                f"the half is of party '{name}', which {charter.federation} does not have; {nearest(name, names)}"
            )
        self._sums: SumsBefore | None = None
        self._charges: Charges | None = None
        self._withheld: Callable[[NDArray[Any]], NDArray[np.bool_]] | None = None
        self._released = release_of(half.protection)
        self._released(half.first)  # the first draws of a process take seconds
        moments = half.manifest.training
        self._drift = Drift(moments) if drift is None and moments is not None else drift
        self._connected = False
        self._records = 0
        self._records_withheld = 0
        self._records_logged = 0  # when the drift was logged
        self._refusal = ""  # why the latest request was refused
        protection = half.protection
        if protection.consent and seat.evaluate is not Consent.PLAIN:
            raise ConfigurationError(
                f"the gateway would read every embedding, which {protection.aggregator} hides in training; set "
                "evaluate: plain in seat.yaml to agree"
            )
        if seat.budget is not None and protection.event is None:
            raise ConfigurationError(
                "seat.yaml has a budget, but embeddings in production have no noise, so nothing bounds their loss; "
                "remove the budget to agree"
            )
        if protection.kind is Kind.MASKED:
            if unknown := [one for one in protection.parties if one not in names]:
                raise ConfigurationError(
                    f"the sum has party '{unknown[0]}', which {charter.federation} does not have; correct the charter"
                )
            if len(protection.parties) < max(seat.least_members, 2):
                raise ConfigurationError(
                    f"the sum is over {len(protection.parties)} parties, fewer than least_members of seat.yaml or 2; "
                    "lower least_members"
                )
        if protection.event is not None:
            if seat.ledger is None:
                raise ConfigurationError(
                    f"{protection.aggregator} charges a ledger; name one with ledger: in seat.yaml"
                )
            self._charges = Charges(seat.ledger, restored(protection.event), seat.budget)
            self._withheld = self._charges.charge
        elif protection.kind is Kind.MASKED:
            if not half.network:
                raise ConfigurationError("the half does not name its network; export the model again")
            if seat.ledger is not None:
                self._sums = SumsBefore(seat.ledger, half.network, len(protection.parties), half.sums_since)
                self._withheld = self._sums.withheld
        self.name = name
        self._half = half
        self._stopped = asyncio.Event()
        self._ended = asyncio.Event()  # this connection is not to go on
        self.renew(charter, seat)

    @property
    def limits(self) -> str:
        """What keeps this party from answers, in a line: its budget, or sums without a party; empty: nothing."""
        if self._charges is not None:
            left = self._charges.left
            return "answers are charged without a budget" if left is None else f"budget: ε = {left:.4g} is left"
        if self._half.protection.kind is not Kind.MASKED:
            return ""
        if self._sums is None:
            return "the seat has no ledger: records of earlier sums without a party are not withheld"
        noted = len(self._sums)
        withheld = int(self._sums.withheld(self._half.all_ids()).sum())
        line = f"{withheld:,} records are withheld: {self._sums.ledger} has them in sums without a party"
        if withheld < noted:
            line += f"; {noted - withheld:,} others in such sums are not in the table, or were noted without ids"
        return line

    @property
    def in_the_clear(self) -> str:
        """What the gateway reads, in a line."""
        return said_of(self._half.protection)

    def state(self) -> EndpointState:
        """What those who watch this process are shown."""
        return EndpointState(
            self.name,
            self._half.manifest.model,
            self._connected,
            self._records,
            self._records_withheld,
            None if self._drift is None else self._drift.distance,
            None if self._charges is None else self._charges.left,
        )

    def renew(self, charter: Charter, seat: SeatFile) -> None:
        """Take the certificates of a charter and the key of a seat, and connect anew with them.

        Raises:
            ConfigurationError: for another party's key, and a charter without this party; nothing has changed then.
        """
        self._identity: Identity = load(seat.key, charter.parties[charter.number(self.name)].certificate)
        self._charter = charter
        self._channel_settings: list[tuple[str, Any]] = [
            *calling(charter.patience.silence, charter.server.name, seat.proxy, charter.limits.frame_bytes),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        self._ended.set()

    def stop(self) -> None:
        """End ``run`` after the answer that is on its way."""
        self._stopped.set()
        self._ended.set()

    async def run(self) -> None:
        """Answer until ``stop`` is called; a connection that breaks is made again. At the end the half is closed.

        Raises:
            ConfigurationError: if the gateway refuses this party.
        """
        try:
            await self._answer_until_stopped()
        finally:
            self._half.close()

    async def _answer_until_stopped(self) -> None:
        reason = ""
        while not self._stopped.is_set():
            try:
                await self._connection()
                reason = ""
            except _KeysRefused as error:  # hosts take new certificates one after the other
                log("keys refused", reason=str(error))
            except grpc.aio.AioRpcError as error:
                details = printable(error.details() or "")
                if error.code() in _FINAL:
                    raise ConfigurationError(f"the gateway refuses this party: {details}") from None
                words = in_words(details)
                if words != reason:
                    log("no connection", gateway=self._charter.server.address, reason=words)
                reason = words
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _AGAIN)

    async def _connection(self) -> None:
        """One connection, until it ends."""
        if not self._stopped.is_set():
            self._ended.clear()
        credentials = party_credentials(self._identity, self._charter)
        async with grpc.aio.secure_channel(
            self._charter.server.address, credentials, self._channel_settings
        ) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            ended = asyncio.create_task(self._ended.wait())
            try:
                await self._answer_all(call, ended)
            finally:
                self._connected = False
                ended.cancel()
                call.cancel()

    async def _answer_all(self, call: Any, ended: "asyncio.Task[bool]") -> None:
        half, keys = self._half, None
        model = half.manifest.model
        hello = Hello(model, half.ids)
        if half.protection.kind is Kind.MASKED:
            keys = ConnectionKeys(self.name, self._identity, self._charter, model, half.protection)
            hello = Hello(model, half.ids, keys.public, keys.signature)
        await call.write(written(hello))
        await call.initial_metadata()  # which the gateway sends when it has accepted the party
        self._connected = True
        log("connected", gateway=self._charter.server.address)
        while True:
            coming = asyncio.ensure_future(call.read())
            await asyncio.wait({coming, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                return
            content = coming.result()
            if content is grpc.aio.EOF:
                await call.code()
                return
            answer = await self._answered(content, keys)
            if answer is not None:
                await call.write(written(answer))

    async def _answered(self, content: bytes, keys: ConnectionKeys | None) -> Message | None:
        """The answer to a message of the gateway."""
        try:
            message = read(content, self._charter.limits.frame_bytes)
        except MalformedFrame as error:
            raise ConfigurationError(f"the gateway has sent what is refused: {error}") from None
        if isinstance(message, Keys) and keys is not None:
            try:
                keys.agree(message.publics)
            except ConfigurationError as error:
                raise _KeysRefused(str(error)) from None
            return None
        if not isinstance(message, Ask):
            raise ConfigurationError(f"the gateway has sent {type(message).__name__}; install equal versions")
        if message.model != self._half.manifest.model:
            return Withheld(message.number, "the request is for another version of the model")
        try:
            ids, places = np.unique(message.ids, return_inverse=True)  # a record has one answer in a request
            values, known, withheld = await self._embedded(ids)
            if refused := int(withheld.sum()):
                log("records refused", records=refused, reason="the half does not take their values")
            if self._withheld is not None:
                withheld[known] = self._withheld(ids[known])
                known &= ~withheld
                values[~known] = 0
            sent = self._released(values)[places]
            if keys is not None:
                sent = keys.mask(message.number, message.content, sent, known[places])
            left = None if self._charges is None else self._charges.left
            self._note(values[known], int(withheld.sum()))
            self._refusal = ""
            return Embeddings(message.number, left, sent, known[places], withheld[places])
        except ConfigurationError as error:
            if str(error) != self._refusal:
                log("request refused", reason=str(error))
                self._refusal = str(error)
            return Withheld(message.number, "the log of the party has the reason")

    async def _embedded(self, ids: "NDArray[Any]") -> "Embedded":
        """What ``ServedParty.embed`` gives; a lookup in a database does not keep the process from anything else.

        Raises:
            ConfigurationError: for records that cannot be read in time.
        """
        if not self._half.waits:
            return self._half.embed(ids)
        done: Future[Embedded] = Future()
        done.set_running_or_notify_cancel()  # so that the thread can give a result that nobody waits for any more

        def embed() -> None:
            try:
                done.set_result(self._half.embed(ids))
            except Exception as error:  # whatever it is, the request gets it
                done.set_exception(error)

        Thread(target=embed, daemon=True).start()  # unlike those of an executor, it does not keep a process from ending
        try:
            return await asyncio.wait_for(asyncio.wrap_future(done), _LOOKUP)
        except TimeoutError:
            raise ConfigurationError(f"the database has not answered within {_LOOKUP:g} s") from None

    def _note(self, values: "NDArray[np.float32]", withheld: int) -> None:
        """Count the records of an answer. The drift is written to the log of this host for every 1,000 records."""
        self._records += len(values)
        self._records_withheld += withheld
        if self._drift is None:
            return
        self._drift.add(values)
        since = self._records - self._records_logged
        if since >= _DRIFT_EVERY:
            log("drift", distance=self._drift.distance, records=since)
            self._records_logged = self._records


def said_of(protection: Protection) -> str:
    """What the gateway reads of the parties' records, in a line."""
    random = "" if protection.event is None else " with noise, which is charged,"
    if protection.kind is Kind.MASKED:
        line = f"embeddings{random} are masked: the gateway reads their sum over all parties"
    else:
        line = f"embeddings{random} are in the clear: the gateway reads every party's embeddings"
    return f"{line}, and which ids each party has; parties read which ids are asked for"


def release_of(protection: Protection) -> "Callable[[NDArray[np.float32]], NDArray[Any]]":
    """What a party makes of its embeddings before it masks or sends them."""
    if protection.kind is Kind.MASKED:
        return codec_of(protection).to_words
    event = None if protection.event is None else restored(protection.event)
    return GaussianNoise(protection, event) if isinstance(event, GaussianEvent) else lambda values: values


class GaussianNoise:
    """Clips embeddings and adds noise from the operating system, as ``LocalGaussian`` does.

    Args:
        protection: has the clip and what it bounds.
        event: has σ.
    """

    def __init__(self, protection: Protection, event: GaussianEvent) -> None:
        self._clip = protection.clip
        self._by_record = protection.bounds == "record"
        self._sigma = event.sigma
        self._random = Keystream()

    def __call__(self, values: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """(B, D) the noisy embeddings."""
        if not np.isfinite(values).all():
            raise ConfigurationError("NaN or infinite embeddings cannot be hidden by noise; correct the table")
        noisy = with_noise(self.clipped(values), self._sigma, self._clip, self._random.words)
        return noisy.astype(np.float32)

    def clipped(self, values: "NDArray[np.float32]") -> "NDArray[np.float64]":
        """(B, D) rows, or values, that are longer than the clip are scaled down to it."""
        exact = values.astype(np.float64)
        if not self._by_record:
            return np.clip(exact, -self._clip, self._clip)
        inside = self._clip * INSIDE
        norm = np.linalg.norm(exact, axis=1, keepdims=True)
        scaled: NDArray[np.float64] = exact * (inside / np.maximum(norm, inside))
        return scaled
