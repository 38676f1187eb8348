"""A party's process: it calls the gateway, and answers with embeddings of its records."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from lightning_vfl.errors import ConfigurationError, MalformedFrame, nearest, printable
from lightning_vfl.export.manifest import Kind
from lightning_vfl.federation.charter import Charter, Consent, SeatFile
from lightning_vfl.federation.connections import calling, in_words, party_credentials
from lightning_vfl.federation.identity import Identity, load
from lightning_vfl.serving.log import log
from lightning_vfl.serving.masks import ConnectionKeys
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

_AGAIN = 0.5  # seconds before a broken connection is tried again
_FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)


class Endpoint:
    """Answers the requests of the gateway, one after the other.

    Args:
        half: embeddings of the party's records.
        charter: of the federation; it has the gateway's address and certificate.
        seat: the settings of this host.

    Raises:
        ConfigurationError: for a party that the charter does not name, another party's key, a protection to which the
            seat does not agree, and a ledger of the seat that cannot be read.
    """

    def __init__(self, half: ServedParty, charter: Charter, seat: SeatFile) -> None:
        name = half.manifest.name
        names = [party.name for party in charter.parties]
        if name not in names:
            raise ConfigurationError(
                f"the half is of party '{name}', which {charter.federation} does not have; {nearest(name, names)}"
            )
        self._sums: SumsBefore | None = None
        protection = half.protection
        if protection.consent and seat.evaluate is not Consent.PLAIN:
            raise ConfigurationError(
                f"the gateway would read every embedding, which {protection.aggregator} hides in training; set "
                "evaluate: plain in seat.yaml to agree"
            )
        if seat.budget is not None:
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
            if not half.network:
                raise ConfigurationError("the half does not name its network; export the model again")
            if seat.ledger is not None:
                self._sums = SumsBefore(seat.ledger, half.network, len(protection.parties), half.sums_since)
        self.name = name
        self._half = half
        self._charter = charter
        self._identity: Identity = load(seat.key, charter.parties[charter.number(name)].certificate)
        self._stopped = asyncio.Event()
        self._channel_settings: list[tuple[str, Any]] = [
            *calling(charter.patience.silence, charter.server.name, seat.proxy, charter.limits.frame_bytes),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]

    @property
    def withheld(self) -> str:
        """How many records are not served because a sum without a party has them, in a line; empty: none can be."""
        if self._half.protection.kind is not Kind.MASKED:
            return ""
        if self._sums is None:
            return "the seat has no ledger: records of earlier sums without a party are not withheld"
        noted = len(self._sums)
        withheld = int(self._sums.apart(self._half.all_ids).sum())
        line = f"{withheld:,} records are withheld: {self._sums.ledger} has them in sums without a party"
        if withheld < noted:
            line += f"; {noted - withheld:,} others in such sums are not in the table, or were noted without ids"
        return line

    @property
    def in_the_clear(self) -> str:
        """What the gateway reads, in a line."""
        return said_of(self._half.protection.kind)

    def stop(self) -> None:
        """End ``run`` after the answer that is on its way."""
        self._stopped.set()

    async def run(self) -> None:
        """Answer until ``stop`` is called; a connection that breaks is made again.

        Raises:
            ConfigurationError: if the gateway refuses this party.
        """
        reason = ""
        while not self._stopped.is_set():
            try:
                await self._connection()
                reason = ""
            except grpc.aio.AioRpcError as error:
                details = printable(error.details() or "")
                if error.code() in _FINAL:
                    raise ConfigurationError(f"the gateway refuses this party: {details}") from None
                words = in_words(details)
                if words != reason:
                    log("no connection", gateway=self._charter.server.address, reason=words)
                reason = words
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), _AGAIN)

    async def _connection(self) -> None:
        """One connection, until it ends."""
        credentials = party_credentials(self._identity, self._charter)
        async with grpc.aio.secure_channel(
            self._charter.server.address, credentials, self._channel_settings
        ) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            ended = asyncio.create_task(self._stopped.wait())
            try:
                await self._answer_all(call, ended)
            finally:
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
            answer = self._answered(content, keys)
            if answer is not None:
                await call.write(written(answer))

    def _answered(self, content: bytes, keys: ConnectionKeys | None) -> Message | None:
        """The answer to a message of the gateway."""
        try:
            message = read(content, self._charter.limits.frame_bytes)
        except MalformedFrame as error:
            raise ConfigurationError(f"the gateway has sent what is refused: {error}") from None
        if isinstance(message, Keys) and keys is not None:
            keys.agree(message.publics)
            return None
        if not isinstance(message, Ask):
            raise ConfigurationError(f"the gateway has sent {type(message).__name__}; install equal versions")
        try:
            values, known = self._half.embed(message.ids)
            withheld = np.zeros_like(known)
            if self._sums is not None:
                withheld = known & self._sums.apart(message.ids)
                known &= ~withheld
            sent: NDArray[Any] = values
            if keys is not None:
                sent = keys.mask(message.number, message.content, values, known)
            return Embeddings(message.number, sent, known, withheld)
        except ConfigurationError as error:
            log("request refused", reason=str(error))
            return Withheld(message.number, str(error)[:500])


def said_of(kind: Kind) -> str:
    """What the gateway reads of the parties' records, in a line."""
    if kind is Kind.MASKED:
        return (
            "embeddings are masked: the gateway reads their sum over all parties, and which ids each party has; "
            "parties read which ids are asked for"
        )
    return (
        "embeddings are in the clear: the gateway reads every party's embeddings, and which ids each party has; "
        "parties read which ids are asked for"
    )
