"""MessageRounds: the rounds of messages that any protocol may run, planned, counted, charged and then sent."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer

from lightning_vfl.aggregators.clear import InTheClear
from lightning_vfl.aggregators.parts import Setup
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.halved_top import ACTIVATIONS, HalvedTop
from lightning_vfl.objectives import not_narrower
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.protocols.accounts.charging import charge, joint_ids
from lightning_vfl.protocols.build import refuse_overlap
from lightning_vfl.protocols.checks import needed_data, refuse_blocks, refuse_other_device, refuse_several_processes
from lightning_vfl.protocols.groups.updates import learn_locally, send_updates, tell_of_bottoms
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.protocols.step import GivenUp, Outcome, Step
from lightning_vfl.protocols.subtraction import in_words
from lightning_vfl.rounds.exchange import Exchange, ExpandedRecords, contribute, contribute_some, set_up
from lightning_vfl.rounds.plan import RoundCosts, RoundPlan, check_pair, plan_round
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.streams import seed_torch
from lightning_vfl.types import (
    NO_RECORDS,
    Parties,
    RecordSource,
    Roll,
    Roster,
    RoundNames,
    Rows,
    Stage,
    Tensors,
    VerticalBatch,
    joint_rows,
    mask_of,
    numbers_in,
    stage_of,
)
from lightning_vfl.wire import Contribution, Embeddings, Gate, LinearForms, Message, PartyView, ServerView, Tap


class MessageRounds(SplitModel):
    """The rounds of a protocol: what everybody sends is planned, counted, charged, and then sent.

    ``round`` is for training, ``output`` for evaluation. A protocol may override what a round lets it: the rows that
    the server computes (``rows_at_server``), their targets (``with_targets``) and the gradient (``guard``).
    """

    _possible: tuple[PrivacyEvent, ...] | None = None
    _entered: RoundNames | None = None  # the round that the current step has entered

    # ---- a round

    def round(self, batch: VerticalBatch, names: RoundNames) -> Outcome:
        """Run the messages of one training round: what everybody sends is planned, counted, charged, and then sent.

        The parties of ``outcome.learners`` learn from the loss of ``outcome.learn(loss)``; the groups among them send
        the updates of their shared bottoms.

        Raises:
            GivenUp: for a round that the policy or a fault gives up. ``training_step`` catches it: nobody learns.
        """
        plan = self.enter_round(batch, names)
        if self.tap is not None and self.roster.active is not None:
            self._tell_of_labels(self.tap, self.roster.active, batch, names)
        at_server = self.rows_at_server(batch, names, plan.roll)
        output, exchange = self.run_round(batch, names, plan.roll, self.missing, at_server)
        notes = aggregator_notes(exchange) if exchange.parties.notes else {}
        step = Step(None, plan.learning, notes)
        if groups := self.roster.shared:
            learning = [group for group in groups if plan.learners[list(group)].any()]
            after = None if self.tap is None else tell_of_bottoms(self, learning, exchange)
            before = partial(send_updates, self, learning, exchange)
            step = replace(step, before_optimizer=before, after_optimizer=after)
        if self.local_update is not None:
            gradients = self.gradients_of({m: exchange.contribution.leaves[m] for m in plan.learning})
            step = replace(step, before_optimizer=self.local_learning(batch.features, gradients))
        return Outcome(output, exchange.aggregate.value, self.with_targets(at_server), plan.learning, step)

    def _tell_of_labels(self, tap: Tap, active: int, batch: VerticalBatch, names: RoundNames) -> None:
        """What an audit hears of the labels: themselves, or what crosses the cut of a top in halves."""
        tell = partial(tap.sent, ids=batch.record_ids)

        def at_cut(kind: str, values: Tensor) -> None:
            if kind == ACTIVATIONS:
                tell(Message(kind, "parties", (), (values,), receivers=(active,), round=names))
            else:
                tell(Message(kind, "server", (active,), (values,), round=names))

        if isinstance(self.top, HalvedTop):
            self.top.hear = at_cut
        elif batch.labels is not None:
            tell(Message("labels", "server", (active,), (batch.labels,), round=names))

    def enter_round(self, batch: VerticalBatch, names: RoundNames) -> RoundPlan:
        """Plan a training round; count its bytes and seconds, and charge its records; ``round`` begins with it.

        Returns:
            Who is included (``roll.included_parties``) and who learns (``learning``), under the faults at requests
            2·round and 2·round + 1.

        Raises:
            GivenUp: see ``round``.
            ConfigurationError: for a second round in one step.
        """
        if self._entered == names:
            raise ConfigurationError(
                f"step of {type(self).__name__} enters round {names.round} twice, which would count it twice and use "
                "its masks and its noise twice; call round or enter_round once in a step"
            )
        if self._entered is not None:  # a further round of the step has draws of its own
            self.name_draws(names)
        self._entered = names
        total = joint_rows(batch).total
        rows = total, total if self.preparation.setup is None else self.coded_rows(batch)
        plan = self.plan_round(batch, names.round, rows)
        self.enter_plan(plan, batch, names, rows)
        if plan.skipped:
            raise GivenUp
        return plan

    def plan_round(self, batch: VerticalBatch, number: int, rows: tuple[int, int] | None = None) -> RoundPlan:
        """The plan of training round ``number``, which makes the requests 2·number and 2·number + 1.

        ``rows``: see ``rows_of``, if the caller has counted them.
        """
        if self.replayed is not None:
            return self.replayed.plan(number, len(self.costs.of_round(1).legs))
        rows = rows or self.rows_of(batch)
        held = None if batch.present is None and batch.joint is None else self._held(batch)
        alike = held is None and not self.faults.models
        if alike and rows in self._faultless:
            return self._faultless[rows]
        plan = self.plan(
            self.costs.of_round(*rows),
            self.roster.everybody if held is None else held,
            self.faults.at(2 * number, self.roster),
            self.faults.at(2 * number + 1, self.roster),
        )
        if alike:
            self._faultless[rows] = plan
        return plan

    def enter_plan(
        self, plan: RoundPlan, batch: VerticalBatch, names: RoundNames, rows: tuple[int, int], charged: bool = False
    ) -> None:
        """Count the traffic and the time of a training round, and charge its records.

        ``rows``: see ``rows_of``. ``charged``: its records are charged.
        """
        if plan.reached and self.preparation.opening is not None:
            self.books.clock.seconds += self.enter_opening(rows[0], names, plan.roll.called)
        self.books.enter(plan, self.costs.of_round(*rows))
        self.books.clock.seconds += plan.seconds
        if not plan.skipped:
            self.books.mini_batches += len(plan.roll.included_parties)
        if self.privacy.accountant is not None and not charged:
            charge(self, plan.roll, plan.sent[0], batch)

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

    def local_learning(self, features: Tensors, gradients: Mapping[int, Tensor]) -> Callable[[Optimizer], None] | None:
        """``before_optimizer`` of a step in which these parties learn by the local update; None: there is none."""
        if self.local_update is None:
            return None
        self.used.add("local_update")
        return partial(learn_locally, self, self.local_update, features, gradients)

    def plan(
        self,
        costs: RoundCosts,
        held: Tensor,
        forward: RoundOutcome,
        backward: RoundOutcome,
        takes_part: Callable[[Tensor, Tensor], Tensor] | None = None,
        policy: MissingPolicy | None = None,
    ) -> RoundPlan:
        """The plan of a round under this protocol's waiting rule and policy.

        Args:
            costs: seconds and traffic of the faultless round.
            held: (M,) bool, the parties that hold at least one row of the batch.
            forward: the outcome of the request for embeddings.
            backward: the outcome of the request that sends the gradient.
            takes_part: which of the called and arrived parties can be included; None: those of the aggregator's wire.
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
            takes_part or partial(self.wire.takes_part, roster=self.roster),
            self.roster,
        )
        active = self.roster.active
        if self.halved and active is not None and bool(held[active]) and not bool(plan.learners[active]):
            nobody = torch.zeros_like(held)  # whoever has the labels is not there: there is no loss and no prediction
            plan = replace(plan, learners=nobody, answered=nobody, skipped=True)
        return plan

    def _held(self, batch: VerticalBatch) -> Tensor | None:
        """(M,) bool, the parties that hold at least one row of the joint batch; None: all, or it is not disclosed."""
        if self.traits.everybody_called:
            return None
        if batch.joint is None:
            return None if batch.present is None else batch.present.any(0).cpu()
        if batch.joint.held is None:
            return None
        return mask_of(batch.joint.held, self.roster.parties)

    def contribute(self, bottoms: PartyBank, batch: VerticalBatch, roll: Roll) -> Contribution:
        """The embeddings or features that the parties contribute; in the clear, only included parties compute."""
        if type(self.wire) is not InTheClear:  # an author's subclass of it sends messages of its own
            return contribute(self.aggregator.form, bottoms, batch.features, batch.present)
        if roll.complete or self.trains_jointly:
            return Embeddings(bottoms(batch.features))
        return contribute_some(bottoms, batch.features, roll.included_parties, self.embedding_widths)

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
        if not roll.complete and self.trains_jointly:  # DDP needs a gradient of every parameter in every process
            value = value + sum(leaf.sum() for leaf in contribution.leaves) * 0.0
        guard = partial(self.guard, batch=batch, names=names)
        if self.halved:
            top: Any = self.top
            top.guard = guard
        else:
            value = guard(value)
        return self.head(value, None if roll.complete else self.columns_from(roll)), exchange

    def behind_cut(self, crossing: Tensor, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The output of the active party's half of a top for what has crossed the cut, in that party's process."""
        top: Any = self.top
        self._seed_top(crossing.device, self.roster.active, "active")
        output: Tensor = top.active(self.guard(crossing, batch, names))
        return output

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
        rows = joint_rows(batch)
        roster = roster or self.roster
        prepared = self.preparation
        traits = self.traits
        joiner = None if roster is self.roster else roster.active
        clear = type(self.wire) is InTheClear
        present = batch.present
        if (present is not None or roster.shared) and self.datamodule is None:  # otherwise ``prepare`` has checked them
            self.wire.refuse_partly_held(present, roster)
            refuse_overlap(roster, present)
        everyone = tuple(range(roster.parties))
        parties = PartyView(names, roster, everyone, roll.called, rows, None, present, prepared.agreed)
        if prepared.needed:
            parties = replace(parties, memory=prepared.opened(parties, self.listener(rows.ids, joiner)))
        records = 0 if prepared.setup is None else prepared.count(names.stage)
        seen = present if traits.visible else None
        server = ServerView(names, roster, rows, roll, self.embedding_widths, seen, records, prepared.agreed, joiner)
        if clear and not (roll.complete and seen is None):  # a wire hands on what has come
            self.refuse_uncounted(roll, seen)
        exchange = Exchange(self.aggregator, contribution, parties, server, policy, self.sides, self.tap)
        value = exchange.run()
        once = not (roll.complete or clear or self._decoding_tried)
        if once and self.aggregator.accounting is None:  # with noise, which is drawn anew, there is nothing to compare
            self._decoding_tried = exchange.refuse_other_decoding()
        if names.stage == Stage.FIT:
            self.used |= {"aggregator", "compressor"}
            if not clear:  # nothing is claimed of embeddings in the clear
                self.books.enter_part("aggregator")
        if traits.subtractable:
            self.enter_sum(names.stage, roll.included_parties, batch)
        if traits.corrects:
            self.books.enter_corrected(self._corrected(exchange.aggregate.corrected))
        return value, exchange

    def enter_sum(self, stage: Stage, parties: Iterable[int], batch: VerticalBatch) -> None:
        """Note over which parties the records of a batch have been summed, where that matters."""
        if self.traits.subtractable:
            self.summed.enter(stage_of(stage), parties, joint_ids(batch))

    def _corrected(self, parties: Sequence[int]) -> Sequence[int]:
        """The parties whose answers were wrong, in any process."""
        if not self.joint:
            return parties
        wrong = torch.zeros(self.roster.parties, device=self.device)
        wrong[list(parties)] = 1.0
        seen: Tensor = self.trainer.strategy.reduce(wrong, reduce_op="sum")
        counted: list[int] = numbers_in(seen)
        return counted

    def enter_opening(self, rows: int, names: RoundNames, called: Tensor, roster: Roster | None = None) -> float:
        """Count the messages between parties at the beginning of a round; returns their seconds.

        ``roster``: names the party that joins the embeddings, if not the server does.
        """
        last = self.books.opened.get(names.stage, -1)
        opening = self.preparation.opening
        legs = () if opening is None else opening.legs(rows, roster or self.roster, called, names.round, last)
        return self.books.enter_opening(legs, names.stage, names.round)

    def rows_of(self, batch: VerticalBatch) -> tuple[int, int]:
        """The numbers of records and of coded rows of the joint batch."""
        return joint_rows(batch).total, self.coded_rows(batch)

    def coded_rows(self, batch: VerticalBatch) -> int:
        """The number of coded rows of the joint batch; without coded rows, its number of records."""
        setup = self.preparation.setup
        if setup is None:
            return joint_rows(batch).total
        stage = stage_of(self.stage)
        source = self.preparation.sources.get(stage)
        if source is None:
            return joint_rows(batch).total
        blocks = setup.arrangement(len(source), self.roster.parties, self.seed, stage)
        return len(blocks.coded_rows(joint_ids(batch))[0])

    def next_round(self, seed_global: bool = False) -> RoundNames:
        """The names of the next round's random streams; ``seed_global``: also seed torch's global generator."""
        stage = self.stage
        number = self.books.next_round(stage)
        if seed_global:  # dropout masks become a function of the round
            seed = self.keys[self.owner] if self.keys else self.seed
            seed_torch(self.device, seed, "networks", stage.value, number, self.global_rank)
        return RoundNames(self.seed, stage, number)

    def name_draws(self, names: RoundNames) -> None:
        """Let what a network draws in a round, of training or evaluation, depend on the round and its owner."""
        self.bottoms.stream = names.seed, ("networks", names.stage, names.round, self.global_rank)

    # ---- evaluation

    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The top's output, in the clear or through the aggregator's messages; an evaluation hides the labels."""
        roll = self.evaluation_roll()
        if self.place is not None:
            return self.place.output(self, batch, names, roll)
        if not self.protected_evaluation:
            return self.output_in_the_clear(batch, roll)
        self.enter_evaluation(batch, names, roll)
        charge(self, roll, roll.called, batch)
        return self.run_round(batch, names, roll, Exclude())[0]

    def evaluated(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """``output`` of a batch without its labels, which score it: (B, outputs); in a federation, a seat's part."""
        stream = self.bottoms.stream
        self.name_draws(names)
        try:
            if self.place is not None:  # each seat has what it may see, and sends on the labels that are its own
                return self.output(batch, names)
            output = self.output(batch._replace(labels=None), names)
        finally:
            self.bottoms.stream = stream
        self.refuse_other_output(output, batch)
        return output

    def enter_evaluation(self, batch: VerticalBatch, names: RoundNames, roll: Roll) -> None:
        """Count the messages of a round of protected evaluation."""
        rows = joint_rows(batch).total
        legs, cut = self.costs.of_evaluation(rows, self.coded_rows(batch), names.stage)
        for leg in legs:
            self.books.meter.add(leg, roll.called)
        for leg in cut:
            self.books.meter.add(leg)
        self.enter_opening(rows, names, roll.called)

    def party_view(self, batch: VerticalBatch, names: RoundNames, called: Tensor, parties: Parties) -> PartyView:
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

    def forward(self, features: VerticalBatch | Sequence[Tensor] | Tensor, *others: Tensor) -> Tensor:
        """Predictions for a batch, computed as in evaluation, see ``evaluate``.

        Args:
            features: a batch, or the features of all parties, each (B, *S_m).
            others: the features of parties 1 to M - 1, if ``features`` are those of party 0. Lightning calls a module
                so with a tuple as ``example_input_array``.
        """
        if not isinstance(features, VerticalBatch):
            features = _of_all_parties(features, others, self.roster.parties)
        refuse_other_device(features.features, self)
        if self.protected_evaluation and (self.aggregator.setup or self.aggregator.accounting):
            raise ConfigurationError(
                f"{type(self.aggregator).__name__} must know the records of these features, because it is set up for "
                "the records of a stage or must charge training records; use trainer.predict with a "
                "VerticalDataModule, or evaluate: plain"
            )
        refuse_overlap(self.roster, features.present)
        names = RoundNames(self.seed, Stage.PREDICT, self.books.next_round(Stage.PREDICT))
        return self.objective.predict(not_narrower(self.evaluated(features, names)))

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int | None = None) -> Any:
        """As Lightning's, which names no loader for example inputs: torch traces the features of a batch alone."""
        batch = super()._on_before_batch_transfer(batch, dataloader_idx or 0)
        return batch.features if dataloader_idx is None and isinstance(batch, VerticalBatch) else batch

    # ---- before training

    def prepare(self, stage: Stage, split: str) -> None:
        """Let the parties set up a stage before its first round, and count the traffic of the set-up."""
        setup = self.aggregator.setup
        name = type(self.aggregator).__name__
        if self.datamodule is not None:
            present = self.datamodule.records(split).present
            self.wire.refuse_partly_held(present, self.roster)
            if present is not None and self.place is not None and not self.wire.traits.visible:
                raise ConfigurationError(
                    f"records that some party does not hold are not between processes with {name} yet; use overlap: "
                    "inner, or an aggregator whose server reads the embeddings, such as Mean"
                )
        if setup is None:
            return
        if self.aggregator.form is not LinearForms:
            raise ConfigurationError(f"{name} has a Setup, which shares expanded records; declare form = LinearForms")
        who = f"{name} is set up before the first round and must know the records"
        source = needed_data(self.datamodule, who).records(split)
        refuse_blocks(source, name)
        prepared = self.preparation
        names = RoundNames(self.seed, stage, 0)
        if stage == Stage.FIT and self.trainer.ckpt_path is None:
            prepared.start_over()
        prepared.begin(stage, source)
        if self.place is None:
            agreed, memory = self.set_up_all(setup, source, names)
        else:
            agreed, memory = self.place.set_up(self, source, names, prepared.agreed)
        prepared.agreed = dict(agreed)
        prepared.memory[stage] = memory
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        legs = setup.legs(len(source), self.costs.basis_widths, self.roster)
        for leg in prepared.uncounted(legs, stage, fitting):
            self.books.meter.add(leg)
            if stage == Stage.FIT:  # evaluation takes no virtual time
                self.clock.advance(self.clock.taken_by(leg))

    def set_up_all(self, setup: Setup, source: RecordSource, names: RoundNames) -> tuple[Mapping[str, Any], Any]:
        """Set up all parties, which are hosted in this process: the settled values, and the memory of the parties."""
        roster = self.roster
        records = ExpandedRecords(source, self.bottoms, self.device)
        agreed: Mapping[str, Any] = self.preparation.agreed
        if not agreed:
            weights: list[Tensor] = [network.weight.detach() for network in records.networks]
            agreed = setup.settle([setup.propose(records, m, weight, roster) for m, weight in enumerate(weights)])
        everybody = tuple(range(roster.parties))
        view = PartyView(names, roster, everybody, roster.everybody, Rows(NO_RECORDS, 0, 0), agreed=agreed)
        name = type(self.aggregator).__name__

        def announce(records: int, size: int) -> None:
            rank_zero_info(f"{name}: the parties share {records:,} records, {size / 2**30:.2f} GiB in every process")

        return agreed, set_up(setup, records, self.costs.basis_widths, view, announce, self.listener(NO_RECORDS))

    def forget(self, *stages: Stage) -> None:
        """Free the shares and keys of these stages; a later run of a stage makes new ones."""
        self.preparation.forget(*stages)
        for stage in stages:
            self.books.opened.pop(stage, None)

    def check_faults(self) -> None:
        """Refuse a waiting rule and a policy that do not suit each other, the faults or the aggregator."""
        needed = self.wire.needed(self.roster.parties)
        slow = self.faults.stragglers(self.roster)
        first = self.costs.legs(1)[0]
        quiet = self.wire.traits.loses_quietly
        check_pair(self.waiting, self.missing, self.faults.silent, slow, needed, first.gate, quiet)
        self._refuse_missing()
        late = first.gate == Gate.RULE and self.waiting.leaves_out  # a mere timeout is counted when it happens
        if self.faults.announce or (quiet and (self.faults.silent or late)):
            self._refuse_subtraction()

    def _refuse_subtraction(self) -> None:
        """Refuse hidden sums of one record over different parties."""
        if not self.wire.traits.subtractable or self.allow_embeddings_by_subtraction or self.replayed is not None:
            return
        but_one = ~torch.eye(self.roster.parties, dtype=torch.bool)
        if all(self.missing.plan(self.roster.everybody, included) is None for included in but_one):
            return  # a round without all parties is given up
        raise ConfigurationError(
            f"a party may be absent from some sums of {type(self.aggregator).__name__}, and the sums of a record with "
            "and without a party differ by its embedding; use missing: Skip, MaskedSum with layout: segments, or "
            "PoissonBinomial, or accept it with allow_embeddings_by_subtraction: true"
        )

    def _refuse_missing(self) -> None:
        """Refuse a policy that does not work with this aggregator or with several processes."""
        policy = type(self.missing).__name__
        aggregator = type(self.aggregator).__name__
        everybody = self.roster.everybody
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

    def check_calls(self) -> None:
        """Refuse a rule that calls too few parties; note who is never called."""
        self.check_faults()
        slow = self.faults.stragglers(self.roster)
        everybody = self.roster.everybody
        called = self.waiting.calls(everybody, slow)
        if not self.wire.takes_part(called, called, self.roster).any():
            raise ConfigurationError(
                f"{self.waiting} calls {int(called.sum())} of {len(called)} parties, which are too few for "
                f"{type(self.aggregator).__name__}; use WaitForAll, or fewer stragglers"
            )
        self.books.left_out = tuple(numbers_in(~called))

    # ---- privacy

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
                for n in range(len(read) if missing else 0):
                    if self._usable(order[:n]):
                        fewer = tuple(sorted(order[:n]))
                        events[accounting.event(fewer, self.embedding_widths, roster)] = None
                events[accounting.event(tuple(read), self.embedding_widths, roster)] = None
            self._possible = tuple(event for event in events if event is not None)
        return self._possible

    def _usable(self, parties: list[int]) -> bool:
        """Whether an aggregate can consist of exactly these parties."""
        there = mask_of(parties, self.roster.parties)
        return bool(parties) and torch.equal(self.wire.takes_part(there, there, self.roster), there)

    def refuse_unit(self, unit: str) -> None:
        """Refuse a unit of privacy in which a round of this training may have no ε.

        Raises:
            ConfigurationError: before training, naming what to change.
        """
        for event in self.possible_events():
            event.refuse_unit(unit)

    def protection(self, uploads: int) -> str | None:
        """What the protocol hides of a record after so many uploads, as a text for the summary; None: no claim."""
        claim = self.wire.protection(uploads)
        claim = claim if self.place is not None else self.books.claimed("aggregator", claim)
        said = self.with_exposed(self.with_columns(claim, uploads))
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


def aggregator_notes(exchange: Exchange) -> dict[str, float]:
    """The values that the parties' side of the aggregator reports in a round, by log name."""
    return {f"aggregator/{name}": value for name, value in exchange.parties.notes.items()}


def _of_all_parties(features: Any, others: Tensors, parties: int) -> VerticalBatch:
    """A batch of the features of all parties.

    Raises:
        ConfigurationError: for anything but a tensor for each party.
    """
    if isinstance(features, Tensor) and parties > 1 and not others:
        raise ConfigurationError(
            "features must be a tuple with a tensor for each party; got one tensor of shape "
            f"{tuple(features.shape)}; cut its columns as the partitioner does"
        )
    given = (features, *others) if isinstance(features, Tensor) else features
    tensors = isinstance(given, list | tuple) and all(isinstance(own, Tensor) for own in given)
    if not tensors or len(given) != parties:
        kind = type(given).__name__ if not tensors else f"{len(given)} tensors"
        raise ConfigurationError(
            f"features must be a tuple with a tensor for each of {parties} parties, in order of their numbers; "
            f"got {kind}"
        )
    return VerticalBatch(tuple(given), None, torch.arange(given[0].shape[0]))
