"""SplitVFL: in every round, all parties send embeddings and learn from the server's gradient."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from math import nan
from typing import Any, ClassVar, final

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.downlinks import Downlink, guard
from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.missing import MissingPolicy, Zeros
from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.flops import Work
from lightning_vfl.networks.halved_top import HalvedTop
from lightning_vfl.networks.joint_norm import JointNorm
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.objectives import labels_of
from lightning_vfl.protocols.accounts.charging import charge, joint_ids, open_account
from lightning_vfl.protocols.build import BottomFactory, Halves, TopFactory, build_norm
from lightning_vfl.protocols.checks import refuse_scaler
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.loading import BOOKS
from lightning_vfl.protocols.message_rounds import MessageRounds
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.protocols.scores import Attendance
from lightning_vfl.protocols.step import Step
from lightning_vfl.protocols.subsets import Everybody, Subsets
from lightning_vfl.rounds.plan import RoundCosts, RoundPlan
from lightning_vfl.simulation.faults import FaultModel, Faults
from lightning_vfl.streams import seed_of
from lightning_vfl.support import Part, Unsupported
from lightning_vfl.types import Roll, RoundNames, Seat, Stage, VerticalBatch, joint_rows, over_rows
from lightning_vfl.waiting import WaitingRule


class SplitVFL(VFLModule):
    """Synchronous split learning over vertical partitions, with any aggregator.

    One round uses one mini-batch and makes one optimiser step: the parties' bottoms compute embeddings, the aggregator
    joins the embeddings at the server, the top computes the loss, and the gradient goes back the same way. The waiting
    rule decides when the server stops waiting for embeddings. The policy decides what replaces missing embeddings.

    A party learns from a round if its embedding is in the aggregate and the server's answer reaches it. A party that
    holds none of a batch's records takes no part in that round and does not count as missing. A round without parties,
    or whose server is down, is given up: no network learns, but its time and bytes are counted. In evaluation no
    message is late or lost; a party that training never calls (``Ignore``) is not called in evaluation either.

    Not guaranteed: a correct batch norm in the bottoms when records are partly held: rows that a party does not hold
        run through its bottom as zeros, and only their embeddings are left out. With several processes, a missing party
        still runs its bottom, and a batch norm uses the rows of its own process only.

    Args:
        aggregator: joins the embeddings of the parties into one tensor.
        waiting: when the server stops waiting; None: ``WaitForAll()``.
        missing: the policy for missing embeddings; None: ``Exclude()``.
        norm: makes a norm over the aggregate, in front of the top, from the aggregate's width; None: no norm.
        downlink: protects the labels in the gradients that leave the server, or the half of a top that the active party
            has; None: gradients are sent as they are.
        subsets: the subsets of the parties that each batch is computed for, so that the model can predict without some
            parties; None: ``Everybody()``.
        faults_in_evaluation: validation, test and prediction meet the faults, the waiting rule and the policy too, at
            requests of their own; bytes and virtual seconds are counted, and predictions say who took part.
        settings: settings of ``VFLModule``.

    Raises:
        ConfigurationError: before training, if the waiting rule and the policy cannot be combined, or do not suit the
            faults or the aggregator; for groups whose records the server could compute.

    Examples:
        >>> import torch
        >>> from lightning_vfl.aggregators import Mean
        >>> module = SplitVFL(Mean(), party_shapes=[(3,), (2,)], num_classes=2)
        >>> module.configure_model()
        >>> module((torch.zeros(5, 3), torch.zeros(5, 2))).shape
        torch.Size([5])
    """

    unsupported: ClassVar[Unsupported] = {Part.DOWNLINK: None, Part.SUBSETS: None, Part.FEDERATION: None}
    _guarded = False  # whether the downlink changes the gradient of the round under way

    def __init__(
        self,
        aggregator: Aggregator,
        bottom: BottomFactory = MLP,
        top: Halves | TopFactory = Linear,
        width: int = 64,
        waiting: WaitingRule | None = None,
        missing: MissingPolicy | None = None,
        norm: Callable[[int], nn.Module] | None = None,
        downlink: Downlink | None = None,
        subsets: Subsets | None = None,
        faults_in_evaluation: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator, bottom, top, width, waiting, missing, **settings)
        self._norm = norm
        self.subsets = subsets or Everybody()
        self.faults_in_evaluation = faults_in_evaluation
        if downlink is not None:
            refuse_other_kind("downlink", downlink, Downlink, "MaxNorm()")
        self.downlink = downlink

    def build(self) -> None:
        super().build()
        self.norm = None if self._norm is None else JointNorm(build_norm(self._norm, self.top_width(), self.keys))
        if self.downlink is not None:
            self.downlink.prepare(self.hparams["num_classes"], self._outputs)
            behind = self.top.active if isinstance(self.top, HalvedTop) else self.top
            guard.refuse_mixed_gradients(self.downlink, None if self.halved else self.norm, behind)
            if guard.protects_labels(self.downlink):
                self.objective.leave_labels()
            guard.refuse_unprotected_loss(
                self.downlink, self.objective.needs_labels, getattr(self.objective, "criterion", None)
            )

    def keep_own(self, seat: Seat) -> None:
        super().keep_own(seat)
        self.norm = self.norm if seat.party is None else None

    # ---- before training

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings, then allocate the memory between rounds."""
        self.subsets.check(self.aggregator, self.missing, self.roster)
        one_gradient = {
            "downlinks change": self.downlink,
            "audits listen to": self.tap,
            "local updates use": self.local_update,
            "compressors send": self.compressor or self.gradient_compressor,
        }
        what = next((words for words, part in one_gradient.items() if part is not None), None)
        if self.subsets.repeats and what is not None:
            raise ConfigurationError(
                f"{what} one gradient of each record in a round, and {type(self.subsets).__name__} computes several; "
                "use DropParties"
            )
        for model in self.subsets.absences:
            self.faults.add(model)
        if self.missing.padding is not None and self.norm is not None and not self.norm.by_columns:
            raise ConfigurationError(
                f"missing: {type(self.missing).__name__} leaves absent columns out of the norm, but "
                f"{type(self.norm.norm).__name__} cannot leave out columns; use norm: torch.nn.BatchNorm1d (without "
                "sync_batchnorm)"
            )
        super().on_fit_start()
        if self.downlink is not None and guard.protects_labels(self.downlink):
            for found in getattr(self.datamodule, "label_statistics", tuple)():
                raise ConfigurationError(
                    f"{type(self.downlink).__name__} does not protect what features take from the labels: {found}"
                )
        if self.downlink is not None and self.datamodule is not None and self.place is None:
            classes = self.hparams["num_classes"]
            guard.refuse_other_labels(self.downlink, self.datamodule.records("train"), self.seed, classes)
        if self.downlink is not None and self.downlink.event is not None and self.scores_here:
            refuse_scaler(self.trainer, "gradients cannot be clipped to their bound while they are scaled")
            open_account(self, self.label_privacy, self.datamodule, type(self.downlink).__name__)

    @toolkit_hook
    def on_train_start(self) -> None:
        """Refuse batches that are too small for the norm."""
        super().on_train_start()
        schedule = getattr(self.trainer.train_dataloader, "schedule", None)
        if schedule is None or self.norm is None or not isinstance(self.norm.norm, nn.modules.batchnorm._BatchNorm):
            return
        processes = self.trainer.world_size
        smallest = min(len(ids) for ids, _ in schedule.epoch(0))
        if smallest < 2 * processes:
            raise ConfigurationError(
                f"the smallest batch of an epoch has {smallest} records, but the norm needs two records in each of the "
                f"processes ({processes}); use drop_last: true or another batch_size"
            )
        if processes > 1:
            rank_zero_warn(
                f"with {processes} processes {type(self.norm.norm).__name__} normalises the rows of each process "
                "separately, not the joint batch"
            )

    # ---- training

    @final
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """Run one round."""
        outcome = self.round(batch, names)
        return outcome.learn(self.rank_loss(outcome.output, outcome.batch))

    def rows_at_server(self, batch: VerticalBatch, names: RoundNames, roll: Roll) -> VerticalBatch:
        everybody = type(self.subsets) is Everybody
        return batch if everybody else self.subsets.rows(batch, names, roll, self.roster)

    def promised(self) -> dict[str, str]:
        downlink = {} if self.downlink is None else {"downlink": f"downlink: {type(self.downlink).__name__}"}
        return super().promised() | downlink

    def with_targets(self, batch: VerticalBatch) -> VerticalBatch:
        """The batch with the labels that the loss sees."""
        if self.downlink is None:
            return batch
        if self._guarded:
            self._guarded = False
            self.used.add("downlink")
            self.books.enter_part("downlink")
        return batch._replace(labels=self.downlink.targets(labels_of(batch), batch.record_ids, self.seed))

    def guard(self, value: Tensor, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The aggregate or the cut, whose gradient the downlink changes in training; its release is charged first."""
        downlink = self.downlink
        if downlink is None or names.stage != Stage.FIT:
            return value
        self._guarded = True
        if downlink.event is not None:
            rows_of_labels = self.label_privacy.places[Stage.FIT][joint_ids(batch)]
            self.label_privacy.spend(names.round, downlink.event, rows_of_labels)
        labels = labels_of(batch)
        rows = joint_rows(batch)
        records = rows.total / self.trainer.world_size  # whose mean loss is differentiated
        return guard.guarded(value, lambda g: downlink.protect(g, labels, names, rows.start), records)

    # ---- the server's output

    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The top's output; with ``faults_in_evaluation``, ``attendance`` says who took part."""
        if not self.faults_in_evaluation:
            return super().output(batch, names)
        output, self.attendance = faulty_output(self, batch, names, faults_of(self, names.stage, self.subsets.absences))
        return output

    def _set_up(self, stage: Stage, loaders: Any, batches: Any) -> None:
        if self.faults_in_evaluation:
            self.check_faults()
        super()._set_up(stage, loaders, batches)

    def join(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The aggregate after the norm, if there is one; a padding policy leaves absent columns out of both."""
        if self.norm is not None:
            padded = columns is not None and self.missing.padding is not None
            value = self.norm(value, columns) if padded else self.norm(value)
        return value if columns is None else super().join(value, columns)

    def owners(self) -> Iterator[nn.Module]:
        *parties, server = super().owners()
        yield from parties
        yield server if self.norm is None else nn.ModuleList([self.norm, server])

    def protection(self, uploads: int) -> str | None:
        """The claims about embeddings and updates of groups, and that of the downlink about labels."""
        labels = None if self.downlink is None else self.downlink.claim()
        labels = labels if self.place is not None else self.books.claimed("downlink", labels)
        claims = [super().protection(uploads), labels]
        return "; ".join(claim for claim in claims if claim) or None

    # ---- checkpoints

    @toolkit_hook
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if self.downlink is not None:
            kept = {"labels": self.label_privacy.state(), "secrets": dict(self.downlink.state())}
            checkpoint[BOOKS]["downlink"] = {
                **kept,
                "title": guard.title(self.downlink),
                "settings": guard.settings_of(self.downlink),
            }

    @toolkit_hook
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        kept = checkpoint.get(BOOKS, {}).get("downlink")
        if self.downlink is not None and self.stage == Stage.FIT:
            guard.refuse_other_downlink(self.downlink, kept)
        if self.downlink is not None and kept is not None:
            path = None if self._trainer is None else self.trainer.ckpt_path
            self.label_privacy.load(kept["labels"], path)
            self.downlink.load(kept["secrets"])

    def parts(self) -> dict[str, str]:
        return super().parts() | {"norm": str(self.norm)}


# ---- evaluation that meets the faults, the waiting rule and the policy of training


def faults_of(module: MessageRounds, stage: Stage, subsets: Collection[FaultModel]) -> Faults:
    """The faults of a stage: the models of training with streams of their own, without the subsets of training."""
    faults = Faults(seed_of(module.seed, "faults in evaluation", stage))
    for model in module.faults.models:
        if not any(model is own for own in subsets):
            faults.add(model)
    return faults


def policy_of(module: MessageRounds) -> MissingPolicy:
    """The policy in evaluation: records of an evaluation have no earlier embedding, so ``Stale`` puts zeros."""
    return Zeros() if module.missing.memory is not None else module.missing


def plan_evaluation(
    module: MessageRounds, costs: RoundCosts, batch: VerticalBatch, names: RoundNames, faults: Faults
) -> RoundPlan:
    """The plan of an evaluation round: the forward half of a training round, at requests 2·round and 2·round + 1."""
    roster = module.roster
    held = roster.everybody
    if batch.present is not None and not module.wire.traits.everybody_called:
        held = batch.present.any(0).cpu()
    forward = faults.at(2 * names.round, roster)
    backward = faults.at(2 * names.round + 1, roster)
    backward = replace(backward, receives=torch.ones_like(held))  # nobody waits for an answer
    return module.plan(costs, held, forward, backward, policy=policy_of(module))


def forward_costs(module: MessageRounds, batch: VerticalBatch, names: RoundNames) -> RoundCosts:
    """Traffic and seconds of the forward half of a round; legs have the kinds of their stage."""
    bottoms, top = module.costs.work
    forward = [Work(work.forward, 0.0) for work in bottoms]
    rows = joint_rows(batch).total
    legs, cut = module.costs.of_evaluation(rows, module.coded_rows(batch), names.stage)
    return RoundCosts.of(legs, None, rows, forward, Work(top.forward, 0.0), module.clock, cut=cut)


def faulty_output(
    module: MessageRounds, batch: VerticalBatch, names: RoundNames, faults: Faults
) -> tuple[Tensor, Attendance]:
    """The top's output (B, outputs) of a round with faults, and who took part; its bytes and seconds are counted.

    Records without a prediction have NaN: those of a round that is given up, and those that no party has answered.
    """
    costs = forward_costs(module, batch, names)
    plan = plan_evaluation(module, costs, batch, names, faults)
    roll = plan.roll
    # books and privacy account, before anything is sent
    if plan.reached:
        module.clock.advance(module.enter_opening(joint_rows(batch).total, names, roll.called))
    module.books.enter(plan, costs)
    module.clock.advance(plan.seconds)
    if module.protected_evaluation:
        charge(module, roll, plan.sent[0], batch)

    parties = roll.holders(batch.record_ids, batch.present)
    if plan.skipped:
        nobody = torch.zeros_like(parties)
        like = module.output_in_the_clear(batch, Roll.everyone(module.roster.parties))
        return torch.full_like(like, nan), Attendance(nobody, module.answers(nobody))
    if module.protected_evaluation:
        output, _ = module.run_round(batch, names, roll, policy_of(module))
    else:
        embeddings = module.bottoms(batch.features)
        h = tuple(x if roll.included[m] else torch.zeros_like(x) for m, x in enumerate(embeddings))
        columns = module.aggregator.columns(module.embedding_widths, roll)
        output = module.output_of(h, roll, batch.present, columns)
    answered = module.answers(parties)
    no_prediction = ~over_rows(answered, output)
    return output.masked_fill(no_prediction, nan), Attendance(parties, answered)
