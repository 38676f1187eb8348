"""Collect the messages of a round at the server, leg by leg, and relay what goes from party to party."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.attendance import Attendance
from lightning_vfl.federation.calls import Calls, numbers
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.federation.letters import merged, read, written
from lightning_vfl.federation.turns import CUT, turns_of
from lightning_vfl.types import Roll, VerticalBatch, stage_of
from lightning_vfl.wire import Leg, Message

if TYPE_CHECKING:
    from lightning_vfl.protocols.split import SplitVFL


@dataclass(frozen=True, eq=False)
class Uploads:
    """What has come from the parties in a round.

    Args:
        messages: leg by leg, empty if the round is given up; legs between parties have no pieces here.
        roll: the role of each party.
        sent: for each leg (M,) bool, the parties whose message has come.
        seconds: from the first upload's turn to the end of the last leg.
        labels: (B,), of the party that holds the labels; None: the server holds them.
        first: the number of the turn of the first leg.
        turn: the number of the last turn.
    """

    messages: list[Message]
    roll: Roll
    sent: tuple[Tensor, ...]
    seconds: float
    labels: Tensor | None = None
    first: int = 0
    turn: int = 0


class Collector:
    """Collects the messages of rounds.

    Args:
        calls: who is called, and what parties are told.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.hub: Hub = calls.hub

    def collect(
        self,
        module: "SplitVFL",
        batch: VerticalBatch,
        at: At,
        attendance: Attendance,
        clear: Sequence[Leg] = (),
    ) -> Uploads:
        """Wait for the messages of a round.

        Args:
            module: the protocol.
            batch: this round's.
            at: where the round is.
            attendance: who takes part.
            clear: the legs of a round without an opening; none: those of the aggregator.
        """
        nobody = torch.zeros_like(attendance.roll.called)
        first = 0 if clear else self._relay_opening(module, at, attendance)
        began = monotonic()
        if first is None:  # a party was lost while keys were exchanged: nobody has used them
            self.calls.keyed.clear()
            attendance.include(nobody)
            return Uploads([], attendance.roll, (nobody,), 0.0)
        legs = clear or turns_of(module, batch)
        messages: list[Message] = []
        sent: list[Tensor] = []
        labels: Tensor | None = None
        asked = attendance.uploading
        for turn, leg in enumerate(legs, first):
            key = Key(at, turn)
            arrived = attendance.await_leg(key, leg, asked)
            sent.append(arrived)
            if turn == first:
                goes_on = attendance.include(arrived)
                arrived = attendance.roll.included
            else:
                goes_on = bool(arrived.any())
            if not goes_on:
                return Uploads([], attendance.roll, tuple(sent), monotonic() - began, None, first, turn)
            parts = [self._message(module, attendance.accepted[party]) for party in numbers(arrived)]
            messages.append(merged([message for message, _ in parts]))
            labels = next((given for _, given in parts if given is not None), labels)
            if turn < first + len(legs) - 1:
                answering = attendance.answering()
                self._tell_heard(key, attendance, answering)
                asked = torch.zeros_like(nobody)
                asked[list(answering)] = True
        last = first + len(legs) - 1
        if not attendance.finish(sent[-1] if len(legs) > 1 else attendance.roll.included):
            return Uploads([], attendance.roll, tuple(sent), monotonic() - began, None, first, last)
        return Uploads(messages, attendance.roll, tuple(sent), monotonic() - began, labels, first, last)

    def gradient_of_cut(self, module: "SplitVFL", at: At, rows: int, attendance: Attendance) -> Tensor | None:
        """Wait for the gradient (B, cut) at the cut of a top; None: the label holder is lost or late."""
        leg = module.costs.cut(rows)[-1]
        holder = torch.tensor([party == module.roster.active for party in range(module.roster.parties)])
        if not bool(attendance.await_leg(Key(at, CUT), leg, holder).any()):
            return None
        ((_, request),) = attendance.accepted.items()
        message, _ = self._message(module, request)
        return message.pieces[0]

    def requests(self, key: Key, parties: Tensor, tolerant: bool = False) -> dict[int, Request] | None:
        """The requests of all these parties; None if one of them is lost, and the round is ``tolerant``.

        A party whose request does not list what it has sealed is refused, and counts as lost.

        Raises:
            ConfigurationError: if a party is lost that the round cannot do without.
        """
        wanted, refused, here = numbers(parties), set[int](), self.hub.stays if tolerant else self.hub.present

        def found() -> dict[int, Request] | bool | None:
            there = {}
            for party in wanted:
                request = self.hub.request(party, key)
                if request is None or party in refused:
                    continue
                if request.sealed is None:
                    refused.add(party)
                    who = self.hub.agreed.party(party)
                    why = f"refused: {who} has not listed what it has sealed; all must run the same recipe"
                    self.hub.post(party, key, {"outcome": "refused", "why": why})
                else:
                    there[party] = request
            if len(there) == len(wanted):
                return there
            gone = [m for m in wanted if m not in there and (m in refused or not here(m))]
            if gone and not tolerant:
                raise ConfigurationError(
                    f"{self.hub.agreed.party(gone[0])} has gone, and every party is needed here; start all processes "
                    "again"
                )
            return False if gone else None

        answer = self.hub.wait(found)
        return answer if isinstance(answer, dict) else None

    def relay(
        self,
        key: Key,
        requests: Mapping[int, Request],
        more: Mapping[str, Any],
        own: Mapping[int, Message] = MappingProxyType({}),
    ) -> None:
        """Give every party what the others have sealed for it, and by party a message of the server's own."""
        sealed = {party: request.sealed or {} for party, request in requests.items()}
        for receiver in requests:
            senders = [sender for sender in requests if receiver in sealed[sender]]
            header = {**self.calls.standing("go"), "relayed": senders, **more}
            tensors = [sealed[sender][receiver] for sender in senders]
            if receiver in own:
                header["message"], told, _ = written(own[receiver])
                tensors += told
            self.hub.post(receiver, key, header, tensors)

    def _relay_opening(self, module: "SplitVFL", at: At, attendance: Attendance) -> int | None:
        """Relay the messages between parties at the beginning of a round.

        Returns:
            The number of the turn in which the first upload comes; None: a party was lost on the way.
        """
        if module.aggregator.opening is None:
            return 0
        turn, renewed = 0, False
        while True:
            key = Key(at, turn)
            first = self._first_request(key, attendance.uploading)
            if first is None:
                return None
            if first.frame.header.get("part") != "open":
                if renewed:
                    self.calls.keyed[str(stage_of(module.stage))] = numbers(attendance.everybody)
                return turn
            whole = self.requests(key, attendance.everybody, attendance.tolerant)
            if whole is None:
                return None
            renewed = renewed or any(request.frame.header.get("renew") for request in whole.values())
            self.relay(key, whole, {})
            turn += 1

    def _first_request(self, key: Key, parties: Tensor) -> Request | None:
        wanted = numbers(parties)

        def found() -> Request | bool | None:
            for party in wanted:
                if (request := self.hub.request(party, key)) is not None:
                    return request
            return None if any(map(self.hub.stays, wanted)) else False

        request = self.hub.wait(found)
        return request if isinstance(request, Request) else None

    def _message(self, module: "SplitVFL", request: Request) -> tuple[Message, Tensor | None]:
        """A party's message of a leg, and the labels that came with it."""
        header, tensors = request.frame.header, iter(request.frame.tensors)
        message = read(dict(header["message"]), tensors, module.seed, self.hub.agreed)
        if request.decoded is not None:
            message = replace(message, pieces=(request.decoded,))
        labels = next(tensors, None) if header.get("labels") else None  # before what is sealed, which nobody reads here
        return message, labels

    def _tell_heard(self, key: Key, attendance: Attendance, answering: tuple[int, ...]) -> None:
        """After a leg that is not the last: who is in, who answers, and what the others have sent."""
        included = numbers(attendance.roll.included)
        heard = {"included": included, "answering": list(answering)}
        requests = {party: attendance.accepted[party] for party in included if party in attendance.accepted}
        relayed = [r for r in requests.values() if r.frame.header["message"]["relayed"]]
        if not relayed:
            self.relay(key, requests, {"heard": heard})
            return
        parts = [read(dict(r.frame.header["message"]), iter(r.frame.tensors), 0) for r in relayed]
        letter, tensors, bits = written(merged(parts))
        for party in requests:
            self.hub.post(party, key, {**self.calls.standing("go"), "heard": heard, "message": letter}, tensors, bits)
