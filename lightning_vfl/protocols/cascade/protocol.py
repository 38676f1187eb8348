"""CascadeVFL: several active parties hold the labels and train asynchronously with replicas of one top (CVFL)."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, final, get_args

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import EMBEDDINGS, wire_of
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.checks import one_of, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, MissingPolicy, StandIn, completed
from lightning_vfl.networks.record_table import LIMIT_BYTES
from lightning_vfl.objectives import mean_loss
from lightning_vfl.protocols.accounts.charging import charge
from lightning_vfl.protocols.cascade.memory import CascadeMemory, Late, Replica, Replicas, refuse_above
from lightning_vfl.protocols.cascade.plans import IDS, EventPlan, EventPlanner
from lightning_vfl.protocols.cascade.surrogate import half_squares, surrogate
from lightning_vfl.protocols.checks import needed_event, refuse_scaler
from lightning_vfl.protocols.columns_told import Read
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.message_rounds import aggregator_notes
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.exchange import contribute, contribute_some
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.schedules.periods import Periods
from lightning_vfl.streams import even_shares
from lightning_vfl.support import Part, Unsupported
from lightning_vfl.types import (
    NO_RECORDS,
    Event,
    Parties,
    RecordSource,
    Roster,
    RoundNames,
    Seat,
    Stage,
    Tensors,
    VerticalBatch,
    joint_rows,
)
from lightning_vfl.wire import Embeddings, Leg, Message, ServerView, Tap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Shares = dict[int, NDArray[np.int64]]

Variant = Literal["async", "sync", "single", "centralized"]


@dataclass
class Staleness:
    """The staleness of an epoch's messages, in steps of the collaborator."""

    messages: int = 0
    total: int = 0
    most: int = 0

    def add(self, behind: int) -> None:
        """Count a message that is so many steps behind."""
        self.messages += 1
        self.total += behind
        self.most = max(self.most, behind)


@dataclass
class CascadeCounts:
    """The event counts of CascadeVFL.

    Args:
        variant: the variant of the training; "": before the first fit.
        version: the number of steps of the collaborator.
        seen: active party -> the version of its replica.
        sent_back: active party -> whether the collaborator has sent back its last step for this party.
        begun: the number of events that have begun.
        periods: the number of periods of the active party with most periods.
        staleness: the staleness of the epoch's messages.
    """

    variant: str = ""
    version: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    sent_back: dict[int, bool] = field(default_factory=dict)
    begun: int = 0
    periods: int = 0
    staleness: Staleness = field(default_factory=Staleness)


class EventMessage(NamedTuple):
    """The messages of an active party at the END, in the form in which the receivers use them.

    Args:
        values: the tensors to which the gradients belong, computed with the receivers' current parameters: embeddings
            (B, D_m), and the parameters of the top.
        gradients: the gradients of the values, of the same shapes, constants.
        amplification: c, a scalar.
        loss: the mean loss of the batch, a scalar.
        notes: further values to log, by name.
    """

    values: list[Tensor]
    gradients: list[Tensor]
    amplification: Tensor
    loss: Tensor
    notes: dict[str, float | Tensor]


class CascadeVFL(VFLModule):
    r"""Cascade training with several label holders: CVFL.

    L **active parties** hold disjoint sets of labels (``LabelPartition``; without one, the labels are split evenly
    among the M parties). Every party has a bottom. A **collaborator** has the global top w_0, and every active party
    has a replica of w_0. The active parties work in parallel, each in periods of its own length. At the START of a
    period, the active party picks a batch of its own labelled records, collects the embeddings of all parties, and
    computes loss and gradients with its latest replica. At the END, its messages are delivered. Each bottom receives
    the gradient of its embedding and multiplies it by the Jacobian at its CURRENT parameters. The collaborator receives
    the top's gradient, steps, and sends w_0 back. Active parties do not wait for each other, so messages are stale:
    ``train/staleness_mean`` and ``train/staleness_max`` count the collaborator's steps since it sent the replica with
    which a message was computed.

    An active party minimises F_l = mean loss + λ Σ r(θ_m), r(θ) = ½|θ|². A slow active party minimises F_l^q: its
    message is multiplied by c = max(1, q F_l^(q-1)), logged as ``train/amplification``. Slow active parties are those
    in ``slower`` and those that a fault model names as stragglers. If label counts differ, an event has the weight
    N_l L / N.

    One END uses one mini-batch and makes one optimiser step. The optimiser steps on a surrogate loss, whose gradient
    equals the messages; ``train/loss`` is the mean loss of the batch. An epoch has Σ⌊N_l / B⌋ events (one event for a
    party with fewer than B labels).

    Faults: event c makes the requests 2c (collect) and 2c + 1 (deliver) of all parties. The waiting rule ends the
    collection. Under a policy with memory (``Stale``), a late embedding is used from the time of its arrival, and a
    late party learns from the gradient of its replacement. If the active party's own ``announced`` or ``sends`` is
    false, its period is idle. Its connection and the host are those to the collaborator: while one of these is down,
    the bottoms learn, but w_0 and the replica do not change.

    In a federation of processes, events run one after the other in the order of virtual time, each made by all parties
    or given up; a lost party is waited for.

    Guarantee: an active party's messages depend on the labels of other parties only through parameters. Parties that do
        not learn from an event keep their parameters and optimiser state. Dropout in a bottom is the same at START and
        END.
    Not guaranteed: privacy of labels, because gradients are sent in the clear. Privacy of embeddings from the
        collaborator: the gradient of the top gives it those of small batches, and, if it sends a top of its own, those
        of large batches with their labels. Hidden embeddings are not hidden from
        what the active party knows (it knows its own part of a sum). Several processes (refused). Privacy is charged at
        the END, so a fit ends with up to L collections in progress that are not charged.

    Args:
        aggregator: joins the embeddings at an active party: any aggregator that sends embeddings, hidden or not, to one
            place.
        variant: ``async``; ``sync``: all periods begin together, after the slowest has ended, and all replicas are
            refreshed together; ``single``: only the labels of party ``alone`` are used; ``centralized``: all features
            and labels are in one place, no message is sent, and the same networks are trained by plain mini-batches.
        alone: the party of ``single``.
        slower: active party -> s, the share by which it is slower in computing and sending; its period is 1 / (1 - s)
            times as long.
        q: the exponent of slow active parties, at least 1.
        decay: λ.
        limit_bytes: the largest allowed size of all replicas, L times all parameters.
        settings: settings of ``VFLModule``; ``waiting`` says when an active party stops waiting for embeddings. The
            default ``optimizer`` is Adam, which cancels most of the effect of c.

    Raises:
        ConfigurationError: before training.

    References:
        Xia, Li, Zhang, Wu, Yuan, "A Vertical Federated Learning Framework for Horizontally Partitioned Labels" (CVFL):
        Algorithms 1 to 3, equations 2 and 3, section 5 for the variants. The paper's scan gives q^(1-q) as the bound on
        F below which q has no effect; q F^(q-1) = 1 holds at F = q^(1/(1-q)).
    """

    unsupported: ClassVar[Unsupported] = {
        Part.GROUPS: "an active party sends gradients to each bottom; use SplitVFL",
        Part.COMPRESSOR: "an active party reads whole embeddings; use SplitVFL or AsyncVFL",
        Part.LOCAL_UPDATE: "bottoms learn where their replicas are; use SplitVFL or AsyncVFL",
        Part.HALVES: "an active party has the whole top; use SplitVFL",
        Part.PROCESSES: "it serves one event at a time in one process; use devices: 1",
        Part.FEDERATION: None,
    }
    top_size: int
    sends_labels = False
    names_draws = False  # an event has the draws of its number, not of its round
    _own_top: nn.Module
    labels_everywhere = True  # of each record at its holder; between processes, which share no labels, at every party

    def __init__(
        self,
        aggregator: Aggregator,
        *,
        variant: Variant = "async",
        alone: int = 0,
        slower: dict[int, float] | None = None,
        q: float = 1.0,
        decay: float = 1e-3,
        limit_bytes: float = LIMIT_BYTES,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator, **settings)
        within("q", q, 1, advice="a smaller one would weaken the messages of slow parties")
        within("decay", decay, 0, advice="a smaller one would make parameters grow")
        for party, share in (slower or {}).items():
            within(f"slower of party {party}", share, 0, below=1)
        if self.active is not None:
            raise ConfigurationError(
                "active names one party with all labels, but CascadeVFL takes the label holders from the data; leave "
                "out active, and give the data a LabelPartition"
            )
        _refuse_parts(aggregator, self.missing)
        self.variant = one_of("variant", variant, get_args(Variant))
        self.alone = alone
        self.distributed = variant != "centralized"  # the active parties are apart, and messages are sent
        self.slower = dict(slower or {})
        self.q = q
        self.decay = decay
        self.limit_bytes = limit_bytes
        self._weights: dict[int, float] = {}
        self._plans: dict[int, EventPlan] = {}
        self._memory = CascadeMemory(self.missing)
        self.active_parties: Parties = ()
        self.amplified: frozenset[int] = frozenset()

    def own_books(self) -> CascadeCounts:
        return CascadeCounts()

    @property
    def counts(self) -> CascadeCounts:
        """The event counts."""
        counts: CascadeCounts = self.books.own
        return counts

    # ---- before training

    def build(self) -> None:
        super().build()
        if self.distributed:
            _refuse_running_statistics(self.top)
        _refuse_for_parties(self.aggregator, self.costs.legs(1)[0], self.roster.parties)
        self.top_size = sum(parameter.numel() for parameter in self.top.parameters())

    def keep_own(self, seat: Seat) -> None:
        self.__dict__["_own_top"] = self.top  # not registered: the collaborator has the one that learns
        super().keep_own(seat)

    def schedule(self, records: RecordSource, batch_size: int, seed: int, drop_last: bool = False) -> Periods:
        """The ENDs of all active parties' periods; only whole batches, with and without ``drop_last``."""
        shares = self._shares(records)
        most = max(map(len, shares.values()))
        within("batch_size", batch_size, 1, most, whole=True, advice=f"no active party holds more than {most} labels")
        total = sum(map(len, shares.values()))
        self._weights = {party: len(own) * len(shares) / total for party, own in shares.items()}
        self._plans.clear()
        self.active_parties = tuple(sorted(shares))
        slow = self.faults.stragglers(self.roster)
        slowed = [m for m in self.active_parties if self.slower.get(m, 0.0) > 0 or bool(slow[m])]
        self.amplified = frozenset(slowed if self.q > 1 and self.distributed else ())
        self.planner = EventPlanner(self, self.slower, self.amplified, self.top_size)
        everywhere = None if self.wire.traits.everybody_called else records.present

        def seconds(number: int, party: int, ids: "NDArray[np.int64]") -> float:
            if not self.distributed:
                bottoms, top = self.costs.work
                return self.clock.serving(sum(map(sum, (*bottoms, top))) * len(ids))
            held = None if everywhere is None else everywhere.index_select(0, torch.from_numpy(ids)).any(0)
            plan = self._plans[number] = self.planner.plan(number, party, len(ids), held)
            return plan.round.seconds

        return Periods(
            shares,
            batch_size,
            seed,
            seconds,
            self.variant == "sync",
            self.clock.seconds,  # a second fit starts where the first has ended
            self.counts.begun,
            self.counts.periods,
        )

    def _shares(self, records: RecordSource) -> "Shares":
        """Active party -> positions of the records with the labels that it trains on."""
        if records.label_holders is None:
            holders = even_shares(len(records), self.roster.parties, self.seed, "labels")
        else:
            holders = records.label_holders.cpu().numpy()
        shares = {int(party): np.flatnonzero(holders == party) for party in np.unique(holders[holders >= 0])}
        if not shares:
            raise ConfigurationError(
                f"no party holds a label of the {len(records)} training records; give the data a LabelPartition that "
                "assigns labels"
            )
        strangers = sorted(party for party in self.slower if party not in shares)
        if strangers and self.distributed:
            raise ConfigurationError(
                f"slower names party {strangers[0]}, but labels are held by parties {sorted(shares)}; name one of these"
            )
        if self.variant == "centralized":
            return {0: np.sort(np.concatenate(list(shares.values())))}
        if self.variant != "single":
            return shares
        if self.alone not in shares:
            raise ConfigurationError(
                f"alone names party {self.alone}, but labels are held by parties {sorted(shares)}; name one of these"
            )
        return {self.alone: shares[self.alone]}

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings, then make the replicas."""
        refuse_scaler(self.trainer, "a loss cannot be scaled, because messages are computed before the loss")
        trained = self.counts.variant
        if self.trainer.ckpt_path is not None and trained not in ("", self.variant):
            raise ConfigurationError(
                f"the checkpoint was trained with variant: {trained}, but this model has {self.variant}; resume "
                "with the same variant"
            )
        if self.trainer.reload_dataloaders_every_n_epochs:  # type: ignore[attr-defined]  # set in Trainer.__init__
            raise ConfigurationError(
                "reload_dataloaders_every_n_epochs must be 0, because a new loader would restart all periods while "
                "messages are in transit"
            )
        self.counts.variant = self.variant
        self.memory.start_over()
        super().on_fit_start()
        if self.distributed:
            parties = sorted(self._shares(self.datamodule.records("train")))
            size = refuse_above(self.limit_bytes, len(parties), self.bottoms, self.top)
            rank_zero_info(f"the replicas of {len(parties)} active parties take {size / 1e6:,.1f} MB")

    @property
    def memory(self) -> CascadeMemory:
        return self._memory

    @toolkit_hook
    def on_train_start(self) -> None:
        """Give every active party a replica of the current networks, or the replica of a checkpoint."""
        super().on_train_start()
        parties = self.active_parties if self.distributed else ()
        replicas = Replicas(parties, self.bottoms, self.top)
        if self.owner is not None and self.owner in parties:  # it is told the numbers of the top in each event
            empty = any(parameter.is_meta for parameter in self._own_top.parameters())
            own = self._own_top.to_empty(device=self.device) if empty else self._own_top.to(self.device)
            replicas.of[self.owner].top = own
        if not self.memory.begin(replicas):
            self.counts.seen = dict.fromkeys(parties, self.counts.version)
            self.counts.sent_back.clear()

    @toolkit_hook
    def on_train_end(self) -> None:
        """Reset the epoch's counts: a later fit starts its first epoch from zero."""
        super().on_train_end()
        self.counts.staleness = Staleness()

    def joiners(self) -> tuple[int | None, ...]:
        return self.active_parties if self.distributed else ()

    # ---- one event

    @final
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """Run the END of a period."""
        event = needed_event(batch, self)
        if not self.distributed:
            self._begin(event)
            return self._step_in_one_place(batch)
        party = event.party
        plan = self.begin(batch)
        if self.repeats_given_up(names):
            return self.give_up(event, names)
        self.enter(plan, event, len(batch.record_ids), names)
        if plan.there:
            charge(self, plan.round.roll, plan.round.sent[0], batch, party)
        after = partial(self.end, event, names, plan.steps)
        if not plan.changes:
            if plan.round.late:  # late embeddings are stored in any case
                self.collect(self.memory.replicas.of[party], batch, event, plan.round)
            return Step(None, after_optimizer=after)
        message = self.send_message(batch, event, names, plan)
        if self.tap is not None:
            self._tell(self.tap, party, batch.record_ids, names, plan, message)
        learning = [p for m in plan.round.learning for p in self.memory.replicas.live.party_parameters[m]]
        scale = message.amplification * self._weights[party]
        stepped = surrogate(message.loss, message.values, message.gradients, learning, self.decay, scale)
        if party in self.amplified:
            message.notes["train/amplification"] = message.amplification
        return Step(stepped, plan.round.learning, message.notes, after_optimizer=after)

    def _begin(self, event: Event) -> None:
        self.name_draws(RoundNames(self.seed, Stage.FIT, event.number))
        counts = self.counts
        counts.begun = max(counts.begun, event.number + 1)
        counts.periods = max(counts.periods, event.request + 1)
        self.clock.advance_to(event.end)

    def begin(self, batch: VerticalBatch) -> EventPlan:
        """Count an event; its plan."""
        event = needed_event(batch, self)
        self._begin(event)
        made = self._plans.pop(event.number, None)
        return made or self.planner.plan(event.number, event.party, len(batch.record_ids), self._held(batch))

    def enter(self, plan: EventPlan, event: Event, rows: int, names: RoundNames) -> None:
        """Count the traffic of a period, and log the staleness of the epoch's messages at its end."""
        self._enter(plan, event.party, rows, names)
        if self.trainer.is_last_batch:
            self._log_staleness()

    def give_up(self, event: Event, names: RoundNames) -> Step:
        """An event between processes in which a party was lost: nobody learns, and the period begins anew."""
        self.counts.sent_back[event.party] = False
        if self.trainer.is_last_batch:
            self._log_staleness()
        return Step(None, after_optimizer=partial(self.end, event, names, False))

    def surrogate(self, party: int, loss: Tensor, values: list[Tensor], gradients: list[Tensor], own: bool) -> Tensor:
        """The loss of an event of ``party``, in the process of the server or (``own``) of a party that learns."""
        learning = list(self.bottoms.parameters()) if own else []
        return surrogate(loss, values, gradients, learning, self.decay, loss.new_tensor(self._weights[party]))

    def _step_in_one_place(self, batch: VerticalBatch) -> Step:
        """Train on a mini-batch without messages (``centralized``)."""
        self.books.mini_batches += self.roster.parties
        loss = self.rank_loss(self.output_in_the_clear(batch), batch)
        return Step(loss + self.decay * half_squares(list(self.bottoms.parameters())), logged=loss)

    def end(self, event: Event, names: RoundNames, steps: bool) -> None:
        """After the step, refresh the replicas of the parties that begin a period; an audit hears the new top."""
        for party in event.refresh:
            returned = self.counts.sent_back.pop(party, False)
            self.memory.replicas.refresh(party, returned and self.owner is None)  # a party is told the top
            if returned:
                self.counts.seen[party] = self.counts.version
        new = [parameter.detach().flatten() for parameter in self.top.parameters()]
        if self.tap is not None and steps and new:
            back = Message("top", "parties", (), (torch.cat(new),), receivers=(event.party,), round=names)
            self.tap.sent(back, NO_RECORDS)

    # ---- the END of a period

    def send_message(self, batch: VerticalBatch, event: Event, names: RoundNames, plan: EventPlan) -> EventMessage:
        """Compute the messages of an event's active party.

        The first half is the computation of the active party, with all parameters as at START. The second half is the
        computation of the receivers, with their current parameters.
        """
        replicas = self.memory.replicas
        replica = replicas.of[event.party]
        learning = plan.round.learning
        # Algorithm 1, at START: with the replica of then
        replica.bottoms.stream = self.bottoms.stream  # dropout of START is that of END
        replica.bottoms.keys = self.bottoms.keys
        leaves, computed = self.collect(replica, batch, event, plan.round)
        gradients, factor, loss, notes = self.differentiate(leaves, batch, event, names, plan)
        # Algorithm 2, at END: with the parameters of now, whose Jacobians the gradients are multiplied by
        embeddings = self.bottoms.some(batch.features, computed)
        if batch.present is not None and self.aggregator.wire is not None:  # unheld rows were zeros
            for place, party in enumerate(learning):
                gradients[place] = gradients[place] * batch.present[:, party, None]
        values = [embeddings[party] for party in learning]
        if plan.steps:
            values += trained(replicas.live)
        return EventMessage(values, gradients, factor, loss, notes)

    def differentiate(
        self, leaves: Tensors, batch: VerticalBatch, event: Event, names: RoundNames, plan: EventPlan
    ) -> tuple[list[Tensor], Tensor, Tensor, dict[str, float | Tensor]]:
        """What the active party computes from the embeddings of all parties, with its replica of the top.

        Returns:
            The gradients of the embeddings of those that learn and of the top's parameters, the factor c, the loss, and
            values to log.
        """
        replica = self.memory.replicas.of[event.party]
        roll = plan.round.roll
        roster = self.roster.joined_by(event.party)
        value, exchange = self.exchange(batch, Embeddings(leaves), names, roll, Exclude(), roster)
        self._seed_top(self.device, event.party, "replica")
        output = replica.top(self.join(value, self.columns_from(roll)))
        loss = mean_loss(self.objective, output, batch)
        wanted = [leaves[party] for party in plan.round.learning]
        if plan.steps:
            wanted += trained(replica)
        gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
        loss = loss.detach()
        amplifies = event.party in self.amplified
        factor = self._amplification(loss, replica) if amplifies else torch.ones_like(loss)
        return gradients, factor.detach(), loss, {**aggregator_notes(exchange)}

    def collect(self, replica: Replica, batch: VerticalBatch, event: Event, plan: RoundPlan) -> tuple[Tensors, Parties]:
        """The embeddings (B, D_m) that the active party joins, as leaves with gradients, and the parties that ran."""
        in_the_clear = self.aggregator.wire is None
        everybody = tuple(range(self.roster.parties))
        computed = everybody
        if in_the_clear:  # only embeddings that are read are computed
            computed = tuple(sorted({*plan.roll.included_parties, *plan.late}))
        with torch.no_grad():
            if len(computed) < len(everybody):
                h = contribute_some(replica.bottoms, batch.features, computed, self.embedding_widths).leaves
            else:
                hidden = None if in_the_clear else batch.present
                h = contribute(Embeddings, replica.bottoms, batch.features, hidden).leaves
        stand_in = self.missing.stand_in
        if stand_in is not None:
            h = self._fill(stand_in, h, batch, event, plan)
        return tuple(x.detach().requires_grad_() for x in h), computed

    def _fill(
        self,
        stand_in: StandIn,
        h: Tensors,
        batch: VerticalBatch,
        event: Event,
        plan: RoundPlan,
    ) -> Tensors:
        """Replace missing embeddings by the policy; late ones are stored for use from the time of their arrival."""
        self.memory.receive(event.party, event.start)
        for party, after in plan.late.items():
            arrival = event.start + after
            self.memory.send(event.party, Late(arrival, party, batch.record_ids, h[party].detach()))
        roll = plan.roll
        senders = roll.included_parties
        names = RoundNames(self.seed, Stage.FIT, event.number)
        view = ServerView(names, self.roster, joint_rows(batch), roll, self.embedding_widths)
        arrived = Message(EMBEDDINGS, "server", senders, tuple(h[party] for party in senders))
        return completed(stand_in, arrived, h, view)

    def _amplification(self, loss: Tensor, replica: Replica) -> Tensor:
        """The factor c = max(1, q F^(q-1)), with the parameters that computed the embeddings."""
        # F = mean loss + λ Σ r(θ_m); a slow party minimises F^q, whose slope by F is q F^(q-1)
        objective = loss + self.decay * half_squares(replica.bottom_parameters)
        slope = self.q * objective.clamp(min=0.0) ** (self.q - 1)
        return slope.clamp(min=1.0)

    def _tell(
        self, tap: Tap, party: int, ids: Tensor, names: RoundNames, plan: EventPlan, message: EventMessage
    ) -> None:
        """Tell an audit what the active party sends besides embeddings and their gradients."""
        learning = tuple(plan.round.learning)
        tell = partial(tap.sent, ids=ids, at=party)
        if self.aggregator.opening is None:
            tell(Message(IDS, "peers", (party,), (ids.expand(self.roster.parties, -1),), round=names))
        if party in self.amplified:  # Algorithm 1, lines 8 to 10
            bottoms = self.memory.replicas.of[party].bottoms.parties
            senders = tuple(other for other in range(self.roster.parties) if other != party)
            of_senders = (list(bottoms[sender].parameters()) for sender in senders)
            sums = tuple(half_squares(parameters).detach().reshape(1) for parameters in of_senders)
            tell(Message("regularisers", "server", senders, sums, round=names))
            factors = (message.amplification.reshape(1),) * len(learning)
            tell(Message(GRADIENTS, "parties", (), factors, receivers=learning, round=names))
        of_top = message.gradients[len(learning) :]
        if of_top:  # the collaborator steps
            flat = torch.cat([gradient.flatten() for gradient in of_top])
            tap.sent(Message("top gradients", "server", (party,), (flat,), round=names), ids)

    # ---- books

    def _enter(self, plan: EventPlan, party: int, rows: int, names: RoundNames) -> None:
        """Count the traffic of the period."""
        self.counts.sent_back[party] = plan.returns
        if not plan.there:
            return
        meter = self.books.meter
        round = plan.round
        traffic = self.planner.traffic(party, rows)
        if round.roll.called.any():
            self.enter_opening(rows, names, round.roll.called, self.roster.joined_by(party))
        if self.aggregator.opening is None:
            meter.add(traffic.ids)
        self.books.enter(round, traffic.costs)
        if round.skipped:
            return
        self.books.mini_batches += len(round.roll.included_parties)
        meter.add(traffic.top_gradients)
        if plan.steps:
            meter.add(traffic.top)
            self.counts.staleness.add(self.counts.version - self.counts.seen[party])
            self.counts.version += 1

    def _log_staleness(self) -> None:
        """Log the staleness of the epoch's messages."""
        staleness = self.counts.staleness
        mean = staleness.total / max(staleness.messages, 1)
        figures = {"train/staleness_mean": mean, "train/staleness_max": float(staleness.most)}
        self.log_dict(figures, on_step=False, on_epoch=True, batch_size=1)
        self.counts.staleness = Staleness()

    def protection(self, uploads: int) -> str | None:
        if self.wire.traits.visible or not self.distributed:
            return super().protection(uploads)
        others = self.aggregator.among(Roster.singles(self.roster.parties - 1))
        said = (
            "for the sum of the other parties, because the party that joins it knows its own part: "
            f"{wire_of(others).protection(uploads)}"
        )
        return self.with_exposed(self.with_columns(said, uploads))

    def reads(self) -> tuple[Read, ...]:
        """An active party knows its own part of a sum, so that it reads the sum of the others."""
        sums = super().reads()
        if self.wire.traits.visible or not self.distributed:
            return sums
        readers = self.active_parties or range(self.roster.parties)  # before training any party may be one
        return tuple(Read(width, tuple(m for m in parties if m != own)) for own in readers for width, parties in sums)

    @property
    def joiner(self) -> str:  # type: ignore[override]  # the same for most protocols
        return "an active party" if self.distributed else super().joiner

    says_who_learns = False  # faults decide about the top, and weights of other parties change in a later event

    @property
    def meets_faults(self) -> bool:
        return super().meets_faults and self.distributed

    def promised(self) -> dict[str, str]:
        return super().promised() if self.distributed else {}

    def requests_made(self) -> int:
        """Two requests for each event that has begun."""
        return 2 * (self.counts.begun + len(self.active_parties))


def _refuse_parts(aggregator: Aggregator, policy: MissingPolicy) -> None:
    """Refuse an aggregator and a policy for missing embeddings that do not work with cascade events.

    Raises:
        ConfigurationError: naming those that work.
    """
    name = type(aggregator).__name__
    missing = type(policy).__name__
    if aggregator.form is not Embeddings:
        raise ConfigurationError(
            f"{name} computes on shares of records and models, so parties receive no gradients of embeddings; use "
            "Concat, Sum, Mean, MaskedSum or PoissonBinomial"
        )
    somebody = Roster.singles(3, active=0)
    nobody = Roster.singles(3)
    if not wire_of(aggregator).traits.visible and aggregator.out_width(1, somebody) != aggregator.out_width(1, nobody):
        raise ConfigurationError(
            f"{name} with this layout makes sums for one active party, but CascadeVFL has several; use layout: sum"
        )
    if policy.padding is not None:
        raise ConfigurationError(f"{missing} pads after a norm, but CascadeVFL has no norm; use Exclude")
    if policy.stand_in is not None and aggregator.wire is not None:
        raise ConfigurationError(
            f"missing: {missing} replaces single embeddings, but {name} hides these; use Exclude or Skip"
        )


def _refuse_running_statistics(top: nn.Module) -> None:
    """Refuse a top with running statistics: the replicas would update them, and the collaborator's top would not.

    Raises:
        ConfigurationError: for a batch norm.
    """
    norms = (layer for layer in top.modules() if isinstance(layer, nn.modules.batchnorm._NormBase))
    if any(layer.running_mean is not None for layer in norms):
        raise ConfigurationError(
            "a batch norm in the top would update its running statistics at the active parties, but never at the "
            "collaborator; use LayerNorm in the top, or no norm"
        )


def _refuse_for_parties(aggregator: Aggregator, first: Leg, parties: int) -> None:
    """Refuse an aggregator that does not hide embeddings from a party that joins them; ``first``: its first leg.

    Raises:
        ConfigurationError: for shares, and for sums of two parties.
    """
    if first.to != "server":
        raise ConfigurationError(
            f"{type(aggregator).__name__} hides embeddings only from a server, but in CascadeVFL a party joins the "
            "embeddings and holds shares too; use Concat, Sum, Mean, MaskedSum or PoissonBinomial"
        )
    if not wire_of(aggregator).traits.visible and parties < 3:
        raise ConfigurationError(
            "an active party knows its own part of a sum, so it could read the other embedding of a sum of two "
            "parties; use at least 3 parties"
        )


def trained(replica: Replica) -> list[Tensor]:
    """The parameters of a top that learn."""
    return [p for p in replica.top_parameters if p.requires_grad]
