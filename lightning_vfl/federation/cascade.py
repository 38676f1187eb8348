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
from lightning_vfl.federation.frames import Frame
from lightning_vfl.federation.hub import At, Key, Request
from lightning_vfl.federation.letters import enclosed, read
from lightning_vfl.federation.link import RoundClosed
from lightning_vfl.federation.turns import at_of, happened, numbers
from lightning_vfl.missing import Exclude, MissingPolicy, Skip
from lightning_vfl.protocols.cascade.plans import EventPlan
from lightning_vfl.protocols.cascade.protocol import trained
from lightning_vfl.protocols.checks import needed_event
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import RoundNames, Stage, VerticalBatch
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
        attendance = self.begin(module, batch, names, at)
        answer = self._hear(module, attendance, event.party)
        done = happened(attendance.roll, monotonic() - began, skipped=answer is None)
        self.note(names, done)
        receivers = range(0 if answer is None else self.hub.parties)
        with self.calls.ending(at, done, receivers) as header:
            if answer is not None:
                self.collector.relay(Key(at, 1), {event.party: answer}, header, receivers=receivers)
        if answer is None:
            return module.give_up(event, names)
        module.enter(plan, event, len(batch.record_ids), names)
        device = module.device
        loss = torch.tensor(float(answer.frame.header.get("loss", torch.nan)), device=device)
        top = trained(module.memory.replicas.live)
        parts = torch.split(answer.frame.tensors[0].to(device), [p.numel() for p in top])
        gradients = [part.view_as(p) for part, p in zip(parts, top, strict=True)]
        learnt = module.surrogate(event.party, loss, top, gradients, own=False)
        return Step(learnt, (), after_optimizer=partial(module.end, event, names, True))

    def _hear(self, module: "CascadeVFL", attendance: Attendance, active: int) -> Request | None:
        """Relay the embeddings to the active party, with its replica of the top; its answer. None: a party is lost."""
        parties = self.hub.parties
        embeddings = Leg(EMBEDDINGS, "peers", torch.zeros(parties, dtype=torch.int64), FLOAT_BITS)
        arrived = attendance.await_leg(0, embeddings, attendance.uploading)
        if not attendance.include(arrived) or len(numbers(arrived)) < parties:
            return None
        replica = module.memory.replicas.of[active]
        message = Message(TOP, "parties", (), (flat(replica.top_parameters),), receivers=(active,))
        self.collector.relay(Key(attendance.at, 0), attendance.accepted, {}, {active: message})
        size = sum(p.numel() for p in trained(module.memory.replicas.live))
        alone = torch.arange(parties) == active
        gradients = Leg(TOP_GRADIENTS, "server", alone * size, FLOAT_BITS)
        arrived = attendance.await_leg(1, gradients, alone)
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
        called = self.called(module, at)
        if called is None:
            self._missed = True
            return module.give_up(event, names)
        if self._missed:  # what the others have of this party is of a bottom that is lost
            self._missed = False
            for active in module.active_parties:
                module.memory.replicas.refresh(active, top=False)
        try:
            gradient = self._exchange(module, batch, names, at, plan)
        except RoundClosed:
            return module.give_up(event, names)
        module.enter(plan, event, len(batch.record_ids), names)
        now = module.bottoms.one(self.party, batch.features[self.party])
        loss = module.surrogate(event.party, now.new_zeros(()), [now], [gradient], own=True)
        return Step(loss, (self.party,), after_optimizer=partial(module.end, event, names, True))

    def _exchange(
        self, module: "CascadeVFL", batch: VerticalBatch, names: RoundNames, at: At, plan: EventPlan
    ) -> Tensor:
        """The gradient (B, D_m) of this party's embedding."""
        active = needed_event(batch, module).party
        view = module.party_view(batch, names, module.roster.everybody, (self.party,))
        bottoms = module.memory.replicas.of[active].bottoms
        bottoms.stream = module.bottoms.stream  # dropout of START is that of END
        with torch.no_grad():
            embedding = bottoms.one(self.party, batch.features[self.party])
        message = self.message(EMBEDDINGS, "peers", embedding[None], names, receivers=(active,))
        heard, frame = self.tell_peers(module, message, view, Key(at, 0))
        last = Key(at, 1)
        if self.party == active:
            self._take_top(module, frame)
            return self._join(module, batch, names, heard, last, plan)
        opened = self.opened(module, self.ask(last, "listen", {"part": "upload"}))
        if [(one.senders, one.kind) for one in opened] != [((active,), GRADIENTS)]:
            who = self.link.agreed.party(active)
            raise ConfigurationError(f"the server has relayed no gradients of {who}; check who runs the server")
        return self.opened_piece(module, opened[0], embedding.shape)

    def _join(
        self,
        module: "CascadeVFL",
        batch: VerticalBatch,
        names: RoundNames,
        heard: list[Message],
        key: Key,
        plan: EventPlan,
    ) -> Tensor:
        """Join the embeddings, seal their gradients for the others, and send that of the top; the own gradient."""
        parties = module.roster.parties
        if [one.senders for one in heard] != [(party,) for party in range(parties)]:
            raise ConfigurationError("the server has not relayed the embeddings of all parties; check who runs it")
        rows = len(batch.record_ids)
        leaves = []
        for upload, width in zip(heard, module.embedding_widths, strict=True):
            embedding = self.opened_piece(module, upload, (rows, width))
            leaves.append(embedding.requires_grad_())
        event = needed_event(batch, module)
        gradients, _, loss, _ = module.differentiate(tuple(leaves), batch, event, names, plan)
        sealed: dict[int, Tensor] = {}
        for other, gradient in enumerate(gradients[:parties]):
            message = self.message(GRADIENTS, "peers", gradient[None], names, receivers=(other,))
            sealed |= self.seals.seal(message, parties, [other])
        message = self.message(TOP_GRADIENTS, "server", flat(gradients[parties:]), names)
        header, tensors, _ = enclosed(message, {"part": "upload", "sealed": [*sealed], "loss": loss.item()})
        self.ask(key, "tell", header, [*tensors, *sealed.values()])
        own: Tensor = gradients[self.party]
        return own

    def _take_top(self, module: "CascadeVFL", frame: Frame) -> None:
        """Take the parameters of the top, which come after what the other parties have sealed."""
        parameters = module.memory.replicas.of[self.party].top_parameters
        own = iter(frame.tensors[module.roster.parties - 1 :])
        told = read(frame.header["message"], own, module.seed, self.link.agreed)
        size = sum(p.numel() for p in parameters)
        (top,) = self.refuse_absurd("parameters of the top", told.pieces, [(size,)], module)
        torch.nn.utils.vector_to_parameters(top.to(module.device), parameters)


def flat(tensors: Any) -> Tensor:
    """The numbers of tensors one after the other."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]) if tensors else torch.empty(0)
