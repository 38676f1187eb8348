"""One party's part of synchronous rounds."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from lightning_vfl.aggregators.parts import Heard
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.answers import answered, differentiated
from lightning_vfl.federation.at_party import AtParty, Evaluation
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.letters import enclosed, merged, message_of
from lightning_vfl.federation.link import RoundClosed, fields_of
from lightning_vfl.federation.sum_guard import SumGuard
from lightning_vfl.federation.turns import CUT, at_of, numbers, turns_of
from lightning_vfl.networks.halved_top import GRADIENTS
from lightning_vfl.protocols.accounts.charging import charge
from lightning_vfl.protocols.place import needed
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.exchange import ExpandedRecords
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import (
    NO_RECORDS,
    RecordSource,
    Roll,
    RoundNames,
    Rows,
    Tensors,
    VerticalBatch,
    mask_of,
    stage_of,
)
from lightning_vfl.wire import Contribution, Embeddings, LinearForms, Message, PartyView

if TYPE_CHECKING:
    from lightning_vfl.protocols.split import SplitVFL


class Learnt(NamedTuple):
    """What a party has learnt from a round.

    Args:
        grads: of its embeddings or weights; of the networks behind the cut of a top, at the party that has them.
        leaves: to which ``grads`` belong.
        notes: further values to log.
        logged: the loss of the batch, at the party that has it.
    """

    grads: Tensors = ()
    leaves: Tensors = ()
    notes: Mapping[str, Any] = {}
    logged: Tensor | None = None


class Played(NamedTuple):
    """A party's end of a round, to the server's last answer.

    Args:
        contribution: what the party has computed.
        view: what it knew when it uploaded.
        answer: of the server.
    """

    contribution: Contribution
    view: PartyView
    answer: Message


@final
class RoundsAtParty(AtParty):
    """One party's part of the rounds of ``SplitVFL``."""

    @cached_property
    def sum_guard(self) -> SumGuard:
        """The party's memory of the sums of its records."""
        return SumGuard(self.party)

    def step(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Take part in a round, and learn from its answer."""
        found = self.take_part(module, batch, names)
        if found is None:
            return Step(None)
        loss = answered(found.grads, found.leaves)
        learn = module.local_learning(batch.features, {self.party: found.grads[0]})
        return Step(loss, (self.party,), found.notes, logged=found.logged, before_optimizer=learn)

    def take_part(self, module: Any, batch: VerticalBatch, names: RoundNames) -> Learnt | None:
        """Take part in a round; None: nothing is learnt from it."""
        rows = module.rows_of(batch)
        at = at_of(module, names, 0)
        plan: RoundPlan | None = None
        if self.injected:
            plan = module.plan_round(batch, names.round, rows)
            module.enter_plan(plan, batch, names, rows)
            if plan.skipped:
                return None
        planned = None if plan is None else plan.roll
        called = self.called(module, at, None if planned is None else planned.called)
        if called is None:
            self.sum_guard.pass_by(module, names.stage, batch)
            return None
        if plan is None and module.aggregator.accounting is not None:
            # a party charges its upload before it sends it, whatever becomes of the round
            charge(module, Roll.of(called), called, batch)
        behind = Learnt()
        try:
            played = self._play(module, batch, names, Key(at, 0), called, planned)
            if played is not None and self.has_last_half(module):
                gradient, behind = self._learn_behind(module, batch, names, played.answer)
                played = played._replace(answer=self._tell_cut(module, gradient, names, at))
        except RoundClosed:
            played = None
        told = None if self.injected else self.told(module)
        if told is not None:
            fewer = not torch.equal(told.roll.included, called)  # in a smaller sum each is hidden by less noise
            module.enter_plan(told, batch, names, rows, charged=told.skipped or not fewer)
            went_on = not told.skipped and not bool(told.roll.included[self.party])
            if played is None and went_on:  # without this party
                self.sum_guard.pass_by(module, names.stage, batch)
        if played is None:
            return None
        grads = module.sides.party.carry(played.answer, _detached(played.contribution), played.view)
        if plan is not None and not bool(plan.learners[self.party]):
            return None
        self.sum_guard.refuse_zeros(module, grads)
        leaves = played.contribution.leaves
        grads = self.refuse_absurd("gradients", grads, [tuple(leaf.shape) for leaf in leaves], module)
        notes = {f"aggregator/{name}": value for name, value in played.view.notes.items()}
        return Learnt((*grads, *behind.grads), (*leaves, *behind.leaves), notes, behind.logged)

    def _learn_behind(
        self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames, message: Message
    ) -> tuple[Tensor, Learnt]:
        """The gradient (B, cut) of what has crossed the cut of a top, and what the networks behind it learn."""
        crossing = self.crossed(module, message, len(batch.record_ids)).requires_grad_()
        loss = module.rank_loss(module.behind_cut(crossing, batch, names), module.with_targets(batch))
        (back,), grads, parameters = differentiated(loss, (crossing,), module.parameters())
        return back, Learnt(grads, parameters, logged=loss.detach())

    def _tell_cut(self, module: "SplitVFL", gradient: Tensor, names: RoundNames, at: At) -> Message:
        """Send the gradient at the cut; the server's answer to this party's upload."""
        message = self.message(GRADIENTS, "server", gradient, names)
        return self.answer(module, self.ask(Key(at, CUT), "tell", *enclosed(message, {"part": "cut"})))

    def _play(
        self,
        module: "SplitVFL",
        batch: VerticalBatch,
        names: RoundNames,
        key: Key,
        called: Tensor,
        planned: Roll | None,
    ) -> Played | None:
        """Play this party's end of a round; None: it was planned that this party is not in it."""
        view = module.party_view(batch, names, called, (self.party,))
        view = replace(view, present=None, renew=None if self.injected else self._renews(module, names, called))
        memory, key = self._open(module, names, view, key)
        included = True
        receivers = None
        if planned is not None:
            included = bool(planned.included[self.party])
            receivers = numbers(planned.responders)[: module.wire.needed(module.roster.parties)]
        if not included and module.aggregator.wire is None:  # in the clear, only included parties compute
            return None
        view = replace(view, memory=memory, receivers=receivers)
        contribution = self._contribution(module, batch)
        if not included:
            return None
        return Played(contribution, view, self._upload(module, batch, contribution, view, key))

    def _renews(self, module: "SplitVFL", names: RoundNames, called: Tensor) -> bool:
        """Whether a party is called that has no keys of this stage."""
        keyed = self.link.standing.keyed.get(str(stage_of(names.stage)), ())
        return module.aggregator.opening is not None and not {*numbers(called)} <= {*keyed}

    def _contribution(self, module: "SplitVFL", batch: VerticalBatch) -> Contribution:
        """What the party contributes to a round."""
        network: Any = module.bottoms.parties[self.party]
        x = batch.features[self.party]
        if module.aggregator.form is LinearForms:
            return LinearForms((network.weight,), (network.expand(x),))
        embedding = module.bottoms.one(self.party, x)
        if batch.present is not None and module.aggregator.wire is not None:
            embedding = torch.where(batch.present[:, self.party, None], embedding, embedding.new_zeros(()))
        return Embeddings((embedding,))

    def _open(self, module: "SplitVFL", names: RoundNames, view: PartyView, key: Key) -> tuple[Any, Key]:
        """The beginning of a round: this party's memory, and the turn of its upload."""
        opening = module.aggregator.opening
        stage = stage_of(names.stage)
        memories = module.preparation.memory
        if opening is None:
            return memories.get(stage), key
        if stage not in memories:
            memories[stage] = opening.empty_memory(view)
        memory = memories[stage]
        for message in opening.open(memory, view):
            heard, _ = self.tell_peers(module, message, view, key, part="open", renew=bool(view.renew))
            key = key._replace(turn=key.turn + 1)
            memory = opening.accept(memory, _joined(message, heard), view)
        memories[stage] = memory
        return memory, key

    def _upload(
        self, module: "SplitVFL", batch: VerticalBatch, contribution: Contribution, view: PartyView, key: Key
    ) -> Message:
        """Send the legs one after the other; the server's answer to the last."""
        legs = len(turns_of(module, batch))
        labels = self.own_labels(module, batch)
        last = key._replace(turn=key.turn + legs - 1)
        if legs == 1:  # the upload is summed with those of all that are called
            self.sum_guard.enter(module, view.names.stage, numbers(view.called), batch)
        with torch.no_grad():
            uploads = module.sides.party.upload(_detached(contribution), view)
            message = next(uploads)
            for turn in range(key.turn, last.turn):
                heard = self._hear(module, message, view, key._replace(turn=turn), labels)
                if isinstance(heard, Message):  # others have answered before
                    return heard
                self.sum_guard.enter(module, view.names.stage, numbers(heard.included), batch)
                if self.party not in heard.parties:  # others answer for all: what is left is the server's answer
                    return self.answer(module, self.ask(last, "listen", {"part": "upload"}))
                message = uploads.send(heard)
                labels = None
            return self.answer(module, self.tell_server(module, message, view.rows.total, last, labels))

    def _hear(
        self, module: "SplitVFL", message: Message, view: PartyView, key: Key, labels: Tensor | None
    ) -> Heard | Message:
        """Send a leg that is not the last; what the party hears after it, or the last answer of the round."""
        received: Message | None = None
        if message.to == "peers":
            told, frame = self.tell_peers(module, message, view, key, labels)
            received = _joined(message, told)
        else:
            frame = self.tell_server(module, message, view.rows.total, key, labels)
            if "message" in frame.header:
                received = message_of(frame, module.seed, self.link.agreed)
        if frame.header.get("final"):
            return self.answer(module, frame)
        (heard,) = fields_of(frame, "heard")
        included = mask_of(heard["included"], module.roster.parties)
        hosted = (self.party,) if self.party in heard["answering"] else ()
        return Heard(included, hosted, received)

    # ---- evaluation

    def miss(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames) -> None:
        if module.protected_evaluation:
            self.sum_guard.pass_by(module, names.stage, batch)

    def evaluate(self, module: "SplitVFL", batch: VerticalBatch, turn: Evaluation) -> Message | None:
        if not module.protected_evaluation:
            return super().evaluate(module, batch, turn)
        module.enter_evaluation(batch, turn.names, turn.roll)
        charge(module, Roll.of(turn.called), turn.called, batch)  # before the upload, as in training
        planned = turn.roll if self.injected else None
        played = self._play(module, batch, turn.names, Key(turn.at, 0), turn.called, planned)
        return None if played is None else played.answer

    # ---- set-up

    def set_up(
        self, module: "SplitVFL", source: RecordSource, names: RoundNames, agreed: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Any]:
        """Propose settings, share this party's records with the others, and take their shares.

        Raises:
            ConfigurationError: if the set-up is over without this party.
        """
        try:
            return self._set_up(module, source, names, agreed)
        except RoundClosed:
            raise ConfigurationError("the set-up before the first round is over; start all processes again") from None

    def _set_up(
        self, module: "SplitVFL", source: RecordSource, names: RoundNames, agreed: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Any]:
        setup = needed(module.aggregator.setup)
        roster = module.roster
        key = Key(at_of(module, names, -1), 0)
        records = ExpandedRecords(source, module.bottoms, module.device)
        network: Any = module.bottoms.parties[self.party]
        if not agreed:
            proposal = dict(setup.propose(records, self.party, network.weight.detach(), roster))
            (settled,) = fields_of(self.ask(key, "propose", {"proposal": proposal}), "agreed")
            agreed = dict(settled)
            key = key._replace(turn=1)
        rows = Rows(NO_RECORDS, 0, 0)
        view = PartyView(names, roster, (self.party,), roster.everybody, rows, agreed=agreed)
        memory = setup.empty_memory(len(source), module.costs.basis_widths, view)
        offers = setup.offer(records, memory, view)
        while True:
            mine = next(offers, None) or Message("nothing", "peers", (), (), round=names)
            heard, frame = self.tell_peers(module, mine, view, key, part="setup")
            for one in heard:
                memory = setup.accept(memory, one, view)
            (over,) = fields_of(frame, "over")
            if over:
                return agreed, memory
            key = key._replace(turn=key.turn + 1)


def _joined(message: Message, heard: list[Message]) -> Message:
    """One message of all senders; of none, if nobody has sent anything for this party."""
    return merged(heard) if heard else replace(message, senders=(), pieces=(), alongside=None)


def _detached(contribution: Contribution) -> Contribution:
    leaves = tuple(leaf.detach() for leaf in contribution.leaves)
    if isinstance(contribution, LinearForms):
        return replace(contribution, leaves=leaves, basis=tuple(x.detach() for x in contribution.basis))
    return replace(contribution, leaves=leaves)
