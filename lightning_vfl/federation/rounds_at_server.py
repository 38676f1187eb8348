"""The server's part of synchronous rounds."""

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, final

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.answers import answered, arrived
from lightning_vfl.federation.at_server import AtServer, summed, to_label_holder
from lightning_vfl.federation.attendance import Attendance
from lightning_vfl.federation.collecting import Uploads
from lightning_vfl.federation.frames import pack_alike
from lightning_vfl.federation.hub import At, Key, Request
from lightning_vfl.federation.letters import enclosed
from lightning_vfl.federation.turns import CUT, at_of, numbers, turns_of
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.protocols.place import needed
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import RecordSource, RoundNames, VerticalBatch
from lightning_vfl.wire import Message

if TYPE_CHECKING:
    from lightning_vfl.protocols.split import SplitVFL


@final
class RoundsAtServer(AtServer):
    """The server's part of the rounds of ``SplitVFL``."""

    def policy(self, module: "SplitVFL") -> MissingPolicy:
        return module.missing

    def step(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Run a round; the parties get their gradients in the backward pass."""
        rows = module.rows_of(batch)
        at = at_of(module, names, 0)
        plan = module.plan_round(batch, names.round, rows) if self.injected else None
        if plan is not None:
            module.enter_plan(plan, batch, names, rows)
            if plan.skipped:
                return Step(None)
        attendance = self.begin(module, batch, names, at, None if plan is None else plan.roll)
        uploads = self.collector.collect(attendance, turns_of(module, batch), opens=True)
        if uploads.labels is not None:
            batch = batch._replace(labels=uploads.labels)
        at_server = module.rows_at_server(batch, names, uploads.roll) if uploads.messages else batch
        copies = len(at_server.record_ids) // len(batch.record_ids)
        aggregate = self.decoded(module, at_server, names, uploads, module.missing, copies)
        ended: RoundPlan

        def send_back(grad: Tensor) -> None:
            if aggregate is not None:
                view = self.view(module, at_server, names, uploads.roll)
                answer = module.sides.server.answer(grad, aggregate, view)
                self._answer(at, uploads, ended, answer if copies == 1 else summed(answer, copies))

        behind: Tensor | None = None  # a loss of zero, whose gradient at the cut is that of the label holder
        if aggregate is not None and module.halved:
            crossing = module.head(arrived(aggregate.value, send_back), module.columns_from(uploads.roll))
            uploads, behind = self._cross(module, crossing, names, uploads, attendance)
            aggregate = aggregate if behind is not None else None
        if plan is None:
            plan = uploads.plan(aggregate is None, len(module.costs.of_round(*rows).legs))
            module.enter_plan(plan, batch, names, rows)
            self.note(names, plan)
        if aggregate is None:
            with self.calls.ending(at, plan, (), in_step=numbers(uploads.roll.called)):
                return Step(None)
        module.books.enter_corrected(aggregate.corrected)
        ended = plan
        if behind is not None:
            return Step(behind, ())
        value = arrived(aggregate.value, send_back)
        output = module.head(module.guard(value, batch, names), module.columns_from(uploads.roll))
        return Step(module.rank_loss(output, module.with_targets(at_server)), ())

    def _cross(
        self,
        module: "SplitVFL",
        crossing: Tensor,
        names: RoundNames,
        uploads: Uploads,
        attendance: Attendance,
    ) -> tuple[Uploads, Tensor | None]:
        """Send what crosses the cut of a top to the label holder, and wait for its gradient.

        Returns:
            The uploads, with the seconds of the wait; a loss of zero with that gradient, None: it has not come.
        """
        holder = module.roster.active
        if holder is None:
            raise RuntimeError("a top in halves has a label holder")
        header = {**self.calls.standing("go"), "final": True}
        self.answer(holder, attendance.at, uploads, *enclosed(to_label_holder(module, crossing, names), header))
        began = monotonic()
        gradient = self.collector.gradient_of_cut(attendance, module.costs.cut(len(crossing))[-1], holder)
        uploads = replace(uploads, seconds=uploads.seconds + monotonic() - began)
        if gradient is None:
            rank_zero_warn(f"round {names.round} is given up: the label holder has not answered at the cut")
            return uploads, None
        return uploads, answered((gradient,), (crossing,))

    def _answer(self, at: At, uploads: Uploads, plan: RoundPlan, answer: Message) -> None:
        """Send the parties the gradients of their uploads, in the backward pass."""
        receivers = answer.receivers or ()
        parts = zip(receivers, answer.pieces, strict=True)
        own = [replace(answer, receivers=(party,), pieces=(piece,)) for party, piece in parts]
        # a party may be late with a leg that others answered; the label holder asks after the cut
        turns = (*range(uploads.first, uploads.turn + 1), CUT)
        with self.calls.ending(at, plan, receivers) as header:
            frames = pack_alike({**header, "final": True}, [enclosed(message, {}) for message in own])
            answers = zip(receivers, frames, strict=True)
            self.hub.put([(party, Key(at, turn), frame) for party, frame in answers for turn in turns])

    # ---- set-up

    def set_up(
        self, module: "SplitVFL", source: RecordSource, names: RoundNames, agreed: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Any]:
        """Settle the proposals, and relay what the parties share before the first round."""
        setup = needed(module.aggregator.setup)
        everybody = module.roster.everybody
        at = at_of(module, names, -1)
        turn = 0
        if not agreed:
            requests = self.collector.requests(Key(at, turn), everybody) or {}
            agreed = dict(setup.settle([self._proposal(requests[m]) for m in sorted(requests)]))
            self.hub.post_to_all(requests, Key(at, turn), {**self.calls.standing("go"), "agreed": agreed})
            turn += 1
        while True:
            requests = self.collector.requests(Key(at, turn), everybody) or {}
            over = not any(request.frame.header.get("sealed") for request in requests.values())
            self.collector.relay(Key(at, turn), requests, {"over": over})
            turn += 1
            if over:
                return agreed, None

    def _proposal(self, request: Request) -> dict[str, int]:
        """The public settings that a party proposes.

        Raises:
            ConfigurationError: naming the party, for a request without them.
        """
        proposal = request.frame.header.get("proposal")
        if not isinstance(proposal, dict) or not all(type(value) is int for value in proposal.values()):
            raise ConfigurationError(
                f"{self.hub.agreed.party(request.party)} has proposed no settings; all must run the same recipe"
            )
        return proposal
