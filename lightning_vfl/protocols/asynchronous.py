"""AsyncVFL: parties train without waiting, each with the latest embeddings of the other parties (VAFL)."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, cast, final

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import EMBEDDINGS, ClearParty, PlainServer
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.checks import within
from lightning_vfl.crypto.keystream import keyed_words
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.memory import LatestEmbeddings, Memory
from lightning_vfl.networks.record_table import LIMIT_BYTES, TableDtype
from lightning_vfl.privacy.exact_normal import grid, rounded_normal
from lightning_vfl.protocols.checks import needed_event
from lightning_vfl.protocols.columns_told import Noise
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.plan import RoundCosts
from lightning_vfl.schedules.arrivals import FirstComeFirstServed
from lightning_vfl.schedules.batches import Schedule
from lightning_vfl.streams import Name, secret_bytes, seed_of, seed_torch
from lightning_vfl.support import Part, Unsupported
from lightning_vfl.types import Event, RecordSource, Roll, RoundNames, Stage, VerticalBatch, mask_of
from lightning_vfl.wire import Message


@dataclass
class Events:
    """The event counts of AsyncVFL.

    Args:
        most_events: the number of events of the party that had the most.
    """

    most_events: int = 0


class AsyncVFL(VFLModule):
    r"""Asynchronous split learning: VAFL.

    The server stores the latest embedding of every party for every record. It serves parties in the order in which
    their messages arrive (``FirstComeFirstServed``, with the same clock and the same faults as ``SplitVFL``). The
    served party computes new embeddings of one mini-batch, taken from its own order of records. The server joins these
    with the latest embeddings of the other parties. Only the party's bottom and the top learn; no party waits.

    One event uses one mini-batch and makes one optimiser step; an epoch has M⌊N/B⌋ events. An event is atomic: a party
    has one message in flight, and its update happens in the same event. If the party is absent or the server is down,
    the event is an idle step that costs its time. If the server's answer is lost, only the server learns.

    Guarantee: parties that are not served keep their parameters and optimiser state bit for bit.
    Not guaranteed: several processes (refused); a bound on staleness, which depends on the delays. A second fit
        continues with the clock, the table and the events; each party starts after the last event of the fastest party.

    In a federation of processes, the events come in the order in which uploads really arrive. The record of the
    federation keeps this order, so that a simulation repeats it.

    Args:
        aggregator: any aggregator that shows the server single embeddings.
        noise: standard deviation of the Gaussian noise that a party adds to each number of its embeddings before the
            upload (VAFL's perturbation). In a simulation it comes from a stream of the party and its event: it
            simulates privacy. Between processes it is secret, and rounded to a grid as in ``LocalGaussian``, unless
            ``federation.yaml`` has ``weights: seeded``. Embeddings are not clipped, so the noise has no ε.
        table_dtype: ``float16`` halves the memory of the latest embeddings.
        limit_bytes: the largest allowed table of latest embeddings, which has N × Σ D_m numbers.
        settings: settings of ``VFLModule``.

    Raises:
        ConfigurationError: before training.

    References:
        Chen, Jin, Sun, Yin, "VAFL: a Method of Vertical Asynchronous Federated Learning", 2020,
        https://arxiv.org/abs/2007.06081, Algorithm 1.
    """

    unsupported: ClassVar[Unsupported] = {
        Part.WAITING: "nobody waits: messages are served as they arrive; leave out waiting (a policy recipe sets it)",
        Part.MISSING: "the latest embedding stands for a party that is not there; leave out missing",
        Part.HIDDEN: "the server stores single embeddings; use Concat, Sum, Mean or Max",
        Part.PROTECTED_EVALUATION: "use evaluate: plain",
        Part.GROUPS: "it serves one party at a time; use SplitVFL",
        Part.PROCESSES: "it serves one party at a time in one process; use devices: 1",
        Part.FEDERATION: None,
        Part.HALVES: "the server holds the labels; use SplitVFL",
    }
    replayed_events: Callable[[FirstComeFirstServed], Schedule] | None = None
    """Makes the order of events that have happened in a federation, if this training repeats it."""
    _event_costs: RoundCosts
    sends_labels = False
    names_draws = False  # an event is named by its party's own request

    def __init__(
        self,
        aggregator: Aggregator,
        *,
        noise: float = 0.0,
        table_dtype: TableDtype = "float32",
        limit_bytes: float = LIMIT_BYTES,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator, **settings)
        self.noise = within("noise", noise, 0)
        self.latest = LatestEmbeddings(table_dtype, limit_bytes)

    def own_books(self) -> Events:
        return Events()

    @property
    def counts(self) -> Events:
        """The event counts."""
        counts: Events = self.books.own
        return counts

    # ---- before training

    def schedule(self, records: RecordSource, batch_size: int, seed: int, drop_last: bool = False) -> Schedule:
        """The events in the order of arrival; only whole batches, with and without ``drop_last``."""
        self._event_costs = self.costs.of_round(batch_size)
        planned = FirstComeFirstServed(
            records,
            batch_size,
            self.roster,
            self._event_costs,
            self.faults,
            seed,
            begin=self.clock.seconds,  # a second fit starts where the first has ended
            first=self.counts.most_events,
            number=self.books.training_rounds,
        )
        if self.place is not None:
            return self.place.order(self, planned)
        return planned if self.replayed_events is None else self.replayed_events(planned)

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings, then allocate the table of latest embeddings."""
        super().on_fit_start()
        if self.scores_here:
            rank_zero_info(
                f"the latest embeddings of {self._remembered:,} records take "
                f"{self.latest.table.rows.nbytes / 1e6:,.1f} MB"
            )

    @property
    def noise_on_uploads(self) -> Noise:
        return Noise.UNCHARGED if self.noise else super().noise_on_uploads

    @property
    def memory(self) -> Memory | None:
        return self.with_residues(self.latest if self.scores_here else None)

    # ---- training

    @final
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """Run one event."""
        event = needed_event(batch, self)
        party_learns, server_learns = self.reached(event)
        self.enter_event(event)
        if not server_learns:
            return Step(None)
        fresh = self.upload(batch, event)
        sent = self._through_wire(fresh, batch.record_ids, event) if self.compresses else fresh
        loss = self.event_loss(batch, event, sent, names, learnt_at=fresh)
        if not party_learns:
            return Step(loss, set(range(self.roster.parties)) - {event.party})
        learn = self.local_learning(batch.features, self.gradients_of({event.party: fresh}))
        return Step(loss, before_optimizer=learn)

    def upload(self, batch: VerticalBatch, event: Event) -> Tensor:
        """The new embedding (B, D_m) of the event's party. What it draws depends on the party and its own event."""
        party = event.party
        names = (Stage.FIT, "party", event.party, event.request)
        self.bottoms.stream = self.seed, ("networks", *names)
        fresh = self.bottoms.one(party, batch.features[party])
        if self.noise and party in self.keys:
            return _noisy(fresh, self.noise, self.keys[party], *names)
        if self.noise:
            generator = torch.Generator(fresh.device).manual_seed(seed_of(self.seed, "noise", *names))
            fresh = fresh + self.noise * torch.randn(fresh.shape, generator=generator, device=fresh.device)
        return fresh

    def pack(self, h: Tensor, ids: Tensor, event: Event) -> Tensor:
        """What the event's party sends of its new embedding."""
        party = cast(ClearParty, self.sides.party)
        return party.pack(event.party, h, ids, _names(self, event))

    def read(self, piece: Tensor, party: int) -> Tensor:
        """The embedding that the server has of what a party has sent."""
        message = Message(EMBEDDINGS, "server", (party,), (piece,))
        return self.sides.server.read(message, {party: self.embedding_widths[party]}).pieces[0]

    def pack_answer(self, gradient: Tensor, ids: Tensor, event: Event) -> Tensor:
        """What the server sends of the gradient."""
        server = cast(PlainServer, self.sides.server)
        return server.pack(event.party, gradient, ids, _names(self, event))

    def read_answer(self, piece: Tensor, party: int) -> Tensor:
        """The gradient that a party has of what the server has sent; the server has used its embedding."""
        side = cast(ClearParty, self.sides.party)
        side.settle((party,))
        message = Message(GRADIENTS, "parties", (), (piece,), receivers=(party,))
        return side.read(message, {party: self.embedding_widths[party]}).pieces[0]

    def _through_wire(self, fresh: Tensor, ids: Tensor, event: Event) -> Tensor:
        """The embedding that the server has, whose gradient goes back as it is sent."""

        def back(gradient: Tensor) -> Tensor:
            return self.read_answer(self.pack_answer(gradient, ids, event), event.party).to(fresh.dtype)

        there = self.read(self.pack(fresh, ids, event), event.party)
        self.used.add("compressor")
        sent: Tensor = _Sent.apply(fresh, there, back)  # type: ignore[no-untyped-call]  # torch's
        return sent

    def event_loss(
        self,
        batch: VerticalBatch,
        event: Event,
        fresh: Tensor,
        names: RoundNames,
        learnt_at: Tensor | None = None,
    ) -> Tensor:
        """The server's loss for a new embedding and the latest embeddings of the other parties; stores the new one.

        ``learnt_at``: where the party has its gradient, for an audit; None: at ``fresh``.
        """
        self.books.mini_batches += 1
        h = [latest.to(fresh.dtype) for latest in self.latest.table.read(batch.record_ids)]
        h[event.party] = fresh
        self.latest.write(batch.record_ids, event.party, fresh)
        value = self.joined(tuple(h), Roll.everyone(self.roster.parties), batch.present)
        if self.tap is not None:
            self._tell(batch.record_ids, event.party, fresh, names, fresh if learnt_at is None else learnt_at)
            self.tap.joined(value.detach(), names, batch.record_ids)
        if self._top_may_draw:
            seed_torch(value.device, self.keys.get(None, self.seed), "networks", names.stage, names.round, "server")
        return self.rank_loss(self.top(value), batch)

    @toolkit_hook
    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        if self.place is not None:
            self.place.end_epoch(self)

    def requests_made(self) -> int:
        """Two requests for each event of the party with most events, and two for its next event.

        If the server was down at some time, two requests for each event of all parties, if these are more.
        """
        events = self.books.training_rounds
        down = any(not self.faults.hosts_at(2 * event + 1, self.roster)[0] for event in range(events))
        return max(2 * (self.counts.most_events + 1), 2 * events if down else 0)

    def _tell(self, ids: Tensor, party: int, fresh: Tensor, names: RoundNames, learnt_at: Tensor) -> None:
        """The messages of an event, for an audit; the gradient comes with the backward pass."""
        tell = self.listener(ids)
        if tell is None:
            return

        def answered(gradient: Tensor) -> None:
            tell(Message(GRADIENTS, "parties", (), (gradient,), receivers=(party,), round=names))

        tell(Message(EMBEDDINGS, "server", (party,), (fresh.detach(),), round=names))
        learnt_at.register_hook(answered)  # type: ignore[no-untyped-call]  # torch's

    def reached(self, event: Event) -> tuple[bool, bool]:
        """Whether the party learns from this event, and whether the server learns from it."""
        if not event.refresh:
            return False, False
        back = self.faults.at(2 * event.request + 1, self.roster)
        return bool(back.receives[event.party] and back.links[event.party, 0]), True

    def enter_event(self, event: Event) -> None:
        """Count the traffic of the event, and advance the clock to its end."""
        self.counts.most_events = max(self.counts.most_events, event.request + 1)
        self.clock.advance_to(event.end)
        outcome = self.faults.at(2 * event.request, self.roster)
        alone = mask_of([event.party], self.roster.parties)
        for leg in self._event_costs.legs:
            self.books.meter.add(leg, alone & outcome.announced & outcome.sends)
        if event.refresh and self._event_costs.downlink is not None:
            self.books.meter.add(self._event_costs.downlink, alone)


class _Sent(torch.autograd.Function):
    """An embedding as the server has it; its gradient as the party has it."""

    @staticmethod
    def forward(ctx: Any, fresh: Tensor, there: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.back(grads[0]), None, None


def _names(module: AsyncVFL, event: Event) -> RoundNames:
    """The names of what an event draws at both ends: of the party's own request, since it knows no other number."""
    return RoundNames(module.seed, Stage.FIT, event.request)


def _noisy(fresh: Tensor, sigma: float, key: bytes, *names: Name) -> Tensor:
    """Embeddings with secret noise, whose gradient is that of the embeddings.

    The noise depends on the embeddings too: a party that comes back from a checkpoint uploads other embeddings under
    the same names, and the same noise on two values would show their difference. Equal embeddings have equal noise.

    Raises:
        ConfigurationError: for NaN and infinite embeddings.
    """
    h = fresh.detach().double().cpu()
    if not bool(torch.isfinite(h).all()):
        raise ConfigurationError(
            "NaN or infinite embeddings cannot be hidden by noise; clean the data or lower the learning rate"
        )
    step = grid(sigma, 0.0)
    words = keyed_words(secret_bytes(key, 32, "noise", *names, sha256(h.numpy().tobytes()).hexdigest()))
    whole = torch.trunc(h / step).clamp(-(2.0**62), 2.0**62).to(torch.int64)
    whole += torch.from_numpy(rounded_normal(h.numel(), sigma / step, words)).reshape(h.shape)
    sent = (whole.double() * step).to(fresh.dtype).to(fresh.device)
    return sent + (fresh - fresh.detach())  # the difference is zero and has the gradient
