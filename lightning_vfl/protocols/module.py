"""VFLModule: the base class of protocols, with the round of messages that any protocol may run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import ClearParty, InTheClear, PlainServer
from lightning_vfl.compressors import Compressor, Sender
from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.local_updates import LocalUpdate
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.batched import has_rule
from lightning_vfl.networks.halved_top import HalvedTop
from lightning_vfl.networks.memory import Kept, Memories, Memory
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.protocols.accounts.charging import (
    charge_evaluation,
    charge_round,
    joint_ids,
    one_loader,
    open_evaluation,
)
from lightning_vfl.protocols.base import BuiltModule
from lightning_vfl.protocols.build import BottomFactory, Halves, TopFactory, refuse_overlap
from lightning_vfl.protocols.checks import refuse_scaler, refuse_several_processes
from lightning_vfl.protocols.groups.exposed import exposure_of
from lightning_vfl.protocols.groups.invertible import refuse_readable, refuse_solvable
from lightning_vfl.protocols.groups.updates import Group, send_updates, tell_of_bottoms
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.labels import listen_at_cut, tell_of_labels
from lightning_vfl.protocols.loading import BOOKS
from lightning_vfl.protocols.local_learning import learn_locally
from lightning_vfl.protocols.preparation import stage_of
from lightning_vfl.protocols.step import GivenUp, Outcome
from lightning_vfl.protocols.subtraction import SummedSets, in_words
from lightning_vfl.rounds.exchange import Exchange, Sides, contribute, contribute_some
from lightning_vfl.rounds.plan import RoundCosts, RoundPlan, check_pair, plan_round
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.streams import seed_torch
from lightning_vfl.support import Part, Unsupported, refuse_other_table, refuse_unsupported, unsupported_by
from lightning_vfl.types import Roll, Roster, RoundNames, Stage, VerticalBatch, joint_rows
from lightning_vfl.waiting import WaitForAll, WaitingRule
from lightning_vfl.wire import Contribution, Embeddings, Gate, PartyView, ServerView


class VFLModule(BuiltModule):
    """A vertical federated learning protocol: M bottoms, an aggregator and a top; the traffic is counted exactly.

    A protocol of your own implements ``step``. ``round`` runs the messages of a training round in it: under the waiting
    rule, the policy and the faults, through the aggregator's wire, with bytes, virtual seconds and privacy charged.
    ``output`` predicts, by default through the aggregator and ``head``. ``docs/extending.md`` has two protocols.

    Args:
        aggregator: joins the embeddings of the parties into one tensor.
        waiting: when the server (or the party that joins the embeddings) stops waiting; None: ``WaitForAll()``.
        missing: the policy for missing embeddings; None: ``Exclude()``.
        allow_embeddings_by_subtraction: where uploads are hidden, accept that parties are in some sums of a record and
            not in others, so that the server can subtract two sums and has the embedding of the party between them; the
            summary says of how many records.
        allow_invertible_updates: train groups even if the server could compute their records.
        local_update: how a party learns from the gradient of its embeddings, for example by several local steps;
            None: by one step.
        compressor: of the embeddings that parties send in training, for example ``TopK(share=0.25)``; the gradient
            ignores what is lost. None: they are sent in float32.
        gradient_compressor: of the gradients that the server sends back; None: they are sent in float32.
        settings: settings of ``BuiltModule``.

    A protocol names the parts that it does not support in ``unsupported``, each with what to use instead. The table
    of a class extends those of its bases, and None takes a part back in.

    Raises:
        ConfigurationError: before training, if the waiting rule and the policy cannot be combined, or do not suit the
            faults or the aggregator; if hidden sums of a record may be over different parties; for groups whose records
            the server could compute; for a part that the protocol does not support.
    """

    unsupported: ClassVar[Unsupported] = {
        Part.DOWNLINK: "use SplitVFL",
        Part.SUBSETS: "use SplitVFL",
        Part.FEDERATION: "federated protocols: SplitVFL, AsyncVFL",
    }
    _possible: tuple[PrivacyEvent, ...] | None = None

    def __init__(
        self,
        aggregator: Aggregator,
        bottom: BottomFactory = MLP,
        top: Halves | TopFactory = Linear,
        width: int = 64,
        waiting: WaitingRule | None = None,
        missing: MissingPolicy | None = None,
        allow_embeddings_by_subtraction: bool = False,
        allow_invertible_updates: bool = False,
        local_update: LocalUpdate | None = None,
        compressor: Compressor | None = None,
        gradient_compressor: Compressor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator, bottom, top, width, **settings)
        self.allow_embeddings_by_subtraction = allow_embeddings_by_subtraction
        self.allow_invertible_updates = allow_invertible_updates
        self.summed = SummedSets()
        if waiting is not None:
            refuse_other_kind("waiting", waiting, WaitingRule, "WaitForAll()")
        if missing is not None:
            refuse_other_kind("missing", missing, MissingPolicy, "Exclude()")
        if local_update is not None:
            refuse_other_kind("local_update", local_update, LocalUpdate, "LocalSteps(2)")
        for name, given_compressor in {"compressor": compressor, "gradient_compressor": gradient_compressor}.items():
            if given_compressor is not None:
                refuse_other_kind(name, given_compressor, Compressor, "TopK(share=0.25)")
        given = {
            Part.WAITING: waiting is not None,
            Part.MISSING: missing is not None,
            Part.HIDDEN: aggregator.wire is not None or aggregator.accounting is not None,
            Part.PROTECTED_EVALUATION: self.protected_evaluation,
            Part.HALVES: self.halved,
            Part.LOCAL_UPDATE: local_update is not None,
            Part.COMPRESSOR: compressor is not None or gradient_compressor is not None,
        }
        self._refuse_unsupported(given)
        self.waiting = waiting or WaitForAll()
        self.missing = missing or Exclude()
        self.local_update = local_update
        self.compressor = compressor
        self.gradient_compressor = gradient_compressor
        self._faultless: dict[tuple[int, int], RoundPlan] = {}  # a fit has few different plans

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        refuse_other_table(cls)

    def _refuse_unsupported(self, given: Mapping[Part, bool]) -> None:
        refuse_unsupported(type(self), [part for part, is_given in given.items() if is_given])

    def build(self) -> None:
        super().build()
        self._refuse_unsupported({Part.GROUPS: bool(self.roster.shared)})
        self._top_may_draw = not has_rule(self.top)
        if self.local_update is not None:
            self._check_local_update(self.local_update)
            self.costs.local_update = self.local_update
        if self.compresses:
            self._check_compressors()
            self.wire = InTheClear(self.aggregator, self.compressor, self.gradient_compressor)
            self.sides = Sides.of(self.wire)
            self.costs.wire = self.wire
            self.costs.legs(1)
            self.wire.downlink(1, self.embedding_widths, self.roster)  # refuses widths that cannot be sent

    @property
    def compresses(self) -> bool:
        """Whether embeddings or gradients are compressed."""
        return self.compressor is not None or self.gradient_compressor is not None

    def _check_compressors(self) -> None:
        """Refuse compressors where parties do not send embeddings in the clear."""
        if self.aggregator.wire is not None or self.aggregator.accounting is not None:
            raise ConfigurationError(
                f"{type(self.aggregator).__name__} sends messages of its own form, which no compressor changes; use "
                "Concat, Sum, Mean or Max, or leave out compressor and gradient_compressor"
            )
        if self.protected_evaluation:
            raise ConfigurationError("compressors work in training alone; use evaluate: plain")

    def _check_local_update(self, update: LocalUpdate) -> None:
        """Refuse a local update that has no gradient of embeddings, or whose bottoms are summed after the step."""
        update.check(self.roster.parties)
        who = f"local_update: {type(update).__name__} learns from gradients of embeddings"
        if self.aggregator.form is not Embeddings:
            raise ConfigurationError(
                f"{who}, and {type(self.aggregator).__name__} sends those of weights; use Mean or MaskedSum"
            )
        if self.roster.shared:
            raise ConfigurationError(f"{who}, and groups sum the updates of one step; leave out party_groups")

    # ---- before training

    def check_faults(self) -> None:
        """Refuse a waiting rule and a policy that do not suit each other, the faults or the aggregator."""
        needed = self.wire.needed(self.roster.parties)
        slow = self.faults.stragglers(self.roster)
        first, quiet = self.costs.legs(1)[0], self.wire.traits.loses_quietly
        check_pair(self.waiting, self.missing, self.faults.silent, slow, needed, first.gate, quiet)
        self._refuse_missing()
        late = first.gate == Gate.RULE and self.waiting.leaves_out  # a mere timeout is counted when it happens
        if self.faults.announce or (quiet and (self.faults.silent or late)):
            self._refuse_subtraction()

    def _refuse_subtraction(self) -> None:
        """Refuse hidden sums of one record over different parties."""
        if not self.wire.traits.subtractable or self.allow_embeddings_by_subtraction or self.repeats_the_past:
            return
        m = self.roster.parties
        but_one = ~torch.eye(m, dtype=torch.bool)
        if all(self.missing.plan(torch.ones(m, dtype=torch.bool), included) is None for included in but_one):
            return  # a round without all parties is given up
        raise ConfigurationError(
            f"a party may be absent from some sums of {type(self.aggregator).__name__}, and the sums of a record with "
            "and without a party differ by its embedding; use missing: Skip, MaskedSum with layout: segments, or "
            "PoissonBinomial, or accept it with allow_embeddings_by_subtraction: true"
        )

    @property
    def repeats_the_past(self) -> bool:
        """Whether the rounds of this training have happened already, in a federation."""
        return False

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings, then allocate the memory between rounds."""
        self._refuse_unsupported({Part.FAULTS: bool(self.faults.models), Part.PROCESSES: self.joint})
        if Part.WAITING not in unsupported_by(type(self)):
            self._check_calls()
        if self.roster.shared:
            refuse_scaler(self.trainer, "updates of groups cannot be summed while their gradients are scaled")
            refuse_readable(self.aggregator, self.roster, self.allow_invertible_updates)
        if self.local_update is not None:
            refuse_scaler(self.trainer, "local steps cannot be made while gradients are scaled")
            refuse_several_processes(self.joint, "local updates are not averaged over processes; use devices: 1")
        refuse_several_processes(
            self.joint and self.compresses, "what compressors leave out is kept in one process; use devices: 1"
        )
        self._possible = None
        self._faultless.clear()
        super().on_fit_start()

    def _check_calls(self) -> None:
        """Refuse a rule that calls too few parties; note who is never called."""
        self.check_faults()
        slow = self.faults.stragglers(self.roster)
        everybody = torch.ones(self.roster.parties, dtype=torch.bool)
        called = self.waiting.calls(everybody, slow)
        if not self.wire.takes_part(called, called, self.roster).any():
            raise ConfigurationError(
                f"{self.waiting} calls {int(called.sum())} of {len(called)} parties, which are too few for "
                f"{type(self.aggregator).__name__}; use WaitForAll, or fewer stragglers"
            )
        self.books.left_out = tuple((~called).nonzero().flatten().tolist())

    def _refuse_missing(self) -> None:
        """Refuse a policy that does not work with this aggregator or with several processes."""
        policy, aggregator = type(self.missing).__name__, type(self.aggregator).__name__
        everybody = torch.ones(self.roster.parties, dtype=torch.bool)
        counted = self.missing.plan(everybody, ~everybody)
        if self.missing.stand_in is None and counted is not None and counted.any():
            raise ConfigurationError(
                f"missing: {policy} counts missing parties and has no stand_in for their embeddings; give it a StandIn"
            )
        if self.missing.stand_in is not None and not self.wire.traits.visible:
            raise ConfigurationError(
                f"missing: {policy} replaces single embeddings, but {aggregator} hides these from the server; "
                "use Exclude, PadAfterNorm or Skip"
            )
        if self.missing.memory is not None:
            refuse_several_processes(
                self.joint,
                f"missing: {policy} stores in each process only the records of this process; "
                "train in one process, or use Exclude, Zeros or Skip",
            )

    @property
    def memory(self) -> Memory | None:
        return self.with_residues(self.missing.memory)

    def with_residues(self, memory: Memory | None) -> Memory | None:
        """A memory, and the residues of the senders that are hosted here, if there are any."""
        if not (self.compresses and self._built):
            return memory
        party, server = self.sides
        kept: dict[str, Kept] = {}
        if isinstance(party, ClearParty) and (self.place is None or self.place.seat.party is not None):
            kept |= _residues("embeddings", party.sender)
        if isinstance(server, PlainServer) and (self.place is None or self.place.seat.party is None):
            kept |= _residues("gradients", server.sender)
        if not kept:
            return memory
        return Memories(kept if memory is None else {"latest embeddings": memory, **kept})

    def promised(self) -> dict[str, str]:
        given = {"waiting": self.waiting, "missing": self.missing}
        usual = {"waiting": WaitForAll, "missing": Exclude}
        more = {
            part: f"{part}: {type(value).__name__}" for part, value in given.items() if type(value) is not usual[part]
        }
        if self.local_update is not None:
            more["local_update"] = f"local_update: {type(self.local_update).__name__}"
        if self.compresses:
            more["compressor"] = f"compressor: {type(self.compressor or self.gradient_compressor).__name__}"
        return super().promised() | ({} if self.repeats_the_past else more)

    # ---- a round

    def round(self, batch: VerticalBatch, names: RoundNames) -> Outcome:
        """Run the messages of one training round: what everybody sends is planned, counted, charged, and then sent.

        The parties of ``outcome.learners`` learn from the loss of ``outcome.learn(loss)``; the groups among them send
        the updates of their shared bottoms.

        Raises:
            GivenUp: for a round that the policy or a fault gives up. ``training_step`` catches it: nobody learns.
        """
        self.bottoms.stream = names.seed, ("networks", names.stage, names.round, self.global_rank)
        plan = self.enter_round(batch, names)
        if self.tap is not None:
            tell_of_labels(self, batch, names)
            listen_at_cut(self, batch, names)
        at_server = self.rows_at_server(batch, names, plan.roll)
        output, exchange = self.run_round(batch, names, plan.roll, self.missing, at_server)
        before: Callable[[Optimizer], None] | None = None
        after = None
        if learning := [group for group in self.roster.shared if plan.learners[list(group)].any()]:
            before = partial(self._send_updates, learning, exchange)
            after = None if self.tap is None else tell_of_bottoms(self, learning, exchange)
        if self.local_update is not None:
            gradients = self.gradients_of({m: exchange.contribution.leaves[m] for m in plan.learning})
            before = self.local_learning(batch.features, gradients)
        labelled, notes = self.with_targets(at_server), aggregator_notes(exchange)
        return Outcome(output, exchange.aggregate.value, labelled, plan.learning, notes, before, after)

    def enter_round(self, batch: VerticalBatch, names: RoundNames) -> RoundPlan:
        """Plan a training round; count its bytes and seconds, and charge its records; ``round`` begins with it.

        Returns:
            Who is included (``roll.included_parties``) and who learns (``learning``), under the faults at requests
            2·round and 2·round + 1.

        Raises:
            GivenUp: see ``round``.
        """
        rows = joint_rows(batch).total, self.coded_rows(batch)
        plan = self.plan_round(batch, names.round, rows)
        self.enter_plan(plan, batch, names, rows)
        if plan.skipped:
            raise GivenUp
        return plan

    def plan_round(self, batch: VerticalBatch, number: int, rows: tuple[int, int] | None = None) -> RoundPlan:
        """The plan of training round ``number``, which makes the requests 2·number and 2·number + 1.

        ``rows``: the numbers of records and of coded rows of the joint batch, if the caller has counted them.
        """
        rows = rows or (joint_rows(batch).total, self.coded_rows(batch))
        held = self._held(batch)
        alike = held is None and not self.faults.models
        if alike and rows in self._faultless:
            return self._faultless[rows]
        plan = self.plan(
            self.costs.of_round(*rows),
            torch.ones(self.roster.parties, dtype=torch.bool) if held is None else held,
            self.faults.at(2 * number, self.roster),
            self.faults.at(2 * number + 1, self.roster),
            partial(self.wire.takes_part, roster=self.roster),
        )
        if alike:
            self._faultless[rows] = plan
        return plan

    def enter_plan(
        self, plan: RoundPlan, batch: VerticalBatch, names: RoundNames, rows: tuple[int, int], charged: bool = False
    ) -> None:
        """Count the traffic and the time of a training round, and charge its records.

        ``rows``: the numbers of records and of coded rows of the joint batch. ``charged``: its records are charged.
        """
        if plan.reached:
            self.clock.advance(self.enter_opening(rows[0], names, plan.roll.called))
        self.books.enter(plan, self.costs.of_round(*rows))
        if self.privacy.accountant is not None and not charged:
            charge_round(self, plan, batch)

    def rows_at_server(self, batch: VerticalBatch, names: RoundNames, roll: Roll) -> VerticalBatch:
        """The rows that the server computes from the batch's embeddings; default: the batch."""
        return batch

    def with_targets(self, batch: VerticalBatch) -> VerticalBatch:
        """The batch with the labels that the loss sees; default: those of the records."""
        return batch

    def gradients_of(self, embeddings: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The gradients of the parties' embeddings; empty until the backward pass."""
        gradients: dict[int, Tensor] = {}
        for party, h in embeddings.items():
            if h.requires_grad:  # not of a frozen bottom
                keep = partial(gradients.__setitem__, party)
                h.register_hook(keep)  # type: ignore[no-untyped-call]  # torch's
        return gradients

    def local_learning(
        self, features: tuple[Tensor, ...], gradients: Mapping[int, Tensor]
    ) -> Callable[[Optimizer], None] | None:
        """``before_optimizer`` of a step in which these parties learn by the local update; None: there is none."""
        if self.local_update is None:
            return None
        self.used.add("local_update")
        return partial(self._learn_locally, self.local_update, features, gradients)

    def _learn_locally(
        self, update: LocalUpdate, features: tuple[Tensor, ...], gradients: Mapping[int, Tensor], optimizer: Optimizer
    ) -> None:
        self._learns_locally = True
        try:
            learn_locally(self, update, features, gradients, optimizer)
        finally:
            self._learns_locally = False

    def _send_updates(self, groups: list[Group], exchange: Exchange, optimizer: Optimizer) -> None:
        send_updates(self, groups, optimizer, exchange)

    def plan(
        self,
        costs: RoundCosts,
        held: Tensor,
        forward: RoundOutcome,
        backward: RoundOutcome,
        takes_part: Callable[[Tensor, Tensor], Tensor],
        policy: MissingPolicy | None = None,
    ) -> RoundPlan:
        """The plan of a round under this protocol's waiting rule and policy.

        Args:
            costs: seconds and traffic of the faultless round.
            held: (M,) bool, the parties that hold at least one row of the batch.
            forward: the outcome of the request for embeddings.
            backward: the outcome of the request that sends the gradient.
            takes_part: which of the called and arrived parties the aggregator can include.
            policy: for missing embeddings; None: that of training.
        """
        self.used |= {"waiting", "missing"}
        plan = plan_round(
            costs,
            self.waiting,
            policy or self.missing,
            held,
            forward,
            backward,
            self.faults.stragglers(self.roster),
            self.wire.needed(self.roster.parties),
            takes_part,
            self.roster,
        )
        active = self.roster.active
        if self.halved and active is not None and bool(held[active]) and not bool(plan.learners[active]):
            nobody = torch.zeros_like(held)  # whoever has the labels is not there: there is no loss and no prediction
            plan = replace(plan, learners=nobody, answered=nobody, skipped=True)
        return plan

    def contribute(self, bottoms: PartyBank, batch: VerticalBatch, roll: Roll) -> Contribution:
        """The embeddings or features that the parties contribute; in the clear, only included parties compute."""
        clear = self.aggregator.wire is None
        if clear and not (roll.complete or self.trains_jointly):
            return contribute_some(bottoms, batch.features, roll.included_parties, self.embedding_widths)
        return contribute(self.aggregator.form, bottoms, batch.features, None if clear else batch.present)

    def run_round(
        self,
        batch: VerticalBatch,
        names: RoundNames,
        roll: Roll,
        policy: MissingPolicy,
        at_server: VerticalBatch | None = None,
    ) -> tuple[Tensor, Exchange]:
        """The top's output (B, outputs) after a round of messages, and the exchange.

        ``at_server``: the rows that the server computes from the batch's embeddings, see ``Subsets``; None: the batch.
        """
        contribution = self.contribute(self.bottoms, batch, roll)
        if at_server is not None and len(at_server.record_ids) > len(batch.record_ids):
            copies = len(at_server.record_ids) // len(batch.record_ids)
            contribution = Embeddings(tuple(h.repeat(copies, 1) for h in contribution.leaves))
        value, exchange = self.exchange(at_server or batch, contribution, names, roll, policy)
        if self.trains_jointly and not roll.complete:  # DDP needs a gradient of every parameter in every process
            value = value + sum(leaf.sum() for leaf in contribution.leaves) * 0.0
        guard = partial(self.guard, batch=batch, names=names)
        if isinstance(self.top, HalvedTop):
            self.top.guard = guard
        else:
            value = guard(value)
        return self.head(value, exchange.aggregate.columns), exchange

    def guard(self, value: Tensor, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The aggregate for the head, or the cut of a top in halves; a protocol may change the gradient through it."""
        return value

    def exchange(
        self,
        batch: VerticalBatch,
        contribution: Contribution,
        names: RoundNames,
        roll: Roll,
        policy: MissingPolicy,
        roster: Roster | None = None,
    ) -> tuple[Tensor, Exchange]:
        """The aggregate (B, D_out) of a round, connected to the contribution's leaves, and the exchange.

        ``roster``: names the party that joins the embeddings, if not the server does.
        """
        aggregator, rows, roster = self.aggregator, joint_rows(batch), roster or self.roster
        if self.datamodule is None:  # otherwise ``prepare`` has checked all records
            self.wire.refuse_partly_held(batch.present, roster)
            refuse_overlap(roster, batch.present)
        prepared, stage = self.preparation, stage_of(names.stage)
        records, agreed = prepared.count(stage), prepared.agreed
        everyone = tuple(range(roster.parties))
        parties = PartyView(names, roster, everyone, roll.called, rows, None, batch.present, agreed)
        joiner = None if roster is self.roster else roster.active
        memory = prepared.opened(aggregator, stage, parties, self.listener(rows.ids, joiner))
        if memory is not None:
            parties = replace(parties, memory=memory)
        seen = batch.present if self.wire.traits.visible else None
        server = ServerView(names, roster, rows, roll, self.embedding_widths, seen, records, agreed, joiner)
        if aggregator.wire is None:  # a wire hands on what has come
            self.refuse_uncounted(roll, seen)
        exchange = Exchange(aggregator, contribution, parties, server, policy, self.sides, self.wire, self.tap)
        value = exchange.run()
        if stage == Stage.FIT:
            self.used |= {"aggregator", "compressor"}
            self.books.enter_part("aggregator")
        self.enter_sum(names.stage, roll.included_parties, batch)
        if self.wire.traits.corrects:
            self.books.enter_corrected(self._corrected(exchange.aggregate.corrected))
        return value, exchange

    def enter_sum(self, stage: Stage, parties: Iterable[int], batch: VerticalBatch) -> None:
        """Note over which parties the records of a batch have been summed, where that matters."""
        if self.wire.traits.subtractable:
            self.summed.enter(stage_of(stage), parties, joint_ids(batch))

    def protection(self, uploads: int) -> str | None:
        said = self.with_exposed(super().protection(uploads))
        if not self.roster.shared:
            return said
        if self.allow_invertible_updates:
            words = "the server may compute the records of groups from what it knows (allow_invertible_updates)"
        else:
            words = "model updates of groups have fewer numbers in all than their records; nothing more is claimed"
        return words if said is None else f"{said}; {words}"

    def with_exposed(self, said: str | None) -> str | None:
        """A claim, and the embeddings that sums over different parties have given away."""
        given_away = in_words(self.summed.exposed(self.roster))
        return said if given_away is None else f"{said}; {given_away}"

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if self.wire.traits.subtractable:
            whole = "optimizer_states" in checkpoint  # the sums themselves are only in checkpoints for resuming
            checkpoint[BOOKS]["summed"] = self.summed.state() if whole else self.summed.named()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.summed.load(checkpoint.get(BOOKS, {}).get("summed", {}))

    def _corrected(self, parties: Sequence[int]) -> Sequence[int]:
        """The parties whose answers were wrong, in any process."""
        if not self.joint:
            return parties
        wrong = torch.zeros(self.roster.parties, device=self.device)
        wrong[list(parties)] = 1.0
        seen: Tensor = self.trainer.strategy.reduce(wrong, reduce_op="sum")
        counted: list[int] = seen.nonzero().flatten().tolist()
        return counted

    def enter_opening(self, rows: int, names: RoundNames, called: Tensor, roster: Roster | None = None) -> float:
        """Count the messages between parties at the beginning of a round; returns their seconds.

        ``roster``: names the party that joins the embeddings, if not the server does.
        """
        last, opening = self.books.opened.get(names.stage, -1), self.aggregator.opening
        legs = () if opening is None else opening.legs(rows, roster or self.roster, called, names.round, last)
        return self.books.enter_opening(legs, names.stage, names.round)

    def coded_rows(self, batch: VerticalBatch) -> int:
        """The number of coded rows of the joint batch; without coded rows, its number of records."""
        if self.aggregator.setup is None:
            return joint_rows(batch).total
        blocks = self.preparation.blocks(self.aggregator, self.roster.parties, self.seed, self.stage)
        return joint_rows(batch).total if blocks is None else len(blocks.coded_rows(joint_ids(batch))[0])

    @property
    def trains_jointly(self) -> bool:
        """Whether several processes are in a training step: DDP then needs a gradient of every parameter."""
        return self.joint and self.stage == Stage.FIT

    def possible_events(self) -> tuple[PrivacyEvent, ...]:
        """The releases that a round may make: with all parties, and, if parties may be missing, with fewer parties.

        Which release costs most depends on the unit: for a party's values the fewest others, for a record all parties.
        """
        accounting = self.aggregator.accounting
        if accounting is None:
            return ()
        if self._possible is None:
            impatient = self.waiting.patience is not None  # a slow link is enough to make a party late
            real = self.place is not None  # whatever may happen to processes, happens
            missing = self.faults.models or self.waiting.leaves_out or self.books.left_out or impatient or real
            events: dict[PrivacyEvent | None, None] = {}  # every event once, in order
            for joiner in self.joiners():
                roster = self.roster.joined_by(joiner)
                read = [m for m in range(self.roster.parties) if m != joiner]
                order = sorted(read, key=lambda m: m != self.active)  # the other parties are interchangeable
                subsets = [tuple(sorted(order[:n])) for n in range(len(read)) if missing and self._usable(order[:n])]
                for subset in (*subsets, tuple(read)):
                    events[accounting.event(subset, self.embedding_widths, roster)] = None
            self._possible = tuple(event for event in events if event is not None)
        return self._possible

    @toolkit_hook
    def on_train_start(self) -> None:
        """Refuse updates of groups that determine their records, and releases without an ε in the unit of the log."""
        super().on_train_start()
        if self.roster.shared and not self.allow_invertible_updates:
            schedule = getattr(self.trainer.train_dataloader, "schedule", None)
            for group in self.roster.shared:
                refuse_solvable(exposure_of(self, group, schedule))
        steps = self.trainer.max_steps
        if steps < 0 or steps >= self.trainer.num_training_batches:
            self.refuse_unit(self.privacy.unit)

    def refuse_unit(self, unit: str) -> None:
        """Refuse a unit of privacy in which a round of this training may have no ε.

        Raises:
            ConfigurationError: before training, naming what to change.
        """
        for event in self.possible_events():
            event.refuse_unit(unit)

    def joiners(self) -> tuple[int | None, ...]:
        """The parties that join embeddings; None stands for the server."""
        return (None,)

    def _usable(self, parties: list[int]) -> bool:
        """Whether an aggregate can consist of exactly these parties."""
        there = torch.zeros(self.roster.parties, dtype=torch.bool)
        there[parties] = True
        return bool(parties) and torch.equal(self.wire.takes_part(there, there, self.roster), there)

    def _held(self, batch: VerticalBatch) -> Tensor | None:
        """(M,) bool, the parties that hold at least one row of the joint batch; None: all, or it is not disclosed."""
        if self.wire.traits.everybody_called:
            return None
        if batch.joint is None:
            return None if batch.present is None else batch.present.any(0).cpu()
        if batch.joint.held is None:
            return None
        held = torch.zeros(self.roster.parties, dtype=torch.bool)
        held[list(batch.joint.held)] = True
        return held

    # ---- evaluation

    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The top's output, in the clear or through the aggregator's messages."""
        roll = self.evaluation_roll()
        if self.place is not None:
            return self.place.output(self, batch, names, roll)
        if not self.protected_evaluation:
            return self.output_in_the_clear(batch, roll)
        self.enter_evaluation(batch, names, roll)
        charge_evaluation(self, roll, roll.called, batch)
        return self.run_round(batch, names, roll, Exclude())[0]

    def _set_up(self, stage: Stage, loaders: Any) -> None:
        if self.aggregator.accounting is not None:
            trainer = self.trainer
            batches = {
                Stage.SANITY_CHECK: trainer.num_sanity_val_batches,
                Stage.VALIDATION: trainer.num_val_batches,
                Stage.TEST: trainer.num_test_batches,
                Stage.PREDICT: trainer.num_predict_batches,
            }
            open_evaluation(self, one_loader(loaders), batches[self.stage])
        super()._set_up(stage, loaders)

    def enter_evaluation(self, batch: VerticalBatch, names: RoundNames, roll: Roll) -> None:
        """Count the messages of a round of protected evaluation."""
        for leg in self.costs.legs_of_evaluation(self.coded_rows(batch), names.stage):
            self.books.meter.add(leg, roll.called)
        for leg in self.costs.cut_of_evaluation(joint_rows(batch).total, names.stage):
            self.books.meter.add(leg)
        self.enter_opening(joint_rows(batch).total, names, roll.called)

    def party_view(
        self, batch: VerticalBatch, names: RoundNames, called: Tensor, parties: tuple[int, ...]
    ) -> PartyView:
        """The view of these parties in a round, before its opening."""
        return PartyView(
            names, self.roster, parties, called, joint_rows(batch), None, batch.present, self.preparation.agreed
        )

    def evaluation_roll(self) -> Roll:
        """All parties except those that training never calls: their bottoms are untrained."""
        left_out = self.books.left_out
        if not left_out:
            return Roll.everyone(self.roster.parties)
        called = torch.tensor([party not in left_out for party in range(self.roster.parties)])
        return Roll.of(self.wire.takes_part(called, called, self.roster))

    def head(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The server's output for an aggregate; a padding policy puts zeros into absent columns.

        What the server's networks draw in a round does not depend on the draws of bottoms.
        """
        if self.training and self.bottoms.stream is not None and self._top_may_draw:
            seed, names = self.bottoms.stream
            seed_torch(value.device, self.keys.get(None, seed), *names, "server")
        return super().head(self.join(value, columns), columns)

    def join(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The top's input for an aggregate."""
        padding = self.missing.padding
        return value if columns is None or padding is None else padding.pad(value, columns)


def _residues(what: str, sender: Sender | None) -> dict[str, Sender]:
    """What a sender keeps between rounds, by name; empty if it keeps nothing."""
    return {} if sender is None or not sender.compressor.feedback else {f"residues of {what}": sender}


def aggregator_notes(exchange: Exchange) -> dict[str, float]:
    """The values that the parties' side of the aggregator reports in a round, by log name."""
    return {f"aggregator/{name}": value for name, value in exchange.parties.notes.items()}
