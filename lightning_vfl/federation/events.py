"""Asynchronous events between processes: the server serves the party whose upload came first, which waits for it."""

from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.answers import answered, arrived
from lightning_vfl.federation.arrivals import RealEvents
from lightning_vfl.federation.at_party import AtParty, nothing_learnt
from lightning_vfl.federation.at_server import AtServer
from lightning_vfl.federation.attendance import Form
from lightning_vfl.federation.hub import At, Hub, Key, Request
from lightning_vfl.federation.letters import message_of
from lightning_vfl.federation.link import RoundClosed, fields_of
from lightning_vfl.federation.turns import at_of
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.protocols.checks import needed_event
from lightning_vfl.protocols.step import Step
from lightning_vfl.schedules.arrivals import FirstComeFirstServed
from lightning_vfl.schedules.batches import Schedule
from lightning_vfl.types import Event, RoundNames, Stage, Tensors, VerticalBatch
from lightning_vfl.wire import Message

if TYPE_CHECKING:
    from lightning_vfl.federation.record import Record
    from lightning_vfl.protocols.asynchronous import AsyncVFL


@final
class EventsAtServer(AtServer):
    """The server's part of the events of ``AsyncVFL``.

    Guarantee: with ``injected``, events come in the simulated order. Without, of the uploads that are there, the one
        that came first is served; nobody waits for a party that is away.
    """

    def __init__(self, hub: Hub, injected: bool, reconnect: float = 600.0, record: "Record | None" = None) -> None:
        super().__init__(hub, injected, reconnect, record)
        self.calls.holds = False  # a party that is left out of an evaluation goes on with its own events
        self._upload: Request | None = None  # of the event that comes next
        self._met: dict[int, tuple[bytes, int]] = {}  # by party, the last upload that was served or refused

    def policy(self, module: Any) -> MissingPolicy:
        return Exclude()

    def order(self, module: "AsyncVFL", planned: FirstComeFirstServed) -> Schedule:
        """The order of events: as uploads arrive, unless faults are played from the recipe."""
        if self.injected:
            return planned
        return RealEvents(planned, module, partial(self._next_event, module, planned))

    def step(self, module: "AsyncVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Serve one party; it gets its gradient in the backward pass."""
        event = needed_event(batch, module)
        _, learns = module.reached(event)
        module.enter_event(event)
        at = at_of(module, names, 0)
        self.calls.stand(module, at)
        if not learns:
            return Step(None)
        upload = self._planned_upload(event, at) if self.injected else self._upload
        if upload is None:
            raise RuntimeError(f"event {event.number} has no upload")
        if self.record is not None:
            self.record.add_event(event, event.end - event.start)
        embedding = upload.decoded
        if embedding is None:
            (piece,) = message_of(upload.frame, module.seed).pieces
            embedding = module.read(piece, event.party)
        clock = module.clock.seconds

        def send_back(grad: Tensor) -> None:
            everybody = range(self.hub.parties)
            self.hub.call_upon(everybody)  # no process has keys, so a new one may come at once
            self.calls.call_next(upload.key.at, everybody)  # all that are present
            told = {**self.calls.standing("go"), "number": event.number, "clock": clock}
            self.hub.post(upload.party, upload.key, told, [module.pack_answer(grad, batch.record_ids, event)])

        return Step(module.event_loss(batch, event, arrived(embedding, send_back), names), ())

    def end_epoch(self, module: "AsyncVFL") -> None:
        """Close the uploads that were not served in this epoch; their parties send them again in the next."""
        at = at_of(module, RoundNames(module.seed, Stage.SANITY_CHECK, 0), 0)
        if not self.injected and at > self.calls.last:  # an evaluation has closed them already
            self.calls.close(module, at)

    def _planned_upload(self, event: Event, at: At) -> Request:
        served = torch.arange(self.hub.parties) == event.party
        found = self.collector.requests(Key(at, 0), served) or {}
        return found[event.party]

    def _next_event(self, module: "AsyncVFL", planned: FirstComeFirstServed, number: int) -> Event:
        """Wait for the next upload."""
        start = module.clock.seconds
        began = monotonic()
        since = monotonic()

        def first() -> Request | None:
            nonlocal since
            if any(map(self.hub.present, range(self.hub.parties))):
                since = monotonic()
            waiting = map(self.hub.waiting, range(self.hub.parties))
            new = (one for one in waiting if one is not None and self._call(one) != self._met.get(one.party))
            there = [one for one in new if self._fits(module, planned, one)]
            return min(there, key=lambda one: one.arrived, default=None)

        upload = None
        while upload is None:
            upload = self.hub.wait(first, lambda: since + self.calls.reconnect)
            if upload is None and monotonic() - since >= self.calls.reconnect:
                raise ConfigurationError(
                    f"event {number} has waited {self.calls.reconnect:g} s, and no party is there; start the parties "
                    "again with --ckpt_path last"
                )
        self._upload = upload
        self._met[upload.party] = self._call(upload)
        request = int(upload.frame.header["request"])
        return Event(number, upload.party, request, start, start + monotonic() - began, (upload.party,))

    def _call(self, request: Request) -> tuple[bytes, int]:
        """Names a call. A request waits until its answer is fetched, and comes again if its connection breaks."""
        return self.hub.process(request.party), request.call

    def _fits(self, module: "AsyncVFL", planned: FirstComeFirstServed, request: Request) -> bool:
        """Whether this is an upload of an event; tells a sender whose upload has another form."""
        training = at_of(module, RoundNames(0, Stage.FIT, 0), 0)
        if request.say != "tell" or request.key.at.stage != training.stage:
            return False
        if "request" in request.frame.header:
            rows = planned.rows(request.party)
            (leg,) = module.wire.legs(rows, module.embedding_widths, (), module.roster)[:1]
            why = Form(module, self.hub.agreed, rows, clear=True).misfit(request, leg)
        else:
            why = "no number of its event"
        if why is not None:
            self._met[request.party] = self._call(request)
            self.hub.refuse(request, why)
        return why is None


@dataclass(frozen=True, eq=False)
class _Served:
    """An upload that the server has served: the event, the embedding with its graph, and its gradient."""

    event: Event
    features: Tensors
    embedding: Tensor
    grad: Tensor


@final
class EventsAtParty(AtParty):
    """One party's part of the events of ``AsyncVFL``: it uploads, and waits until the server has served it.

    The trainer of every process counts all events, so that epochs, schedules and checkpoints have the same numbers. In
    an event of another party, this process does nothing.
    """

    _served: _Served | None = None

    def order(self, module: "AsyncVFL", planned: FirstComeFirstServed) -> Schedule:
        """The order of events: this party's own one after the other, unless faults are played from the recipe."""
        return planned if self.injected else RealEvents(planned, module, partial(self._own_event, module))

    def _own_event(self, module: "AsyncVFL", number: int) -> Event:
        """This party's next event, until it is served."""
        now = module.clock.seconds
        return Event(number, self.party, module.counts.most_events, now, now, (self.party,))

    def step(self, module: "AsyncVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Upload if nothing is on the way, and learn in the event in which this party is served."""
        event = needed_event(batch, module)
        at = at_of(module, names, 0)
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
        try:
            frame = self.tell_server(module, message, len(embedding), Key(at, 0), request=event.request)
        except RoundClosed:
            return None
        number, clock = fields_of(frame, "number", "clock")
        grads = [module.read_answer(piece, self.party) for piece in frame.tensors]
        (grad,) = self.refuse_absurd("gradients", grads, [tuple(embedding.shape)], module)
        return _Served(event._replace(number=number, end=float(clock)), batch.features, embedding, grad)

    def _learn(self, module: "AsyncVFL", served: _Served) -> Step:
        loss = answered((served.grad,), (served.embedding,))
        learn = module.local_learning(served.features, {self.party: served.grad})
        return Step(loss, (self.party,), before_optimizer=learn)
