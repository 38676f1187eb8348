"""One party's part of synchronous rounds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.aggregators.parts import Heard
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.answers import answered, differentiated
from lightning_vfl.federation.at_party import AtParty, Evaluation
from lightning_vfl.federation.calls import numbers
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.letters import Seals, merged, read, written
from lightning_vfl.federation.link import Link, fields_of
from lightning_vfl.federation.sum_guard import SumGuard
from lightning_vfl.federation.told_plans import called_plan, plan_of
from lightning_vfl.federation.turns import CUT, at_of, turns_of
from lightning_vfl.networks.halved_top import GRADIENTS
from lightning_vfl.protocols.accounts.charging import charge_evaluation, charge_round
from lightning_vfl.protocols.place import needed
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.exchange import ExpandedRecords
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import (
    RecordSource,
    Roll,
    RoundNames,
    Rows,
    Stage,
    VerticalBatch,
    joint_rows,
    mask_of,
    stage_of,
)
from lightning_vfl.wire import Contribution, Embeddings, LinearForms, Message, PartyView

if TYPE_CHECKING:
    from lightning_vfl.protocols.split import SplitVFL


class Answered(NamedTuple):
    """What a party has learnt from a round.

    Args:
        grads: of its embeddings or weights; of the networks behind the cut of a top, at the party that has them.
        leaves: to which ``grads`` belong.
        notes: further values to log.
        logged: the loss of the batch, at the party that has it.
    """

    grads: tuple[Tensor, ...]
    leaves: tuple[Tensor, ...]
    notes: Mapping[str, Any]
    logged: Tensor | None


class Behind(NamedTuple):
    """What the label holder has computed behind the cut of a top.

    Args:
        loss: of the batch.
        crossing: (B, cut), the gradient of what has crossed the cut.
        grads: of the networks behind the cut.
        parameters: to which ``grads`` belong.
    """

    loss: Tensor
    crossing: Tensor
    grads: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...]


@final
class RoundsAtParty(AtParty):
    """One party's part of the rounds of ``SplitVFL``.

    Args:
        link: the line to the server.
        party: the number of the party.
        seals: channels to the other parties.
        injected: faults are played from the recipe; else the server says who is called.
    """

    def __init__(self, link: Link, party: int, seals: Seals, injected: bool) -> None:
        super().__init__(link, party, seals, injected)
        self.sum_guard = SumGuard(party)

    def step(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Take part in a round, and learn from its answer."""
        found = self.take_part(module, batch, names)
        if found is None:
            return Step(None)
        loss = answered(found.grads, found.leaves)
        learn = module.local_learning(batch.features, {self.party: found.grads[0]})
        return Step(loss, (self.party,), found.notes, logged=found.logged, before_optimizer=learn)

    def take_part(self, module: Any, batch: VerticalBatch, names: RoundNames) -> Answered | None:
        """Take part in a round; None: nothing is learnt from it."""
        rows, at = (joint_rows(batch).total, module.coded_rows(batch)), at_of(module, names, 0)
        plan: RoundPlan | None = None
        if self.injected:
            plan = module.plan_round(batch, names.round, rows)
            module.enter_plan(plan, batch, names, rows)
            if plan.skipped:
                return None
        elif not self.is_called(module, Key(at, 0)):
            self.sum_guard.pass_by(module, names.stage, batch)
            return None
        called = mask_of(self.link.standing.called, module.roster.parties) if plan is None else plan.roll.called
        if plan is None and module.aggregator.accounting is not None:
            # a party charges its upload before it sends it, whatever becomes of the round
            charge_round(module, called_plan(called), batch)
        found = self._round(module, batch, names, Key(at, 0), called, plan)
        behind: Behind | None = None
        if found is not None and self.has_last_half(module):
            behind = self._learn_behind(module, batch, names, found[1])
            answer_after_cut = self._tell_cut(module, behind.crossing, names, at)
            found = None if answer_after_cut is None else (found[0], answer_after_cut, found[2])
        if plan is None and self.link.told is not None:
            told = plan_of(self.link.told, module.roster.parties)
            fewer = not torch.equal(told.roll.included, called)  # in a smaller sum each is hidden by less noise
            module.enter_plan(told, batch, names, rows, charged=told.skipped or not fewer)
            if found is None and not told.skipped and not bool(told.roll.included[self.party]):
                self.sum_guard.pass_by(module, names.stage, batch)  # others went on without this party
        if found is None:
            return None
        contribution, answer, view = found
        grads = module.sides.party.carry(answer, _detached(contribution), view)
        if plan is not None and not bool(plan.learners[self.party]):
            return None
        self.sum_guard.refuse_zeros(module, grads)
        shapes = [tuple(leaf.shape) for leaf in contribution.leaves]
        grads = self.refuse_absurd("gradients", grads, shapes, module)
        leaves = contribution.leaves
        logged: Tensor | None = None
        if behind is not None:
            grads, leaves, logged = (*grads, *behind.grads), (*leaves, *behind.parameters), behind.loss
        return Answered(grads, leaves, {f"aggregator/{name}": value for name, value in view.notes.items()}, logged)

    def _learn_behind(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames, message: Message) -> "Behind":
        """The loss of the last half of a top, and its gradients, from what has crossed the cut."""
        crossing = self.crossed(module, message, len(batch.record_ids)).requires_grad_()
        loss = module.rank_loss(module.behind_cut(crossing, batch, names), module.with_targets(batch))
        (back,), grads, parameters = differentiated(loss, (crossing,), module.parameters())
        return Behind(loss.detach(), back, grads, parameters)

    def _tell_cut(self, module: "SplitVFL", gradient: Tensor, names: RoundNames, at: At) -> Message | None:
        """Send the gradient at the cut; the server's answer to this party's upload, None: the round is closed."""
        message = Message(GRADIENTS, "server", (self.party,), (gradient,), round=names)
        letter, tensors, bits = written(message)
        return self.answer(
            module, self.link.ask(Key(at, CUT), "tell", {"part": "cut", "message": letter}, tensors, bits)
        )

    def _renews(self, stage: Stage, called: Tensor) -> bool:
        """Whether a party is called that has no keys of this stage."""
        return not {*numbers(called)} <= {*self.link.standing.keyed.get(str(stage_of(stage)), ())}

    def _round(
        self,
        module: "SplitVFL",
        batch: VerticalBatch,
        names: RoundNames,
        key: Key,
        called: Tensor,
        plan: RoundPlan | None,
        evaluation: bool = False,
    ) -> tuple[Contribution, Message, PartyView] | None:
        """Play this party's end; the server's answer at last, None if the round went on without this party."""
        view = module.party_view(batch, names, called, (self.party,))
        renews = module.aggregator.opening is not None and self._renews(names.stage, called)
        view = replace(view, present=None, renew=None if self.injected else renews)
        clear = evaluation and not module.protected_evaluation
        self.refuse_few(called)
        opened = (None, key) if clear else self._open(module, names, view, key)
        if opened is None:
            return None
        memory, key = opened
        receivers = None if plan is None else numbers(plan.roll.responders)[: module.wire.needed(module.roster.parties)]
        view = replace(view, memory=memory, receivers=receivers)
        contribution = self._contribution(module, batch, plan, clear)
        if contribution is None or (plan is not None and not bool(plan.roll.included[self.party])):
            return None
        answer = self._upload(module, batch, contribution, view, key, clear)
        return None if answer is None else (contribution, answer, view)

    def _contribution(
        self, module: "SplitVFL", batch: VerticalBatch, plan: RoundPlan | None, clear: bool
    ) -> Contribution | None:
        """What the party contributes; in the clear, only included parties compute, as in a simulation."""
        if module.aggregator.wire is None and plan is not None and not bool(plan.roll.included[self.party]):
            return None
        network: Any = module.bottoms.parties[self.party]
        x = batch.features[self.party]
        if module.aggregator.form is LinearForms and not clear:
            return LinearForms((network.weight,), (network.expand(x),))
        embedding = module.bottoms.some(batch.features, (self.party,))[self.party]
        if batch.present is not None and module.aggregator.wire is not None and not clear:
            embedding = torch.where(batch.present[:, self.party, None], embedding, embedding.new_zeros(()))
        return Embeddings((embedding,))

    def _open(self, module: "SplitVFL", names: RoundNames, view: PartyView, key: Key) -> tuple[Any, Key] | None:
        """The beginning of a round: this party's memory, and the turn of its upload; None: the round is closed."""
        opening, stage = module.aggregator.opening, stage_of(names.stage)
        prepared = module.preparation
        if opening is None:
            return prepared.memory.get(stage), key
        if stage not in prepared.memory:
            prepared.memory[stage] = opening.empty_memory(view)
        memory = prepared.memory[stage]
        for message in opening.open(memory, view):
            heard = self.tell_peers(module, message, view, key, {"part": "open", "renew": bool(view.renew)})
            if heard is None:
                return None
            key = Key(key.at, key.turn + 1)
            memory = opening.accept(memory, self._joined(message, heard[0]), view)
        prepared.memory[stage] = memory
        return memory, key

    @staticmethod
    def _joined(message: Message, heard: list[Message]) -> Message:
        """One message of all senders; of none, if nobody has sent anything for this party."""
        return merged(heard) if heard else replace(message, senders=(), pieces=(), alongside=None)

    def _upload(
        self,
        module: "SplitVFL",
        batch: VerticalBatch,
        contribution: Contribution,
        view: PartyView,
        key: Key,
        clear: bool,
    ) -> Message | None:
        """Send the legs one after the other; the server's answer to the last."""
        legs, labels = turns_of(module, batch), self.own_labels(module, batch)
        if len(legs) == 1 and not clear:  # the upload is summed with those of all that are called
            self.sum_guard.enter(module, view.names.stage, numbers(view.called), batch)
        with torch.no_grad():
            if clear:
                message = Message(EMBEDDINGS, "server", view.parties, contribution.leaves, round=view.names)
                return self.answer(module, self.tell_server(module, message, view.rows.total, key, labels))
            uploads = module.sides.party.upload(_detached(contribution), view)
            message = next(uploads)
            for turn in range(key.turn, key.turn + len(legs) - 1):
                heard = self._hear(module, message, view, Key(key.at, turn), labels)
                if heard is None or isinstance(heard, Message):  # closed, or over: others have answered before
                    return heard
                self.sum_guard.enter(module, view.names.stage, numbers(heard.included), batch)
                if self.party not in heard.parties:  # others answer for all: what is left is the server's answer
                    last = Key(key.at, key.turn + len(legs) - 1)
                    return self.answer(module, self.link.ask(last, "listen", {"part": "upload"}))
                message, labels = uploads.send(heard), None
            last = Key(key.at, key.turn + len(legs) - 1)
            return self.answer(module, self.tell_server(module, message, view.rows.total, last, labels))

    def _hear(
        self, module: "SplitVFL", message: Message, view: PartyView, key: Key, labels: Tensor | None
    ) -> Heard | Message | None:
        """Send a leg that is not the last; what the party hears after it, or the last answer of the round."""
        received: Message | None
        if message.to == "peers":
            answered = self.tell_peers(module, message, view, key, {"part": "upload"}, labels)
            if answered is None:
                return None
            frame = answered[1]
            received = self._joined(message, answered[0])
        else:
            given = self.tell_server(module, message, view.rows.total, key, labels)
            if given is None:
                return None
            frame, received = given, None
            if "message" in frame.header:
                received = read(dict(frame.header["message"]), iter(frame.tensors), module.seed, self.link.agreed)
        if frame.header.get("final"):
            return self.answer(module, frame)
        (heard,) = fields_of(frame, "heard")
        included = mask_of(heard["included"], module.roster.parties)
        hosted = (self.party,) if self.party in heard["answering"] else ()
        return Heard(included, hosted, received)

    def miss(self, module: "SplitVFL", batch: VerticalBatch, names: RoundNames) -> None:
        if module.protected_evaluation:
            self.sum_guard.pass_by(module, names.stage, batch)

    def evaluate(self, module: "SplitVFL", batch: VerticalBatch, turn: Evaluation) -> Message | None:
        if module.protected_evaluation:
            module.enter_evaluation(batch, turn.names, turn.roll)
            charge_evaluation(module, Roll.of(turn.called), turn.called, batch)  # before the upload, as in training
        found = self._round(module, batch, turn.names, turn.key, turn.called, turn.plan, evaluation=True)
        return None if found is None else found[1]

    # ---- set-up

    def set_up(
        self, module: "SplitVFL", source: RecordSource, names: RoundNames, agreed: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Any]:
        """Propose settings, share this party's records with the others, and take their shares."""
        setup, roster = needed(module.aggregator.setup), module.roster
        at, turn = at_of(module, names, -1), 0
        records = ExpandedRecords(source, module.bottoms, module.device)
        network: Any = module.bottoms.parties[self.party]
        if not agreed:
            proposal = dict(setup.propose(records, self.party, network.weight.detach(), roster))
            frame = self.link.ask(Key(at, turn), "propose", {"proposal": proposal})
            if frame is None:
                raise ConfigurationError("the set-up before the first round is over; start all processes again")
            agreed, turn = dict(fields_of(frame, "agreed")[0]), turn + 1
        everybody = torch.ones(roster.parties, dtype=torch.bool)
        rows = Rows(torch.empty(0, dtype=torch.int64), 0, 0)
        view = PartyView(names, roster, (self.party,), everybody, rows, agreed=agreed)
        memory = setup.empty_memory(len(source), module.costs.basis_widths, view)
        offers = setup.offer(records, memory, view)
        message: Message | None = next(offers, None)
        while True:
            mine = message or Message("nothing", "peers", (), (), round=names)
            heard = self.tell_peers(module, mine, view, Key(at, turn), {"part": "setup"})
            if heard is None:
                raise ConfigurationError("the set-up before the first round is over; start all processes again")
            for one in heard[0]:
                memory = setup.accept(memory, one, view)
            if fields_of(heard[1], "over")[0]:
                return agreed, memory
            message, turn = next(offers, None), turn + 1


def _detached(contribution: Contribution) -> Contribution:
    leaves = tuple(leaf.detach() for leaf in contribution.leaves)
    if isinstance(contribution, LinearForms):
        return replace(contribution, leaves=leaves, basis=tuple(x.detach() for x in contribution.basis))
    return replace(contribution, leaves=leaves)
