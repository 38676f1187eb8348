"""The server's process: it runs the server's end of every round against the parties' requests."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite, nan
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.federation.letters import merged, read, written
from lightning_vfl.federation.turns import at_of, turns_of
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.protocols.place import Place, needed
from lightning_vfl.protocols.preparation import stage_of
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.ends import finish, server_end
from lightning_vfl.rounds.plan import RoundPlan, close_leg
from lightning_vfl.types import RecordSource, Roll, RoundNames, Seat, VerticalBatch, joint_rows
from lightning_vfl.wire import Aggregate, Leg, Message, ServerView

if TYPE_CHECKING:
    from lightning_vfl.federation.record import Record
    from lightning_vfl.protocols.split import SplitVFL


class Uploads(NamedTuple):
    """What has come from the parties in a round.

    Args:
        messages: leg by leg; legs between parties have no pieces here.
        roll: the role of each party.
        sent: for each leg (M,) bool, the parties whose message has come.
        seconds: from the beginning of the round to the end of the last leg.
        labels: (B,), of the party that holds the labels; None: the server holds them.
        first: the number of the turn of the first leg.
        turn: the number of the last turn.
    """

    messages: list[Message]
    roll: Roll
    sent: tuple[Tensor, ...]
    seconds: float
    labels: Tensor | None
    first: int
    turn: int


class AtServer(Place):
    """The server's part of rounds.

    Args:
        hub: the parties' requests.
        injected: faults are played from the recipe; else what happens is met as it comes.
        reconnect: seconds to wait for parties without which no round is possible.
        record: keeps what has happened; None: nothing is kept.
    """

    seat = Seat(None)

    def __init__(self, hub: Hub, injected: bool, reconnect: float = 600.0, record: "Record | None" = None) -> None:
        self.hub = hub
        self.injected = injected
        self.reconnect = reconnect
        self.record = record
        self.joins: Callable[[], int] = lambda: 0  # how often a party has joined, with a new key for sealed messages
        everybody = torch.ones(hub.parties, dtype=torch.bool)
        self.called = everybody  # in the next round
        self._keyed: dict[str, tuple[int, ...]] = {}  # by stage: the parties that have the keys of its rounds
        self._counts: dict[str, int] = {}
        self._metrics: Mapping[str, float] = {}
        self._last: At | None = None

    # ---- training

    def step(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Run a round; the parties get their gradients in the backward pass."""
        rows, at = (joint_rows(batch).total, module.coded_rows(batch)), at_of(module, names, 0)
        plan: RoundPlan | None = None
        if self.injected:
            plan = module.plan_round(batch, names.round, rows)
            module.enter_plan(plan, batch, names, rows)
            if plan.skipped:
                return Step(None)
        self._begin(module, at)
        uploads = self._collect(module, batch, names, at, plan, module.missing)
        if plan is None:
            plan = self._seen_plan(module, uploads)
            module.enter_plan(plan, batch, names, rows)
            if self.record is not None:
                self.record.add(names.round, plan)
            if plan.skipped:
                self._give_up(at, uploads, plan)
                return Step(None)
        if uploads.labels is not None:
            batch = batch._replace(labels=uploads.labels)
        value, columns = self._aggregate(module, batch, names, at, uploads, module.missing, plan)
        loss = module.rank_loss(module.head(value, columns), batch)
        return Step(loss, (), {})

    def _begin(self, module: "SplitVFL", at: At) -> None:
        self._counts = {str(stage): number for stage, number in module.books.rounds.items()}
        self._last = at
        self.hub.close(at, lambda request: self._closed(request))
        if not self.injected:
            self._await_parties(module, at)

    def _await_parties(self, module: "SplitVFL", at: At) -> None:
        """Wait until a round is possible, if too many parties are away."""

        def possible() -> bool | None:
            for party in range(self.hub.parties):
                waiting = self.hub.waiting(party)
                if not self.hub.present(party):
                    self.called = self.called & (torch.arange(self.hub.parties) != party)
                elif not self.called[party] and waiting is not None and waiting.say == "ready" and waiting.key.at == at:
                    self._admit(party)
            there = module.wire.takes_part(self.called, self.called, module.roster)
            held = torch.ones_like(there)
            active = module.roster.active
            enough = int(there.sum()) >= module.wire.needed(module.roster.parties) and there.any()
            return (
                True
                if enough and (active is None or there[active]) and (module.missing.plan(held, there) is not None)
                else None
            )

        began = monotonic()
        if self.hub.wait(possible, lambda: began) is None:
            rank_zero_warn(f"round {at.round} waits for parties that are away; present are {self._present()}")
            if self.hub.wait(possible, lambda: began + self.reconnect) is None:
                raise ConfigurationError(
                    f"round {at.round} has waited {self.reconnect:g} s for parties that are away (present: "
                    f"{self._present()}); start them again with --ckpt_path last, or use a policy that goes on"
                )

    def _admit(self, party: int) -> None:
        """Call a party in the round that begins; keys are made anew for everybody."""
        self.called = self.called | (torch.arange(self.hub.parties) == party)
        self._keyed = {stage: tuple(m for m in held if m != party) for stage, held in self._keyed.items()}

    def _present(self) -> list[int]:
        return [party for party in range(self.hub.parties) if self.hub.present(party)]

    def _collect(
        self,
        module: "SplitVFL",
        batch: VerticalBatch,
        names: RoundNames,
        at: At,
        plan: RoundPlan | None,
        policy: MissingPolicy,
        evaluation: bool = False,
    ) -> Uploads:
        """Collect the messages of a round, leg by leg; relay what goes from party to party."""
        m, nobody = module.roster.parties, torch.zeros(module.roster.parties, dtype=torch.bool)
        called = plan.roll.called if plan is not None else self.called.clone()
        if plan is None:  # for parties that do not know yet that they are called
            for party in _numbers(called):
                self.hub.post(party, Key(at, -1), self._standing("go"))
        participants = torch.ones_like(called) if plan is not None else called
        clear = evaluation and not module.protected_evaluation
        turn = (
            0
            if clear
            else self._relay_opening(module, at, called if plan is None else plan.roll.included, participants)
        )
        began = monotonic()
        if turn is None:  # a party was lost while keys were exchanged: nobody has used them
            self._keyed.clear()
            return Uploads([], Roll(called, nobody, nobody, nobody), (nobody,), 0.0, None, 0, 0)
        opened, legs = turn, turns_of(module, batch)[: 1 if clear else None]
        messages: list[Message] = []
        sent: list[Tensor] = []
        labels: Tensor | None = None
        asked = plan.roll.included if plan is not None else called
        included, filled, seconds = asked, nobody, 0.0
        for number, leg in enumerate(legs):
            last = number == len(legs) - 1
            if plan is not None:
                asked = plan.roll.responders if last and number else plan.roll.included
            arrived = self._await_leg(module, Key(at, turn), leg, asked, plan, evaluation)
            if plan is None:
                seconds = monotonic() - began
            sent.append(arrived)
            if number == 0:
                included = (
                    plan.roll.included if plan is not None else module.wire.takes_part(called, arrived, module.roster)
                )
                if plan is None:
                    held = torch.ones_like(called)
                    kept = policy.plan(held, included)
                    filled = nobody if kept is None else kept
                    active = module.roster.active
                    lacking = active is not None and not bool(included[active]) and not evaluation
                    if kept is None or lacking or not included.any():
                        return Uploads(
                            [], Roll(called, nobody, nobody, filled), tuple(sent), seconds, None, opened, turn
                        )
                else:
                    filled = plan.roll.filled
            senders = included if number == 0 else arrived
            parts = [self._message(module, party, Key(at, turn), leg) for party in _numbers(senders)]
            if not parts:  # all are gone
                return Uploads([], Roll(called, nobody, nobody, filled), tuple(sent), seconds, None, opened, turn)
            messages.append(merged([message for message, _ in parts]))
            given = [tensor for _, tensor in parts if tensor is not None]
            labels = given[0] if given and number == 0 else labels
            if not last:
                answering = included if plan is None else plan.roll.responders
                needed = _numbers(answering)[: module.wire.needed(m)] if plan is not None else _numbers(answering)
                self._tell_heard(Key(at, turn), included, needed, leg)
                asked = torch.zeros_like(included)
                asked[list(needed)] = True
                if plan is not None:
                    plan = replace(plan, roll=replace(plan.roll, responders=asked))
            turn += 0 if last else 1
        responders = sent[-1] if len(legs) > 1 else included
        if plan is None and int(responders.sum()) < module.wire.needed(m):
            return Uploads([], Roll(called, nobody, responders, filled), tuple(sent), seconds, None, opened, turn)
        roll = plan.roll if plan is not None else Roll(called, included, responders, filled)
        return Uploads(messages, roll, tuple(sent), seconds, labels, opened, turn)

    def _relay_opening(self, module: "SplitVFL", at: At, uploading: Tensor, participants: Tensor) -> int | None:
        """Relay the messages between parties at the beginning of a round.

        Returns:
            The number of the turn in which the first upload comes; None: a party was lost on the way.
        """
        if module.aggregator.opening is None:
            return 0
        turn, renewed, stage = 0, False, str(stage_of(module.stage))
        while True:
            key = Key(at, turn)
            first = self._first_request(key, uploading)
            if first is None:
                return None
            if first.frame.header.get("part") != "open":
                if renewed:
                    self._keyed[stage] = _numbers(participants)
                return turn
            whole = self._requests(key, participants)
            if whole is None:
                return None
            if any(request.frame.header.get("renew") for request in whole.values()):
                renewed = True
            self._relay(key, whole, {})
            turn += 1

    def _first_request(self, key: Key, parties: Tensor) -> Request | None:
        wanted = _numbers(parties)

        def found() -> Request | bool | None:
            for party in wanted:
                if (request := self.hub.request(party, key)) is not None:
                    return request
            return None if any(self.hub.present(party) for party in wanted) else False

        request = self.hub.wait(found)
        return request if isinstance(request, Request) else None

    def _requests(self, key: Key, parties: Tensor) -> dict[int, Request] | None:
        """The requests of all these parties; None if one of them is lost."""
        wanted = _numbers(parties)

        def found() -> dict[int, Request] | bool | None:
            have = {party: self.hub.request(party, key) for party in wanted}
            there = {party: request for party, request in have.items() if request is not None}
            if len(there) == len(wanted):
                return there
            gone = [party for party in wanted if party not in there and not self.hub.present(party)]
            return False if gone and not self.injected else None

        answer = self.hub.wait(found)
        return answer if isinstance(answer, dict) else None

    def _relay(
        self, key: Key, requests: Mapping[int, Request], more: Mapping[str, Any], only: Tensor | None = None
    ) -> None:
        """Give every party what the others have sealed for it."""
        sealed = {
            party: dict(zip(r.frame.header.get("sealed", ()), _sealed(r), strict=True)) for party, r in requests.items()
        }
        for receiver in requests:
            senders = [s for s in requests if receiver in sealed[s] and (only is None or only[s])]
            header = {**self._standing("go"), "relayed": senders, **more}
            self.hub.post(receiver, key, header, [sealed[s][receiver] for s in senders])

    def _await_leg(
        self, module: "SplitVFL", key: Key, leg: Leg, asked: Tensor, plan: RoundPlan | None, evaluation: bool
    ) -> Tensor:
        """(M,) bool, the parties whose message of this leg has come before its gate has closed."""
        wanted, began = _numbers(asked), monotonic()
        if plan is not None or evaluation:

            def all_here() -> Tensor | None:
                have = torch.zeros_like(asked)
                for party in wanted:
                    have[party] = self.hub.request(party, key) is not None
                lost = [p for p in wanted if not have[p] and not self.hub.present(p)]
                if lost and plan is not None and not evaluation:
                    raise ConfigurationError(
                        f"party {lost[0]} has gone while faults are injected; a federation that has to survive real "
                        "faults runs without --inject"
                    )
                return have if int(have.sum()) + len(lost) == len(wanted) else None

            there = self.hub.wait(all_here)
            return asked if there is None else there
        needed = module.wire.needed(module.roster.parties)
        nearest: list[float] = [inf]

        def closed() -> Tensor | None:
            arrivals, now = torch.full((len(asked),), nan, dtype=torch.float64), monotonic() - began
            for party in wanted:
                request = self.hub.request(party, key)
                if request is not None:
                    arrivals[party] = request.arrived - began
                elif self.hub.present(party):
                    arrivals[party] = inf
            if arrivals.isnan().all():
                return torch.zeros_like(asked)
            who, when = close_leg(leg, module.waiting, arrivals, needed, waits=True)
            nearest[0] = when
            return who if when <= now else None

        ended = self.hub.wait(closed, lambda: None)
        while ended is None:
            ended = self.hub.wait(closed, lambda: began + nearest[0] if isfinite(nearest[0]) else None)
        return ended

    def _message(self, module: "SplitVFL", party: int, key: Key, leg: Leg) -> tuple[Message, Tensor | None]:
        """A party's message of a leg, and the labels that came with it."""
        request = self.hub.request(party, key)
        if request is None:
            raise MalformedMessage(f"the message of party {party} in round {key.at.round} is gone")
        header, tensors = request.frame.header, iter(request.frame.tensors)
        message = read(dict(header["message"]), tensors, module.seed)
        if message.senders != (party,):
            raise MalformedMessage(
                f"party {party} sent a message of parties {list(message.senders)}; each sends its own"
            )
        labels = next(tensors) if header.get("labels") else None  # before what is sealed, which nobody reads here
        return message, labels

    def _tell_heard(self, key: Key, included: Tensor, answering: tuple[int, ...], leg: Leg) -> None:
        """After a leg that is not the last: who is in, who answers, and what the others have sent."""
        heard = {"included": _numbers(included), "answering": list(answering)}
        requests = {p: r for p in _numbers(included) if (r := self.hub.request(p, key)) is not None}
        relayed = {p: r for p, r in requests.items() if r.frame.header["message"]["relayed"]}
        if not relayed:
            self._relay(key, requests, {"heard": heard})
            return
        parts = [read(dict(r.frame.header["message"]), iter(r.frame.tensors), 0) for r in relayed.values()]
        letter, tensors, bits = written(merged(parts))
        for party in requests:
            self.hub.post(party, key, {**self._standing("go"), "heard": heard, "message": letter}, tensors, bits)

    # ---- decoding, and the way back

    def _view(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames, roll: Roll) -> ServerView:
        prepared, stage = module.preparation, stage_of(names.stage)
        return ServerView(
            names,
            module.roster,
            joint_rows(batch),
            roll,
            module.embedding_widths,
            None,
            prepared.count(stage),
            prepared.agreed,
        )

    def _decode(self, module: "SplitVFL", view: ServerView, uploads: Uploads, policy: MissingPolicy) -> Aggregate:
        with torch.no_grad():
            end = server_end(module.sides.server, policy, view, ())
            next(end)
            for message in uploads.messages:
                end.send(message)
            return finish(end)

    def _aggregate(
        self,
        module: "SplitVFL",
        batch: VerticalBatch,
        names: RoundNames,
        at: At,
        uploads: Uploads,
        policy: MissingPolicy,
        plan: RoundPlan,
    ) -> tuple[Tensor, Tensor]:
        view = self._view(module, batch, names, uploads.roll)
        aggregate = self._decode(module, view, uploads, policy)
        module.books.enter_corrected(aggregate.corrected)

        def send_back(grad: Tensor) -> None:
            answer = module.sides.server.answer(grad, aggregate, view)
            pieces = dict(zip(answer.receivers or (), answer.pieces, strict=True))
            self._end_round(
                at, uploads, plan, {p: replace(answer, receivers=(p,), pieces=(x,)) for p, x in pieces.items()}
            )

        anchor = torch.zeros((), requires_grad=True)
        value: Tensor = _Arrived.apply(anchor, aggregate.value, send_back)  # type: ignore[no-untyped-call]  # torch's
        return value, aggregate.columns

    def _end_round(self, at: At, uploads: Uploads, plan: RoundPlan, answers: Mapping[int, Message]) -> None:
        """Answer everybody who waits for the end of the round, and call the next one."""
        told = _told(plan)
        self._call_next(at, uploads.roll.included)
        for party in range(self.hub.parties):
            if party in answers:
                letter, tensors, bits = written(answers[party])
                header = {**self._standing("go"), "plan": told, "message": letter, "final": True}
                for turn in range(
                    uploads.first, uploads.turn + 1
                ):  # a party may be late with a leg that others answered
                    self.hub.post(party, Key(at, turn), header, tensors, bits)
        self._answer_others(at, set(answers), told)

    def _give_up(self, at: At, uploads: Uploads, plan: RoundPlan) -> None:
        self._call_next(at, uploads.roll.called & torch.tensor([self.hub.present(p) for p in range(self.hub.parties)]))
        self._answer_others(at, set(), _told(plan))

    def _answer_others(self, at: At, answered: set[int], told: Mapping[str, Any]) -> None:
        """Tell parties that were late, or that wait to come in, where the server stands."""
        for party in range(self.hub.parties):
            waiting = self.hub.waiting(party)
            if party in answered or waiting is None:
                continue
            if waiting.key.at == at:
                self.hub.post(party, waiting.key, {**self._standing("closed"), "plan": told})
            elif waiting.key.at > at and waiting.say == "ready" and not self.injected:
                self.hub.post(party, waiting.key, self._standing("go"))
        self.hub.close(At(at.round, at.stage, at.batch + 1), lambda request: self._closed(request))

    def _call_next(self, at: At, learnt: Tensor) -> None:
        """Decide who is called in the next round: who is in step, and who waits to come in."""
        if self.injected:
            return
        following = torch.zeros_like(self.called)
        for party in range(self.hub.parties):
            waiting = self.hub.waiting(party)
            comes = waiting is not None and waiting.key.at >= at
            following[party] = self.hub.present(party) and (bool(learnt[party]) or comes)
        fresh = following & ~self.called
        self.called = following
        for party in _numbers(fresh):
            self._admit(party)

    def _closed(self, request: Request) -> bytes:
        more = {"metrics": self._metrics} if request.say == "metrics" else {}
        return pack({**self._standing("closed"), **more})

    def _standing(self, outcome: str) -> dict[str, Any]:
        last = self._last or At(0, 0, -1)
        return {
            "outcome": outcome,
            "standing": {
                "at": list(last),
                "called": _numbers(self.called),
                "counts": self._counts,
                "keyed": self._keyed,
                "joins": self.joins(),
            },
        }

    def _seen_plan(self, module: "SplitVFL", uploads: Uploads) -> RoundPlan:
        """What has happened, in the form of a plan."""
        roll, legs = uploads.roll, module.costs.of_round(1).legs
        nobody = torch.zeros_like(roll.called)
        first = uploads.sent[0]
        sent = tuple(
            uploads.sent[min(i, len(uploads.sent) - 1)] if uploads.messages else first for i in range(len(legs))
        )
        skipped = not uploads.messages
        learners = nobody if skipped else roll.included
        return RoundPlan(roll, learners, sent, learners, uploads.seconds, skipped)

    # ---- evaluation

    def output(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames, roll: Roll) -> Tensor:
        """Run a round of evaluation."""
        at = at_of(module, names, self.evaluated)
        self.evaluated += 1
        self._begin(module, at)
        plan = None
        if self.injected:
            everybody = roll.called
            plan = RoundPlan(roll, everybody, (everybody,), everybody, 0.0, False)
        if module.protected_evaluation:
            module.enter_evaluation(batch, names, roll)
        uploads = self._collect(module, batch, names, at, plan, Exclude(), evaluation=True)
        if not uploads.messages:
            raise ConfigurationError("an evaluation has lost all parties; start them again")
        if module.protected_evaluation:
            view = self._view(module, batch, names, uploads.roll)
            aggregate = self._decode(module, view, uploads, Exclude())
            output = module.head(aggregate.value, aggregate.columns)
        else:
            message = uploads.messages[0]
            arrived = dict(zip(message.senders, message.pieces, strict=True))
            rows = len(batch.record_ids)
            h = tuple(
                arrived[m] if m in arrived else torch.zeros(rows, width)
                for m, width in enumerate(module.embedding_widths)
            )
            output = module.head(module.aggregator.plain(h, uploads.roll, None))
        done = RoundPlan(uploads.roll, uploads.roll.included, uploads.sent, uploads.roll.included, 0.0, False)
        self._call_next(at, uploads.roll.included)
        for party in _numbers(uploads.roll.included):
            self.hub.post(party, Key(at, uploads.turn), self._standing("go"))
        self._answer_others(at, set(_numbers(uploads.roll.included)), _told(done))
        return output

    def share_metrics(self, module: "SplitVFL", split: str) -> None:
        """Tell the parties the metrics of an evaluation."""
        found = module.trainer.callback_metrics
        metrics = {name: float(value) for name, value in found.items() if name.startswith(f"{split}/")}
        at = at_of(module, RoundNames(module.seed, module.stage, 0), self.evaluated)
        self.evaluated = 0
        self._last, self._metrics = at, metrics
        for party in range(self.hub.parties):
            self.hub.post(party, Key(at, 0), {**self._standing("go"), "metrics": metrics})

    # ---- set-up

    def set_up(
        self, module: "SplitVFL", source: RecordSource, names: RoundNames, agreed: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Any]:
        """Settle the proposals, and relay what the parties share before the first round."""
        setup = needed(module.aggregator.setup)
        everybody = torch.ones(self.hub.parties, dtype=torch.bool)
        at, turn = at_of(module, names, -1), 0
        if not agreed:
            requests = self._requests(Key(at, turn), everybody) or {}
            agreed = dict(setup.settle([dict(requests[m].frame.header["proposal"]) for m in sorted(requests)]))
            for party in requests:
                self.hub.post(party, Key(at, turn), {**self._standing("go"), "agreed": agreed})
            turn += 1
        while True:
            requests = self._requests(Key(at, turn), everybody) or {}
            over = not any(request.frame.header.get("sealed") for request in requests.values())
            self._relay(Key(at, turn), requests, {"over": over})
            turn += 1
            if over:
                return agreed, None


class _Arrived(torch.autograd.Function):
    """The aggregate in the server's graph; its backward pass sends the gradients to the parties."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, send_back: Callable[[Tensor], None]) -> Tensor:
        ctx.send_back = send_back
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.send_back(grads[0])
        return torch.zeros(()), None, None


def _numbers(parties: Tensor) -> tuple[int, ...]:
    return tuple(parties.nonzero().flatten().tolist())


def _sealed(request: Request) -> tuple[Tensor, ...]:
    count = len(request.frame.header.get("sealed", ()))
    return request.frame.tensors[len(request.frame.tensors) - count :] if count else ()


def _told(plan: RoundPlan) -> dict[str, Any]:
    """A plan for a header."""
    roll = plan.roll
    return {
        "called": _numbers(roll.called),
        "included": _numbers(roll.included),
        "responders": _numbers(roll.responders),
        "filled": _numbers(roll.filled),
        "sent": [_numbers(leg) for leg in plan.sent],
        "seconds": plan.seconds,
        "skipped": plan.skipped,
    }
