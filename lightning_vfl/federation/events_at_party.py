"""One party's part of asynchronous events: it uploads, and waits until the server has served it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.federation.answers import answered
from lightning_vfl.federation.arrivals import OwnEvents
from lightning_vfl.federation.at_party import AtParty, nothing_learnt
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.link import fields_of
from lightning_vfl.federation.turns import at_of
from lightning_vfl.protocols.checks import needed_event
from lightning_vfl.protocols.step import Step
from lightning_vfl.schedules.arrivals import FirstComeFirstServed
from lightning_vfl.schedules.batches import Schedule
from lightning_vfl.types import Event, RoundNames, VerticalBatch
from lightning_vfl.wire import Message

if TYPE_CHECKING:
    from lightning_vfl.protocols.asynchronous import AsyncVFL


@dataclass(frozen=True, eq=False)
class _Served:
    """An upload that the server has served: the event, the embedding with its graph, and its gradient."""

    event: Event
    features: tuple[Tensor, ...]
    embedding: Tensor
    grad: Tensor


@final
class EventsAtParty(AtParty):
    """One party's part of the events of ``AsyncVFL``.

    The trainer of every process counts all events, so that epochs, schedules and checkpoints have the same numbers. In
    an event of another party, this process does nothing.
    """

    _served: _Served | None = None

    def order(self, module: "AsyncVFL", planned: FirstComeFirstServed) -> Schedule:
        """The order of events: this party's own one after the other, unless faults are played from the recipe."""
        if self.injected:
            return planned
        return OwnEvents(planned, module, self.party)

    def step(self, module: "AsyncVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Upload if nothing is on the way, and learn in the event in which this party is served."""
        event, at = needed_event(batch, module), at_of(module, names, 0)
        if self.injected:
            return self._planned(module, batch, event, at)
        module.books.mini_batches += 1
        if self._served is None and at >= self.link.standing.at:
            self._served = self._upload(module, batch, event, at)
        served = self._served
        if served is None or served.event.number != names.round:
            return nothing_learnt(module)
        self._served = None
        module.enter_event(served.event)
        return self._learn(module, served)

    def _planned(self, module: "AsyncVFL", batch: VerticalBatch, event: Event, at: At) -> Step:
        """An event whose faults are played."""
        learns, server_learns = module.reached(event)
        module.enter_event(event)
        if not server_learns:
            return Step(None)
        module.books.mini_batches += 1
        if event.party != self.party:
            return nothing_learnt(module)
        served = self._upload(module, batch, event, at)
        return nothing_learnt(module) if served is None or not learns else self._learn(module, served)

    def _upload(self, module: "AsyncVFL", batch: VerticalBatch, event: Event, at: At) -> _Served | None:
        """Send this party's new embeddings; None: the epoch is over, and they are sent again in the next."""
        embedding = module.upload(batch, event)
        piece = module.pack(embedding.detach(), batch.record_ids, event)
        message = Message(EMBEDDINGS, "server", (self.party,), (piece,))
        frame = self.tell_server(module, message, len(embedding), Key(at, 0), request=event.request)
        if frame is None:
            return None
        number, clock = fields_of(frame, "number", "clock")
        grads = [module.read_answer(piece, self.party) for piece in frame.tensors]
        (grad,) = self.refuse_absurd("gradients", grads, [tuple(embedding.shape)], module)
        return _Served(event._replace(number=number, end=float(clock)), batch.features, embedding, grad)

    def _learn(self, module: "AsyncVFL", served: _Served) -> Step:
        loss = answered((served.grad,), (served.embedding,))
        learn = module.local_learning(served.features, {self.party: served.grad})
        return Step(loss, (self.party,), before_optimizer=learn)
