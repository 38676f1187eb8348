"""The server's part of asynchronous events: it serves the party whose upload came first."""

from time import monotonic
from typing import TYPE_CHECKING, Any, final

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.answers import arrived
from lightning_vfl.federation.arrivals import AsTheyCome
from lightning_vfl.federation.at_server import AtServer
from lightning_vfl.federation.attendance import Form
from lightning_vfl.federation.hub import Hub, Key, Request
from lightning_vfl.federation.letters import read
from lightning_vfl.federation.turns import at_of
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.protocols.checks import needed_event
from lightning_vfl.protocols.step import Step
from lightning_vfl.schedules.arrivals import FirstComeFirstServed
from lightning_vfl.schedules.batches import Schedule
from lightning_vfl.types import Event, RoundNames, Stage, VerticalBatch

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
        return AsTheyCome(planned, module, lambda number: self._next_event(module, planned, number))

    def step(self, module: "AsyncVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Serve one party; it gets its gradient in the backward pass."""
        event = needed_event(batch, module)
        _, learns = module.reached(event)
        module.enter_event(event)
        self.calls.stand(module, at_of(module, names, 0))
        if not learns:
            return Step(None)
        upload = self._planned_upload(module, event, names) if self.injected else self._upload
        if upload is None:
            raise RuntimeError(f"event {event.number} has no upload")
        if self.record is not None:
            self.record.add_event(event, event.end - event.start)
        embedding = upload.decoded
        if embedding is None:
            letter = dict(upload.frame.header["message"])
            (piece,) = read(letter, iter(upload.frame.tensors), module.seed).pieces
            embedding = module.read(piece, event.party)
        clock = module.clock.seconds

        def send_back(grad: Tensor) -> None:
            self.hub.call_upon(range(self.hub.parties))  # no process has keys, so a new one may come at once
            self.calls.call_next(upload.key.at, torch.ones_like(self.calls.called))  # all that are present
            told = {**self.calls.standing("go"), "number": event.number, "clock": clock}
            self.hub.post(upload.party, upload.key, told, [module.pack_answer(grad, batch.record_ids, event)])

        return Step(module.event_loss(batch, event, arrived(embedding, send_back), names), ())

    def end_epoch(self, module: "AsyncVFL") -> None:
        """Close the uploads that were not served in this epoch; their parties send them again in the next."""
        at = at_of(module, RoundNames(module.seed, Stage.SANITY_CHECK, 0), 0)
        if not self.injected and at > self.calls.last:  # an evaluation has closed them already
            self.calls.close(module, at)

    def _planned_upload(self, module: "AsyncVFL", event: Event, names: RoundNames) -> Request:
        served = torch.arange(self.hub.parties) == event.party
        found = self.collector.requests(Key(at_of(module, names, 0), 0), served) or {}
        return found[event.party]

    def _next_event(self, module: "AsyncVFL", planned: FirstComeFirstServed, number: int) -> Event:
        """Wait for the next upload."""
        start, began, since = module.clock.seconds, monotonic(), [monotonic()]

        def first() -> Request | None:
            if any(map(self.hub.present, range(self.hub.parties))):
                since[0] = monotonic()
            waiting = map(self.hub.waiting, range(self.hub.parties))
            new = (one for one in waiting if one is not None and self._call(one) != self._met.get(one.party))
            there = [one for one in new if self._fits(module, planned, one)]
            return min(there, key=lambda one: one.arrived, default=None)

        self._upload = None
        while self._upload is None:
            self._upload = self.hub.wait(first, lambda: since[0] + self.calls.reconnect)
            if self._upload is None and monotonic() - since[0] >= self.calls.reconnect:
                raise ConfigurationError(
                    f"event {number} has waited {self.calls.reconnect:g} s, and no party is there; start the parties "
                    "again with --ckpt_path last"
                )
        self._met[self._upload.party] = self._call(self._upload)
        party, request = self._upload.party, int(self._upload.frame.header["request"])
        return Event(number, party, request, start, start + monotonic() - began, (party,))

    def _call(self, request: Request) -> tuple[bytes, int]:
        """Names a call. A request waits until its answer is fetched, and comes again if its connection breaks."""
        return self.hub.process(request.party), request.call

    def _fits(self, module: "AsyncVFL", planned: FirstComeFirstServed, request: Request) -> bool:
        """Whether this is an upload of an event; tells a sender whose upload has another form."""
        if request.say != "tell" or request.key.at.stage != at_of(module, _FIT, 0).stage:
            return False
        number, why = request.frame.header.get("request"), None
        if type(number) is not int or not 0 <= number < 2**31:
            why = f"the number {number!r} of its event, a number from 0 on was planned"
        else:
            rows = planned.rows(request.party)
            leg = module.wire.legs(rows, module.embedding_widths, (), module.roster)[0]
            why = Form(module, self.hub.agreed, rows, clear=True).misfit(request, leg)
        if why is None:
            return True
        why = f"refused: {self.hub.agreed.party(request.party)} sent {why}; all must run the same recipe"
        rank_zero_warn(why)
        self._met[request.party] = self._call(request)
        self.hub.post(request.party, request.key, {"outcome": "refused", "why": why})
        return False


_FIT = RoundNames(0, Stage.FIT, 0)
