"""CascadeVFL: several active parties hold the labels, and train asynchronously with replicas of one top (CVFL)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, MissingPolicy, StandIn
from lightning_vfl.networks.mlp import MLP, Linear
from lightning_vfl.networks.record_table import LIMIT_BYTES
from lightning_vfl.protocols.build import BottomFactory, TopFactory
from lightning_vfl.protocols.cascade_memory import CascadeMemory, Late
from lightning_vfl.protocols.charging import charge_round
from lightning_vfl.protocols.checks import labels_of, needed_event, refuse_scaler, refuse_several_processes
from lightning_vfl.protocols.event_plans import EventPlan, EventPlanner, Networks
from lightning_vfl.protocols.replicas import Replica, Replicas, refuse_above
from lightning_vfl.protocols.round import RoundVFL, aggregator_notes
from lightning_vfl.protocols.step import Step
from lightning_vfl.protocols.surrogate import half_squares, surrogate
from lightning_vfl.rounds.exchange import contribute, contribute_some
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.schedules.periods import Periods
from lightning_vfl.streams import even_shares, seed_torch
from lightning_vfl.types import Event, RecordSource, Roster, RoundNames, Stage, VerticalBatch, joint_rows
from lightning_vfl.waiting import WaitingRule
from lightning_vfl.wire import Embeddings, Message, ServerView

if TYPE_CHECKING:
    from numpy.typing import NDArray

Variant = Literal["async", "sync", "single", "centralized"]


@dataclass
class Staleness:
    """By how many steps of the collaborator messages were out of date, in one epoch."""

    messages: int = 0
    total: int = 0
    most: int = 0

    def add(self, behind: int) -> None:
        self.messages, self.total, self.most = self.messages + 1, self.total + behind, max(self.most, behind)

    def mean(self) -> float:
        return self.total / self.messages if self.messages else 0.0


@dataclass
class CascadeCounts:
    """What is counted of events.

    Args:
        variant: that of the training; "": before the first fit.
        version: steps of the collaborator.
        seen: active party -> the version that its replica has.
        sent_back: active party -> whether the collaborator's last step for it was sent back.
        begun: events.
        periods: of the busiest active party.
        staleness: of the epoch's messages.
    """

    variant: str = ""
    version: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    sent_back: dict[int, bool] = field(default_factory=dict)
    begun: int = 0
    periods: int = 0
    staleness: Staleness = field(default_factory=Staleness)


class CascadeVFL(RoundVFL):
    r"""Cascade training with labels that several parties hold: CVFL.

    L **active parties** hold disjoint sets of labels (``LabelPartition``; without one, the M parties share them out
    evenly); every party has a bottom, a **collaborator** the global top w_0, and every active party a replica of it.
    Active parties work side by side, each in periods of its own length. At the START of a period it picks a batch of
    its own labelled records, collects the embeddings of all parties, and takes loss and gradients with the replica that
    it was last sent. At the END its messages are delivered: the gradient of an embedding to the bottom it came from,
    which carries it through the Jacobian at its CURRENT parameters, and the top's gradient to the collaborator, which
    steps and sends w_0 back. Nobody waits for other active parties, so messages are out of date by what others have
    done in between; ``train/staleness_mean`` and ``train/staleness_max`` say how many steps the collaborator has taken
    since it sent the replica that a message was taken with.

    An active party minimises F_l = mean loss + λ Σ r(θ_m), r(θ) = ½|θ|², a slow one F_l^q: its message is multiplied by
    c = max(1, q F_l^(q-1)), logged as ``train/amplification``. Slow are those in ``slower`` and the stragglers among
    the active parties that fault models name. Where label counts differ, events weigh N_l L / N.

    One END is one mini-batch is one optimiser step. The loss that is stepped on is a surrogate, whose gradient is what
    the messages say; ``train/loss`` is the mean loss of the batch. An epoch is Σ⌊N_l / B⌋ events (one of
    a party with fewer than B labels).

    Faults: event c makes the requests 2c (collect) and 2c + 1 (deliver) of everybody. The waiting rule closes the
    collection. Under a policy that remembers (``Stale``), the embeddings of those who were late are used from the time
    that they come, and they learn from the gradient of what stood in for them. The active party itself reads
    ``announced`` and ``sends`` of its own (away: an idle period); its connection, and the host, are the collaborator's:
    while these are down bottoms learn and w_0 does not, and its replica stays.

    Guarantee: what an active party sends depends on the labels of others only through parameters. Who does not learn
        from an event keeps parameters and optimiser state. Dropout in a bottom is the same at START and END.
    Not guaranteed: privacy of labels against gradients, which are in the clear; hidden embeddings against the active
        party's own knowledge (its own part of a sum is no secret to it); several processes (refused). Privacy is
        charged at the END, so a fit ends with up to L collections under way that nobody has been charged for.

    Args:
        aggregator: how an active party joins embeddings: any that sends them, hidden or not, to one place.
        bottom: as in ``VFLModule``.
        top: as in ``VFLModule``.
        width: as in ``VFLModule``.
        variant: ``async``; ``sync``: nobody begins a period before the slowest has ended, with the replicas refreshed
            together; ``single``: only party ``alone`` has labels; ``centralized``: all features and labels are in one
            place, nothing is sent, and the same networks are trained by plain mini-batches.
        alone: the party of ``single``.
        slower: active party -> s: it is slower by this share in all it does, its period is 1 / (1 - s) as long.
        q: the exponent of slow active parties, 1 or more.
        decay: λ.
        waiting: when an active party stops waiting for embeddings; None: ``WaitForAll()``.
        missing: what happens about the missing; None: ``Exclude()``.
        limit_bytes: the largest replicas that are kept, L times all parameters.
        settings: those of ``VFLModule``; without ``optimizer`` it is Adam, which undoes most of c.

    Raises:
        ConfigurationError: before training.

    References:
        Xia, Li, Zhang, Wu, Yuan, "A Vertical Federated Learning Framework for Horizontally Partitioned Labels" (CVFL):
        Algorithms 1 to 3, equations 2 and 3, section 5 for the variants. The scan prints the bound below which q does
        not act as q^(1-q); q F^(q-1) = 1 is at F = q^(1/(1-q)).
    """

    def __init__(
        self,
        aggregator: Aggregator,
        bottom: BottomFactory = MLP,
        top: TopFactory = Linear,
        width: int = 64,
        variant: Variant = "async",
        alone: int = 0,
        slower: dict[int, float] | None = None,
        q: float = 1.0,
        decay: float = 1e-3,
        waiting: WaitingRule | None = None,
        missing: MissingPolicy | None = None,
        limit_bytes: float = LIMIT_BYTES,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator, bottom, top, width, waiting, missing, **settings)
        if variant not in get_args(Variant):
            raise ConfigurationError(f"variant '{variant}' is unknown; use {', '.join(get_args(Variant))}")
        if not q >= 1:
            raise ConfigurationError(f"q {q} would hold slow parties back; use 1 or more")
        if not decay >= 0:
            raise ConfigurationError(f"decay {decay} would make parameters grow; use 0 or more")
        for party, share in (slower or {}).items():
            if not 0 <= share < 1:
                raise ConfigurationError(
                    f"slower gives party {party} the share {share}, with which it would never end; use 0 to less than 1"
                )
        if self.active is not None:
            raise ConfigurationError(
                "active names one party with all labels; in CascadeVFL the data say who holds which: leave active out, "
                "and give the data a LabelPartition"
            )
        self._refuse_aggregator(aggregator, self.missing)
        self.variant: Variant = variant
        self.alone = alone
        self.slower = dict(slower or {})
        self.q = q
        self.decay = decay
        self.limit_bytes = limit_bytes
        self._weights: dict[int, float] = {}
        self._plans: dict[int, EventPlan] = {}
        self._memory = CascadeMemory(self.missing)
        self.active_parties: tuple[int, ...] = ()
        self.amplified: frozenset[int] = frozenset()

    def own_books(self) -> CascadeCounts:
        return CascadeCounts()

    @property
    def counts(self) -> CascadeCounts:
        """What is counted of events."""
        counts: CascadeCounts = self.books.own
        return counts

    @staticmethod
    def _refuse_aggregator(aggregator: Aggregator, policy: MissingPolicy) -> None:
        name, missing = type(aggregator).__name__, type(policy).__name__
        if aggregator.form is not Embeddings:
            raise ConfigurationError(
                f"{name} computes on shares of records and models, and gives no party an embedding's gradient to carry "
                "on; use Concat, Sum, Mean, MaskedSum or PoissonBinomial"
            )
        somebody, nobody = Roster.singles(3, active=0), Roster.singles(3)
        if not aggregator.visible and aggregator.out_width(1, somebody) != aggregator.out_width(1, nobody):
            raise ConfigurationError(
                f"{name}'s sums are made for one active party, and here they take turns; use layout: sum"
            )
        if policy.padding is not None:
            raise ConfigurationError(f"{missing} pads behind a norm, and CascadeVFL has none; use Exclude")
        if policy.stand_in is not None and not aggregator.in_the_clear:
            raise ConfigurationError(
                f"missing: {missing} stands in for single embeddings, which {name} does not send as they are; "
                "use Exclude or Skip"
            )

    # ---- before training

    def configure_model(self) -> None:
        super().configure_model()
        if self.roster.shared:
            raise ConfigurationError(
                f"CascadeVFL has no rule for the bottom that parties {list(self.roster.shared[0])} share; use SplitVFL"
            )
        if self.variant != "centralized" and any(layer.running_mean is not None for layer in _norms(self.top)):
            raise ConfigurationError(
                "the top's batch norm would learn its running statistics with the active parties and never with the "
                "collaborator; use LayerNorm in the top, or no norm"
            )
        legs = self.aggregator.legs(1, self.embedding_widths, (), self.roster)
        if legs[0].to != "server":
            raise ConfigurationError(
                f"the shares of {type(self.aggregator).__name__} hide embeddings from who joins them, but here that is "
                "a party, and holds shares as well; use Concat, Sum, Mean, MaskedSum or PoissonBinomial"
            )
        if not self.aggregator.visible and self.roster.parties < 3:
            raise ConfigurationError(
                "of a sum of two parties an active party, which knows its own part, would read the other's embedding; "
                "use at least 3 parties"
            )

    def schedule(self, records: RecordSource, batch_size: int, seed: int, drop_last: bool = False) -> Periods:
        """The ends of everybody's periods; whole batches only, with and without ``drop_last``."""
        shares = self._shares(records)
        if batch_size > (most := max(map(len, shares.values()))):
            raise ConfigurationError(
                f"batch_size {batch_size} exceeds the {most} labels of the active party that holds most; lower it to "
                f"at most {most}"
            )
        total = sum(map(len, shares.values()))
        self._weights = {party: len(own) * len(shares) / total for party, own in shares.items()}
        self._plans.clear()
        self.active_parties = tuple(sorted(shares))
        self.planner = self._planner()
        everywhere = None if self.aggregator.everybody_called else records.present

        def seconds(number: int, party: int, ids: "NDArray[np.int64]") -> float:
            if self.variant == "centralized":
                return self._seconds_in_one_place(len(ids))
            held = None if everywhere is None else everywhere.index_select(0, torch.from_numpy(ids)).any(0)
            plan = self._plans[number] = self.planner.plan(number, party, len(ids), held)
            return plan.round.seconds

        return Periods(
            shares,
            batch_size,
            seed,
            seconds,
            self.variant == "sync",
            self.clock.seconds,  # a second fit goes on where the first has ended
            self.counts.begun,
            self.counts.periods,
        )

    def _planner(self) -> EventPlanner:
        slow = self.faults.stragglers(self.roster)
        slowed = {m for m in self.active_parties if self.slower.get(m, 0.0) > 0 or bool(slow[m])}
        self.amplified = frozenset(slowed if self.q > 1 and self.variant != "centralized" else ())
        bottoms, top = self.costs.work()
        size = sum(p.numel() for p in self.top.parameters())
        return EventPlanner(
            self.aggregator,
            self.roster,
            Networks(bottoms, top, size, self.embedding_widths),
            self.clock,
            self.faults,
            self.plan,
            self.slower,
            self.amplified,
            self.missing.memory is not None,
        )

    def _shares(self, records: RecordSource) -> "dict[int, NDArray[np.int64]]":
        """Active party -> positions of the records whose labels it learns from."""
        if records.label_holders is None:
            holders = even_shares(len(records), self.roster.parties, self.seed, "labels")
        else:
            holders = records.label_holders.cpu().numpy()
        shares = {int(party): np.flatnonzero(holders == party) for party in np.unique(holders[holders >= 0])}
        if not shares:
            raise ConfigurationError(
                f"none of the {len(records)} training records has a label that a party holds; share their labels out"
            )
        if self.variant == "centralized":
            return {0: np.flatnonzero(holders >= 0)}
        strangers = sorted(party for party in self.slower if party not in shares)
        if strangers:
            raise ConfigurationError(
                f"slower names party {strangers[0]}, but labels are held by parties {sorted(shares)}; name one of these"
            )
        if self.variant == "single":
            if self.alone not in shares:
                raise ConfigurationError(
                    f"alone names party {self.alone}, but labels are held by parties {sorted(shares)}; name one of "
                    "these"
                )
            return {self.alone: shares[self.alone]}
        return shares

    def on_fit_start(self) -> None:
        """Refuse what cannot train, then make room for the replicas."""
        refuse_several_processes(self.joint, "CascadeVFL serves one event at a time in one process; use devices: 1")
        refuse_scaler(self.trainer, "messages are taken before a loss could be scaled")
        trained = self.counts.variant
        if self.trainer.ckpt_path is not None and trained not in ("", self.variant):
            raise ConfigurationError(
                f"the checkpoint was trained with variant: {trained}, this model has {self.variant}; resume with the "
                "same"
            )
        if self.trainer.reload_dataloaders_every_n_epochs:  # type: ignore[attr-defined]  # set in Trainer.__init__
            raise ConfigurationError(
                "reload_dataloaders_every_n_epochs would begin all periods anew while messages are under way; leave it "
                "at 0"
            )
        self.counts.variant = self.variant
        self.memory.start_over()
        super().on_fit_start()
        if self.variant != "centralized":
            parties = sorted(self._shares(self.datamodule.records("train")))
            size = refuse_above(self.limit_bytes, len(parties), self.bottoms, self.top)
            rank_zero_info(f"the replicas of {len(parties)} active parties take {size / 1e6:,.1f} MB")

    @property
    def memory(self) -> CascadeMemory:
        return self._memory

    def on_train_start(self) -> None:
        """Everybody begins with the networks as they are, or as they were when its period began."""
        super().on_train_start()
        parties = () if self.variant == "centralized" else self.active_parties
        if not self.memory.begin(Replicas(parties, self.bottoms, self.top)):
            self.counts.seen = dict.fromkeys(parties, self.counts.version)
            self.counts.sent_back.clear()

    def on_train_end(self) -> None:
        """A later fit counts its first epoch anew."""
        super().on_train_end()
        self.counts.staleness = Staleness()

    def readers(self) -> tuple[int | None, ...]:
        return () if self.variant == "centralized" else self.active_parties

    # ---- one event

    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """The END of a period."""
        event, counts = needed_event(batch, self), self.counts
        counts.begun = max(counts.begun, event.number + 1)
        counts.periods = max(counts.periods, event.request + 1)
        self.clock.advance_to(event.end)
        if self.variant == "centralized":
            return self._step_in_one_place(batch)
        party, rows = event.party, len(batch.record_ids)
        plan = self._plans.pop(event.number, None) or self.planner.plan(event.number, party, rows, self._held(batch))
        self._enter(plan, party, rows, names)
        if self.trainer.is_last_batch:
            self._log_staleness()
        if plan.there:
            charge_round(self, plan.round, batch, party)
        begin = partial(self._begin_periods, event.refresh)
        if not plan.changes:
            if plan.round.late:  # what comes late is remembered all the same
                self._collect(self.memory.replicas.of[party], batch, event, plan.round)
            return Step(None, after_optimizer=begin)
        values, gradients, scale, loss, notes = self._message(batch, event, names, plan)
        learning = [p for m in plan.round.learning for p in self.bottoms.parties[m].parameters()]
        stepped = surrogate(values, gradients, learning, self.decay, scale * self._weights[party])
        if party in self.amplified:
            notes["train/amplification"] = scale
        return Step(stepped, plan.round.learning, notes, logged=loss, after_optimizer=begin)

    def _message(
        self, batch: VerticalBatch, event: Event, names: RoundNames, plan: EventPlan
    ) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, dict[str, float | Tensor]]:
        """What the messages are about, the gradients in them, c, the batch's loss, and what is logged beside it.

        The first half is the active party's, with everything as it was at START; the second is the receivers', now.
        """
        replica, learning = self.memory.replicas.of[event.party], plan.round.learning
        leaves, computed = self._collect(replica, batch, event, plan.round)
        roster = self.planner.seen_from(event.party)
        value, exchange = self.exchange(batch, Embeddings(leaves), names, plan.round.roll, Exclude(), roster)
        loss = self.objective.loss(replica.top(self.join(value, exchange.aggregate.columns)), labels_of(batch))
        wanted = [leaves[m] for m in learning] + (_trained(replica.top) if plan.steps else [])
        gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
        scale = self._amplification(loss.detach(), replica) if event.party in self.amplified else torch.ones_like(loss)

        seed_torch(
            self.device, self.seed, "networks", names.stage, names.round, self.global_rank
        )  # dropout as at START
        now = self.bottoms.some(batch.features, computed)  # the same ones: their masks are drawn one after the other
        if batch.present is not None and not self.aggregator.in_the_clear:  # zeros stood for what nobody holds
            for i, m in enumerate(learning):
                gradients[i] = gradients[i] * batch.present[:, m, None]
        values = [now[m] for m in learning] + (_trained(self.top) if plan.steps else [])
        return values, gradients, scale.detach(), loss.detach(), {**aggregator_notes(exchange)}

    def _amplification(self, loss: Tensor, replica: Replica) -> Tensor:
        """The factor c = max(1, q F^(q-1)), with the parameters that the embeddings came from."""
        objective = loss + self.decay * half_squares(list(replica.bottoms.parameters()))
        return (self.q * objective.clamp(min=0.0) ** (self.q - 1)).clamp(min=1.0)

    def _collect(
        self, replica: Replica, batch: VerticalBatch, event: Event, plan: RoundPlan
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The embeddings (B, D_m) that the active party joins, as leaves to take gradients of, and who computed any."""
        computed = tuple(range(self.roster.parties))
        if self.aggregator.in_the_clear:  # embeddings that nobody reads are not computed
            computed = tuple(sorted({*plan.roll.included_parties, *plan.late}))
        with torch.no_grad():
            if len(computed) < self.roster.parties:
                h = contribute_some(replica.bottoms, batch.features, computed, self.embedding_widths).leaves
            else:
                hidden = None if self.aggregator.in_the_clear else batch.present
                h = contribute(Embeddings, replica.bottoms, batch.features, hidden).leaves
        if self.missing.stand_in is not None:
            h = self._stand_in(self.missing.stand_in, h, batch, event, plan)
        return tuple(x.detach().requires_grad_() for x in h), computed

    def _stand_in(
        self, stand_in: StandIn, h: tuple[Tensor, ...], batch: VerticalBatch, event: Event, plan: RoundPlan
    ) -> tuple[Tensor, ...]:
        """The policy's stand-ins for those who were not in time; what was late is remembered from when it comes."""
        self.memory.receive(event.party, event.start)
        for party, after in plan.late.items():
            self.memory.send(event.party, Late(event.start + after, party, batch.record_ids, h[party].detach()))
        roll, names = plan.roll, RoundNames(self.seed, Stage.FIT, event.number)
        view = ServerView(names, self.roster, joint_rows(batch), roll, self.embedding_widths)
        arrived = tuple(h[m] for m in roll.included_parties)
        filled = stand_in.fill(Message("embeddings", "server", roll.included_parties, arrived), view)
        pieces = dict(zip(filled.senders, filled.pieces, strict=True))
        return tuple(pieces[m] if m in pieces else torch.zeros_like(own) for m, own in enumerate(h))

    def _step_in_one_place(self, batch: VerticalBatch) -> Step:
        """A mini-batch where there is nobody to send anything to."""
        self.books.mini_batches += self.roster.parties
        loss = self.rank_loss(self.output_in_the_clear(batch), batch)
        return Step(loss + self.decay * half_squares(list(self.bottoms.parameters())), logged=loss)

    def _seconds_in_one_place(self, rows: int) -> float:
        bottoms, top = self.costs.work()
        return self.clock.serving(sum(map(sum, (*bottoms, top))) * rows)

    def _begin_periods(self, parties: tuple[int, ...]) -> None:
        """After the step, whoever begins a period takes note of everybody's parameters."""
        for party in parties:
            returned = self.counts.sent_back.pop(party, False)
            self.memory.replicas.refresh(party, returned)
            if returned:
                self.counts.seen[party] = self.counts.version

    # ---- books

    def _enter(self, plan: EventPlan, party: int, rows: int, names: RoundNames) -> None:
        """Enter what the period has sent."""
        self.counts.sent_back[party] = plan.returns
        if not plan.there:
            return
        meter, round = self.books.meter, plan.round
        if round.roll.called.any():
            self.enter_opening(rows, names, round.roll.called, self.planner.seen_from(party))
        if not self.aggregator.opens:
            meter.add(self.planner.ids(party, rows))
        self.books.enter_traffic(round, self.planner.costs(party, rows))
        if round.skipped:
            return
        up, down = self.planner.top_legs(party)
        meter.add(up)
        if plan.steps:
            meter.add(down)
            self.counts.staleness.add(self.counts.version - self.counts.seen[party])
            self.counts.version += 1

    def _log_staleness(self) -> None:
        """How stale the messages of the epoch were."""
        staleness = self.counts.staleness
        figures = {"train/staleness_mean": staleness.mean(), "train/staleness_max": float(staleness.most)}
        self.log_dict(figures, on_step=False, on_epoch=True, batch_size=1)
        self.counts.staleness = Staleness()

    def protection(self, uploads: int) -> str | None:
        if self.aggregator.visible or self.variant == "centralized":
            return super().protection(uploads)
        others = self.aggregator.among(Roster.singles(self.roster.parties - 1))
        return f"of the other parties' sum, as who joins it knows its own part: {others.protection(uploads)}"

    def requests_made(self) -> int:
        """Two for each event that has begun."""
        return 2 * (self.counts.begun + len(self.active_parties))


def _trained(network: nn.Module) -> list[Tensor]:
    return [p for p in network.parameters() if p.requires_grad]


def _norms(network: nn.Module) -> Iterator[nn.modules.batchnorm._NormBase]:
    return (layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._NormBase))
