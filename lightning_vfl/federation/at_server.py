"""The server's process: it runs the server's end of every round against the parties' requests."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.federation.attendance import Attendance, Planned, Seen
from lightning_vfl.federation.calls import Calls, numbers
from lightning_vfl.federation.collecting import Collector, Uploads
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.federation.letters import written
from lightning_vfl.federation.told_plans import told_plan
from lightning_vfl.federation.turns import at_of
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.protocols.place import Place, needed
from lightning_vfl.protocols.preparation import stage_of
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.ends import finish, server_end
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import RecordSource, Roll, RoundNames, Seat, Stage, VerticalBatch, joint_rows
from lightning_vfl.wire import Aggregate, Message, ServerView

if TYPE_CHECKING:
    from lightning_vfl.federation.record import Record
    from lightning_vfl.protocols.split import SplitVFL


class AtServer(Place):
    """The server's part of rounds.

    Guarantee: with ``injected``, weights, books and virtual seconds are those of the simulation. Without, what happens
        is met by the waiting rule and the policy of the recipe, and the record is enough to repeat it.

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
        self.record = record
        self.calls = Calls(hub, injected, reconnect)
        self.collector = Collector(self.calls)

    # ---- training

    def step(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Run a round; the parties get their gradients in the backward pass."""
        rows, at = (joint_rows(batch).total, module.coded_rows(batch)), at_of(module, names, 0)
        plan = module.plan_round(batch, names.round, rows) if self.injected else None
        if plan is not None:
            module.enter_plan(plan, batch, names, rows)
            if plan.skipped:
                return Step(None)
        self.calls.begin(module, at)
        attendance = self._attendance(module, None if plan is None else plan.roll, module.missing)
        uploads = self.collector.collect(module, batch, at, attendance)
        aggregate = self._decoded(module, batch, names, uploads, module.missing)
        if plan is None:
            plan = _seen(uploads, aggregate is None, len(module.costs.of_round(*rows).legs))
            module.enter_plan(plan, batch, names, rows)
            if self.record is not None:
                self.record.add(names.round, plan)
        if aggregate is None:
            self._end(at, uploads, plan, {})
            return Step(None)
        if uploads.labels is not None:
            batch = batch._replace(labels=uploads.labels)
        module.books.enter_corrected(aggregate.corrected)
        value = self._answered_later(
            module, aggregate, self._view(module, batch, names, uploads.roll), at, uploads, plan
        )
        return Step(module.rank_loss(module.head(value, aggregate.columns), batch), ())

    def _attendance(
        self, module: "SplitVFL", planned: Roll | None, policy: MissingPolicy, evaluation: bool = False
    ) -> Attendance:
        if planned is not None:
            return Planned(self.hub, planned, module.wire.needed(module.roster.parties))
        return Seen(module, self.hub, self.calls.called.clone(), policy, evaluation)

    def _decoded(
        self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames, uploads: Uploads, policy: MissingPolicy
    ) -> Aggregate | None:
        """The aggregate; None if the round is given up, also for a message that cannot be decoded."""
        if not uploads.messages:
            return None
        view = self._view(module, batch, names, uploads.roll)
        try:
            with torch.no_grad():
                end = server_end(module.sides.server, policy, view, ())
                next(end)
                for message in uploads.messages:
                    end.send(message)
                return finish(end)
        except MalformedMessage as error:
            if self.injected:
                raise
            rank_zero_warn(f"round {names.round} is given up: {error}")
            return None

    def _view(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames, roll: Roll) -> ServerView:
        prepared, rows = module.preparation, joint_rows(batch)
        records = prepared.count(stage_of(names.stage))
        return ServerView(names, module.roster, rows, roll, module.embedding_widths, None, records, prepared.agreed)

    def _answered_later(
        self, module: "SplitVFL", aggregate: Aggregate, view: ServerView, at: At, uploads: Uploads, plan: RoundPlan
    ) -> Tensor:
        """The aggregate's value in the server's graph; the backward pass sends the answers."""

        def send_back(grad: Tensor) -> None:
            answer = module.sides.server.answer(grad, aggregate, view)
            pieces = zip(answer.receivers or (), answer.pieces, strict=True)
            self._end(at, uploads, plan, {m: replace(answer, receivers=(m,), pieces=(piece,)) for m, piece in pieces})

        anchor = torch.zeros((), requires_grad=True)
        value: Tensor = _Arrived.apply(anchor, aggregate.value, send_back)  # type: ignore[no-untyped-call]  # torch's
        return value

    def _end(self, at: At, uploads: Uploads, plan: RoundPlan, answers: Mapping[int, Message]) -> None:
        """Answer everybody who waits for the end of the round, and call the next one."""
        told = told_plan(plan)
        in_step = uploads.roll.included if answers else uploads.roll.called
        self.calls.call_next(at, in_step)
        for party, message in answers.items():
            letter, tensors, bits = written(message)
            header = {**self.calls.standing("go"), "plan": told, "message": letter, "final": True}
            for turn in range(uploads.first, uploads.turn + 1):  # a party may be late with a leg that others answered
                self.hub.post(party, Key(at, turn), header, tensors, bits)
        self.calls.end(at, set(answers), told)

    # ---- evaluation

    def output(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames, roll: Roll) -> Tensor:
        """Run a round of evaluation; a batch that is lost with a party is evaluated again.

        Raises:
            ConfigurationError: if parties that are needed do not come back, and for messages that cannot be decoded.
        """
        if self.evaluated == 0:
            self.calls.retries = 0
        while True:
            at = at_of(module, names, self.evaluated + self.calls.retries)
            if module.protected_evaluation:
                module.enter_evaluation(batch, names, roll)
            self.calls.begin(module, at)
            attendance = self._attendance(module, roll if self.injected else None, Exclude(), evaluation=True)
            uploads = self.collector.collect(module, batch, at, attendance, clear=not module.protected_evaluation)
            if uploads.messages or self.injected:
                break
            self.calls.retries += 1  # a party was lost on the way: those that are there evaluate the batch again
            self.calls.call_next(at, uploads.roll.called)
            self.calls.end(at, set(), told_plan(_seen(uploads, True, 1)))
            names = module.next_round()
        self.evaluated += 1
        output, self.labels = self._output(module, batch, names, uploads), uploads.labels
        included = uploads.roll.included
        self.calls.call_next(at, included)
        predicts = self.tells_predictions and names.stage == Stage.PREDICT
        told = [module.objective.predict(output).float()] if predicts else []
        for party in numbers(included):
            for turn in range(uploads.first, uploads.turn + 1):
                self.hub.post(party, Key(at, turn), {**self.calls.standing("go"), "final": True}, told)
        done = RoundPlan(uploads.roll, included, uploads.sent, included, uploads.seconds, False)
        self.calls.end(at, set(numbers(included)), told_plan(done))
        return output

    def _output(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames, uploads: Uploads) -> Tensor:
        if module.protected_evaluation:
            aggregate = self._decoded(module, batch, names, uploads, Exclude())
            if aggregate is None:
                raise ConfigurationError(f"the {names.stage} cannot be decoded; the line above says why")
            return module.head(aggregate.value, aggregate.columns)
        (message,) = uploads.messages
        arrived = dict(zip(message.senders, message.pieces, strict=True))
        empty = message.pieces[0].new_zeros
        shapes = [(len(batch.record_ids), width) for width in module.embedding_widths]
        h = tuple(arrived[m] if m in arrived else empty(shape) for m, shape in enumerate(shapes))
        return module.head(module.aggregator.plain(h, uploads.roll, None))

    def share_metrics(self, module: "SplitVFL", split: str) -> None:
        """Tell the parties the metrics of an evaluation."""
        found = module.trainer.callback_metrics
        metrics = {name: float(value) for name, value in found.items() if name.startswith(f"{split}/")}
        at = at_of(module, RoundNames(module.seed, module.stage, 0), self.evaluated + self.calls.retries)
        self.evaluated = 0
        self.calls.tell_metrics(at, metrics)

    # ---- set-up

    def set_up(
        self, module: "SplitVFL", source: RecordSource, names: RoundNames, agreed: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Any]:
        """Settle the proposals, and relay what the parties share before the first round."""
        setup = needed(module.aggregator.setup)
        everybody = torch.ones(self.hub.parties, dtype=torch.bool)
        at, turn = at_of(module, names, -1), 0
        if not agreed:
            requests = self.collector.requests(Key(at, turn), everybody) or {}
            agreed = dict(setup.settle([_proposal(requests[m]) for m in sorted(requests)]))
            for party in requests:
                self.hub.post(party, Key(at, turn), {**self.calls.standing("go"), "agreed": agreed})
            turn += 1
        while True:
            requests = self.collector.requests(Key(at, turn), everybody) or {}
            over = not any(request.frame.header.get("sealed") for request in requests.values())
            self.collector.relay(Key(at, turn), requests, {"over": over})
            turn += 1
            if over:
                return agreed, None


def _proposal(request: Request) -> dict[str, int]:
    """The public settings that a party proposes.

    Raises:
        ConfigurationError: naming the party, for a request without them.
    """
    proposal = request.frame.header.get("proposal")
    if not isinstance(proposal, dict) or not all(type(value) is int for value in proposal.values()):
        raise ConfigurationError(f"party {request.party} has proposed no settings; all must run the same recipe")
    return proposal


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


def _seen(uploads: Uploads, skipped: bool, legs: int) -> RoundPlan:
    """What has happened, in the form of a plan."""
    roll, nobody = uploads.roll, torch.zeros_like(uploads.roll.called)
    sent = tuple(uploads.sent[min(number, len(uploads.sent) - 1)] for number in range(legs))
    learners = nobody if skipped else roll.included
    return RoundPlan(roll, learners, sent, learners, uploads.seconds, skipped)
