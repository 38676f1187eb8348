"""Collect the messages of a round at the server, leg by leg, and relay what goes from party to party."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.attendance import Attendance
from lightning_vfl.federation.calls import Calls
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import Hub, Key, Request
from lightning_vfl.federation.letters import enclosed, merged, message_of, read
from lightning_vfl.federation.turns import CUT, happened, numbers
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Parties, Roll, Tensors, mask_of, stage_of
from lightning_vfl.wire import Leg, Message


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
    sent: Tensors
    seconds: float
    labels: Tensor | None = None
    first: int = 0
    turn: int = 0

    def plan(self, skipped: bool, legs: int | None = None) -> RoundPlan:
        """What has become of the round; ``legs``: how many it has, if it may have ended before the last one."""
        sent = (*self.sent, *[self.sent[-1]] * (legs or 0))[: legs or len(self.sent)]
        return happened(self.roll, self.seconds, skipped, sent)


class Collector:
    """Collects the messages of rounds.

    Args:
        calls: who is called, and what parties are told.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.hub: Hub = calls.hub

    def collect(self, attendance: Attendance, legs: Sequence[Leg], opens: bool = False) -> Uploads:
        """Wait for the messages of a round; the uploads have none if the round is given up.

        Args:
            attendance: who takes part.
            legs: of the round.
            opens: the parties exchange messages before them, if the aggregator has an opening.
        """
        first = self._relay_opening(attendance) if opens else 0
        began = monotonic()
        if first is None:  # a party was lost while keys were exchanged: nobody has used them
            self.calls.keyed.clear()
            nobody = torch.zeros_like(attendance.roll.called)
            attendance.include(nobody)
            return Uploads([], attendance.roll, (nobody,), 0.0)
        last = first + len(legs) - 1
        messages: list[Message] = []
        sent: list[Tensor] = []
        labels: Tensor | None = None
        asked = attendance.uploading
        goes_on = True
        for turn, leg in enumerate(legs, first):
            arrived = attendance.await_leg(turn, leg, asked)
            sent.append(arrived)
            if turn == first:
                goes_on = attendance.include(arrived)
                arrived = attendance.roll.included
            else:
                goes_on = bool(arrived.any())
            if not goes_on:
                break
            parts = [self._message(attendance, party) for party in numbers(arrived)]
            messages.append(merged([message for message, _ in parts]))
            labels = next((given for _, given in parts if given is not None), labels)
            if turn < last:
                asked = mask_of(self._tell_heard(attendance, turn), self.hub.parties)
        if goes_on:
            goes_on = attendance.finish(sent[-1] if len(legs) > 1 else attendance.roll.included)
        if not goes_on:
            messages = []
            labels = None
        return Uploads(messages, attendance.roll, tuple(sent), monotonic() - began, labels, first, turn)

    def gradient_of_cut(self, attendance: Attendance, leg: Leg, holder: int) -> Tensor | None:
        """Wait for the gradient (B, cut) at the cut of a top; None: the label holder is lost or late."""
        if not bool(attendance.await_leg(CUT, leg, mask_of([holder], self.hub.parties)).any()):
            return None
        message, _ = self._message(attendance, holder)
        return message.pieces[0]

    def requests(self, key: Key, parties: Tensor, tolerant: bool = False) -> dict[int, Request] | None:
        """The requests of all these parties; None if one of them is lost, and the round is ``tolerant``.

        A party whose request does not list what it has sealed is refused, and counts as lost.

        Raises:
            ConfigurationError: if a party is lost that the round cannot do without.
        """
        wanted = numbers(parties)
        refused = set[int]()
        here = self.hub.stays if tolerant else self.hub.present

        def found() -> dict[int, Request] | bool | None:
            there = {}
            for party in wanted:
                request = self.hub.request(party, key)
                if request is None or party in refused:
                    continue
                if request.sealed is None:
                    refused.add(party)
                    self.hub.refuse(request, "no list of what it has sealed")
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
        receivers: Iterable[int] | None = None,
    ) -> None:
        """Give every party what the others have sealed for it.

        Args:
            key: the turn.
            requests: by party, what it has sent.
            more: further lines of the headers.
            own: by party, a message of the server's own.
            receivers: the parties; None: those that have sent something.
        """
        sealed = {party: request.sealed or {} for party, request in requests.items()}
        for receiver in requests if receivers is None else receivers:
            senders = [sender for sender in requests if receiver in sealed[sender]]
            header = {**self.calls.standing("go"), "relayed": senders, **more}
            tensors = [sealed[sender][receiver] for sender in senders]
            if receiver in own:
                header, told, _ = enclosed(own[receiver], header)
                tensors += told
            self.hub.post(receiver, key, header, tensors)

    def _relay_opening(self, attendance: Attendance) -> int | None:
        """Relay the messages between parties at the beginning of a round.

        Returns:
            The number of the turn in which the first upload comes; None: a party was lost on the way.
        """
        module = attendance.form.module
        if module.aggregator.opening is None:
            return 0
        turn = 0
        renewed = False
        while True:
            key = Key(attendance.at, turn)
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

    def _message(self, attendance: Attendance, party: int) -> tuple[Message, Tensor | None]:
        """A party's message of a leg, and the labels that came with it."""
        request = attendance.accepted[party]
        header = request.frame.header
        tensors = iter(request.frame.tensors)
        message = read(header["message"], tensors, attendance.form.module.seed, self.hub.agreed)
        if request.decoded is not None:
            message = replace(message, pieces=(request.decoded,))
        labels = next(tensors, None) if header.get("labels") else None  # before what is sealed, which nobody reads here
        return message, labels

    def _tell_heard(self, attendance: Attendance, turn: int) -> Parties:
        """After a leg that is not the last: who is in, who answers, and what the others have sent; who answers."""
        key = Key(attendance.at, turn)
        included = numbers(attendance.roll.included)
        answering = attendance.answering()
        header = {"heard": {"included": included, "answering": answering}}
        requests = {party: attendance.accepted[party] for party in included if party in attendance.accepted}
        relayed = [one.frame for one in requests.values() if one.frame.header["message"]["relayed"]]
        if relayed:
            together = merged([message_of(frame, 0) for frame in relayed])
            answer = pack(*enclosed(together, {**self.calls.standing("go"), **header}))
            self.hub.put([(party, key, answer) for party in requests])
        else:
            self.relay(key, requests, header)
        return answering
