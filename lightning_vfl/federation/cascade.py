"""Cascade training between processes: events of active parties, which read the embeddings that others seal for them."""

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import FLOAT_BITS
from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.at_party import AtParty
from lightning_vfl.federation.at_server import AtServer
from lightning_vfl.federation.attendance import Attendance
from lightning_vfl.federation.calls import numbers
from lightning_vfl.federation.frames import Frame
from lightning_vfl.federation.hub import Key, Request
from lightning_vfl.federation.last_upload import happened
from lightning_vfl.federation.letters import read, written
from lightning_vfl.federation.told_plans import told_plan
from lightning_vfl.federation.turns import at_of
from lightning_vfl.missing import Exclude, MissingPolicy, Skip
from lightning_vfl.protocols.cascade.events import trained
from lightning_vfl.protocols.cascade.plans import EventPlan
from lightning_vfl.protocols.checks import needed_event
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import RoundNames, Stage, VerticalBatch, mask_of
from lightning_vfl.wire import Leg, Message

if TYPE_CHECKING:
    from lightning_vfl.protocols.cascade import CascadeVFL

TOP, TOP_GRADIENTS = "top", "top gradients"


@final
class CascadeAtServer(AtServer):
    """The collaborator's part of ``CascadeVFL``, which has the top: it relays what is sealed, and steps.

    Events come in the order of virtual time, which all processes know. An event is made by all parties or given up.
    """

    def policy(self, module: Any) -> MissingPolicy:
        return Skip() if module.stage == Stage.FIT else Exclude()

    def step(self, module: "CascadeVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Run an event: embeddings to the active party, its gradients to all, and that of the top."""
        event = needed_event(batch, module)
        plan = module.begin(batch)
        at = at_of(module, names, 0)
        began = monotonic()
        self.calls.begin(module, at, Skip())
        attendance = self.attendance(module, batch, names, None, Skip())
        answer = self._hear(module, attendance, Key(at, 0), event.party)
        done = happened(attendance.roll, monotonic() - began, skipped=answer is None)
        if self.record is not None:
            self.record.add(names.round, done)
        self.calls.call_next(at, done.roll.included)
        told = told_plan(done)
        if answer is None:
            self.calls.end(at, set(), told)
            return module.give_up(event, names)
        sealed = answer.sealed or {}
        for party in range(self.hub.parties):
            senders = [event.party] if party in sealed else []
            header = {**self.calls.standing("go"), "relayed": senders, "plan": told}
            self.hub.post(party, Key(at, 1), header, [sealed[party]] if senders else ())
        self.calls.end(at, {*range(self.hub.parties)}, told)
        module.enter(plan, event, len(batch.record_ids), names)
        loss = torch.tensor(float(answer.frame.header.get("loss", torch.nan)))
        top = trained(module.memory.replicas.live)
        gradients = torch.split(answer.frame.tensors[0].to(module.device), [p.numel() for p in top])
        shaped = [own.view_as(p) for own, p in zip(gradients, top, strict=True)]
        learnt = module.surrogate(event.party, loss.to(module.device), top, shaped, own=False)
        return Step(learnt, (), after_optimizer=partial(module.end, event, names, True))

    def _hear(self, module: "CascadeVFL", attendance: Attendance, key: Key, active: int) -> Request | None:
        """Relay the embeddings to the active party, with its replica of the top; its answer. None: a party is lost."""
        parties = self.hub.parties
        nothing = torch.zeros(parties, dtype=torch.int64)
        arrived = attendance.await_leg(key, Leg(EMBEDDINGS, "peers", nothing, FLOAT_BITS), attendance.uploading)
        if not attendance.include(arrived) or len(numbers(arrived)) < parties:
            return None
        replica = module.memory.replicas.of[active]
        message = Message(TOP, "parties", (), (flat(replica.top_parameters),), receivers=(active,))
        self.collector.relay(key, attendance.accepted, {}, {active: message})
        size = sum(p.numel() for p in trained(module.memory.replicas.live))
        alone = torch.arange(parties) == active
        leg = Leg(TOP_GRADIENTS, "server", alone * size, FLOAT_BITS)
        arrived = attendance.await_leg(Key(key.at, 1), leg, alone)
        return attendance.accepted[active] if bool(arrived.any()) else None


@final
class CascadeAtParty(AtParty):
    """One party's part of ``CascadeVFL``.

    Guarantee: the server is sent no embedding in training, and no gradient of one: parties seal them for each other.
    Not guaranteed: that it cannot compute one. The gradient of the top's first layer, which it is sent, is the sum of
        g h^T over a batch, and that of the bias the sum of g: their quotient is the embedding h of a single record, and
        batches of a few records come apart too: see ``TopGradientInversion``. A server that sends a top of its own
        reads embeddings and labels of large batches: see ``ChosenTop``.
    """

    _missed = False  # whether others have gone on without this party

    def step(self, module: "CascadeVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Send the embedding of START, and learn from the active party's gradient."""
        event = needed_event(batch, module)
        plan = module.begin(batch)
        at = at_of(module, names, 0)
        if not self.is_called(module, Key(at, 0)):
            self._missed = True
            return module.give_up(event, names)
        self.refuse_few(mask_of(self.link.standing.called, module.roster.parties))
        if self._missed:  # what the others have of this party is of a bottom that is lost
            self._missed = False
            for active in module.active_parties:
                module.memory.replicas.refresh(active, top=False)
        gradient = self._exchange(module, batch, names, Key(at, 0), plan)
        if gradient is None:
            return module.give_up(event, names)
        module.enter(plan, event, len(batch.record_ids), names)
        now = module.bottoms.one(self.party, batch.features[self.party])
        loss = module.surrogate(event.party, now.new_zeros(()), [now], [gradient], own=True)
        return Step(loss, (self.party,), after_optimizer=partial(module.end, event, names, True))

    def _exchange(
        self, module: "CascadeVFL", batch: VerticalBatch, names: RoundNames, key: Key, plan: EventPlan
    ) -> Tensor | None:
        """The gradient (B, D_m) of this party's embedding; None: the event is given up."""
        active = needed_event(batch, module).party
        called = torch.ones(module.roster.parties, dtype=torch.bool)
        view = module.party_view(batch, names, called, (self.party,))
        bottoms = module.memory.replicas.of[active].bottoms
        bottoms.stream = module.bottoms.stream  # dropout of START is that of END
        with torch.no_grad():
            embedding = bottoms.one(self.party, batch.features[self.party])
        message = Message(EMBEDDINGS, "peers", (self.party,), (embedding[None],), receivers=(active,), round=names)
        heard = self.tell_peers(module, message, view, key, {"part": "upload"})
        if heard is None:
            return None
        last = Key(key.at, 1)
        if self.party == active:
            return self._join(module, batch, names, heard, last, plan)
        frame = self.link.ask(last, "listen", {"part": "upload"})
        if frame is None:
            return None
        who = self.link.agreed.party(active)
        opened = self.opened(module, frame)
        if [(one.senders, one.kind) for one in opened] != [((active,), GRADIENTS)]:
            raise ConfigurationError(f"the server has relayed no gradients of {who}; check who runs the server")
        (gradient,) = self.refuse_absurd(GRADIENTS, opened[0].pieces, [(1, *embedding.shape)], module, who)
        return gradient[0].to(embedding.device)

    def _join(
        self,
        module: "CascadeVFL",
        batch: VerticalBatch,
        names: RoundNames,
        heard: tuple[list[Message], Frame],
        key: Key,
        plan: EventPlan,
    ) -> Tensor | None:
        """Join the embeddings, seal their gradients for the others, and send that of the top; the own gradient."""
        messages, frame = heard
        event = needed_event(batch, module)
        parties = module.roster.parties
        rows = len(batch.record_ids)
        if [one.senders for one in messages] != [(party,) for party in range(parties)]:
            raise ConfigurationError("the server has not relayed the embeddings of all parties; check who runs it")
        widths = module.embedding_widths
        leaves = []
        for party, message in enumerate(messages):
            shape = (1, rows, widths[party])
            (piece,) = self.refuse_absurd(EMBEDDINGS, message.pieces, [shape], module, self.link.agreed.party(party))
            leaves.append(piece[0].to(module.device).requires_grad_())
        replica = module.memory.replicas.of[self.party]
        told = read(dict(frame.header["message"]), iter(frame.tensors[parties - 1 :]), module.seed, self.link.agreed)
        size = sum(p.numel() for p in replica.top_parameters)
        (top,) = self.refuse_absurd("parameters of the top", told.pieces, [(size,)], module)
        torch.nn.utils.vector_to_parameters(top.to(module.device), replica.top_parameters)
        gradients, _, loss, _ = module.ends.differentiate(tuple(leaves), batch, event, names, plan)
        sealed: dict[int, Tensor] = {}
        for other, gradient in enumerate(gradients[:parties]):
            message = Message(GRADIENTS, "peers", (self.party,), (gradient[None],), receivers=(other,), round=names)
            sealed |= self.seals.seal(message, parties, [other])
        message = Message(TOP_GRADIENTS, "server", (self.party,), (flat(gradients[parties:]),), round=names)
        letter, tensors, _ = written(message)
        header = {"part": "upload", "message": letter, "sealed": [*sealed], "loss": loss.item()}
        answer = self.link.ask(key, "tell", header, [*tensors, *sealed.values()])
        return None if answer is None else gradients[self.party]


def flat(tensors: Any) -> Tensor:
    """The numbers of tensors one after the other."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]) if tensors else torch.empty(0)
