"""SplitVFL: in every round, all parties send embeddings and learn from the server's gradient."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.downlinks import Downlink, guard
from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.batched import has_rule
from lightning_vfl.networks.joint_norm import JointNorm
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.protocols.accounts.charging import charge_round, joint_ids, open_account
from lightning_vfl.protocols.build import BottomFactory, TopFactory, build_norm
from lightning_vfl.protocols.checks import labels_of, refuse_scaler
from lightning_vfl.protocols.costs import labels_leg
from lightning_vfl.protocols.faulty_evaluation import faults_of, faulty_output
from lightning_vfl.protocols.groups.exposed import exposure_of
from lightning_vfl.protocols.groups.invertible import refuse_readable, refuse_solvable
from lightning_vfl.protocols.groups.updates import Group, send_updates, tell_of_bottoms
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.labels import tell_of_labels
from lightning_vfl.protocols.loading import BOOKS
from lightning_vfl.protocols.place import keep_own
from lightning_vfl.protocols.round import RoundVFL, aggregator_notes
from lightning_vfl.protocols.step import Step
from lightning_vfl.protocols.subsets import Everybody, Subsets
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.streams import seed_torch
from lightning_vfl.types import RoundNames, Stage, VerticalBatch, joint_rows
from lightning_vfl.waiting import WaitingRule
from lightning_vfl.wire import Leg


class Plans(Protocol):
    """Rounds that have happened."""

    def plan(self, number: int, legs: int) -> RoundPlan:
        """The plan of a training round with so many legs."""
        ...


class SplitVFL(RoundVFL):
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
        allow_invertible_updates: train groups even if the server could compute their records.
        downlink: protects the labels in what the server sends back; None: gradients are sent as they are.
        subsets: the subsets of the parties that each batch is computed for, so that the model can predict without some
            parties; None: ``Everybody()``.
        faults_in_evaluation: validation, test and prediction meet the faults, the waiting rule and the policy too, at
            requests of their own; bytes and virtual seconds are counted, and predictions say who took part.
        settings: settings of ``VFLModule``.

    Raises:
        ConfigurationError: before training, if the waiting rule and the policy cannot be combined, or do not suit the
            faults or the aggregator; for groups whose records the server could compute.

    Examples:
        >>> from lightning_vfl.aggregators import Mean
        >>> module = SplitVFL(Mean(), party_shapes=[(3,), (2,)], num_classes=2)
        >>> module.configure_model()
        >>> module((torch.zeros(5, 3), torch.zeros(5, 2))).shape
        torch.Size([5])
    """

    replayed: Plans | None = None
    """What has happened in a federation, if this training repeats it."""
    _guarded = False  # whether the downlink changes the gradient of the round under way

    def __init__(
        self,
        aggregator: Aggregator,
        bottom: BottomFactory = MLP,
        top: TopFactory = Linear,
        width: int = 64,
        waiting: WaitingRule | None = None,
        missing: MissingPolicy | None = None,
        norm: Callable[[int], nn.Module] | None = None,
        allow_invertible_updates: bool = False,
        downlink: Downlink | None = None,
        subsets: Subsets | None = None,
        faults_in_evaluation: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator, bottom, top, width, waiting, missing, **settings)
        self._norm = norm
        self.subsets = subsets or Everybody()
        self.faults_in_evaluation = faults_in_evaluation
        self.allow_invertible_updates = allow_invertible_updates
        if downlink is not None:
            refuse_other_kind("downlink", downlink, Downlink, "MaxNorm()")
        self.downlink = downlink
        self._faultless: dict[tuple[int, int], RoundPlan] = {}  # a fit has few different plans

    def build(self) -> None:
        super().build()
        self.norm = None if self._norm is None else JointNorm(build_norm(self._norm, self.top_width(), self.keys))
        self._top_may_draw = not has_rule(self.top)
        if self.downlink is not None:
            self.downlink.prepare(self.hparams["num_classes"], self.objective.outputs(self.hparams["num_classes"]))
            guard.refuse_mixed_gradients(self.downlink, self.norm, self.top)
            if guard.protects_labels(self.downlink):
                self.objective.leave_labels()
            guard.refuse_unprotected_loss(
                self.downlink, self.objective.needs_labels, getattr(self.objective, "criterion", None)
            )
        if self.place is not None:
            keep_own(self, self.place.seat)
            self.norm = self.norm if self.scores_here else None

    # ---- before training

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings, then allocate the memory between rounds."""
        self.subsets.check(self.aggregator, self.missing, self.roster)
        if self.subsets.repeats and (self.downlink is not None or self.tap is not None):
            what = "audits listen to" if self.downlink is None else "downlinks change"
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
        if self.roster.shared:
            refuse_scaler(self.trainer, "updates of groups cannot be summed while their gradients are scaled")
            refuse_readable(self.aggregator, self.roster, self.allow_invertible_updates)
        self._faultless.clear()
        super().on_fit_start()
        if self.downlink is not None and self.datamodule is not None and self.place is None:
            classes = self.hparams["num_classes"]
            guard.refuse_other_labels(self.downlink, self.datamodule.records("train"), self.seed, classes)
        if self.downlink is not None and self.downlink.event is not None and self.scores_here:
            refuse_scaler(self.trainer, "gradients cannot be clipped to their bound while they are scaled")
            open_account(self, self.label_privacy, self.datamodule, type(self.downlink).__name__)

    @toolkit_hook
    def on_train_start(self) -> None:
        """Refuse batches that are too small for the norm, and updates of groups that determine their records."""
        super().on_train_start()
        schedule = getattr(self.trainer.train_dataloader, "schedule", None)
        if self.roster.shared and not self.allow_invertible_updates:
            for group in self.roster.shared:
                refuse_solvable(exposure_of(self, group, schedule))
        if schedule is None or self.norm is None or not isinstance(self.norm.norm, nn.modules.batchnorm._BatchNorm):
            return
        processes, smallest = self.trainer.world_size, min(len(ids) for ids, _ in schedule.epoch(0))
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
        self.bottoms.stream = names.seed, ("networks", names.stage, names.round, self.global_rank)
        if self.place is not None:
            return self.place.step(self, batch, names)
        rows = joint_rows(batch).total, self.coded_rows(batch)
        plan = self.plan_round(batch, names.round, rows)
        self.enter_plan(plan, batch, names, rows)
        if plan.skipped:
            return Step(None)
        if self.tap is not None:
            tell_of_labels(self, batch, names)
        rows_of_top = self.subsets.rows(batch, names, plan.roll, self.roster)
        output, exchange = self.run_round(batch, names, plan.roll, self.missing, rows_of_top)
        loss = self.rank_loss(output, self.with_targets(rows_of_top))
        learning = [group for group in self.roster.shared if plan.learners[list(group)].any()]
        return Step(
            loss,
            plan.learning,
            aggregator_notes(exchange),
            before_optimizer=partial(self._send_updates, learning, exchange) if learning else None,
            after_optimizer=tell_of_bottoms(self, learning, exchange) if learning and self.tap is not None else None,
        )

    @property
    def repeats_the_past(self) -> bool:
        return self.replayed is not None

    @property
    def meets_faults(self) -> bool:
        return super().meets_faults and not self.repeats_the_past

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
        """The aggregate, whose gradient the downlink changes in training; its release is charged first."""
        downlink = self.downlink
        if downlink is None or names.stage != Stage.FIT:
            return value
        self._guarded = True
        if downlink.event is not None:
            rows_of_labels = self.label_privacy.places[Stage.FIT][joint_ids(batch)]
            self.label_privacy.spend(names.round, downlink.event, rows_of_labels)
        labels, rows = labels_of(batch), joint_rows(batch)
        records = rows.total / self.trainer.world_size  # whose mean loss is differentiated
        return guard.guarded(value, lambda g: downlink.protect(g, labels, names, rows.start), records)

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

    def _send_updates(self, groups: list[Group], exchange: Exchange, optimizer: Optimizer) -> None:
        send_updates(self, groups, optimizer, exchange)

    def plan_round(self, batch: VerticalBatch, number: int, rows: tuple[int, int] | None = None) -> RoundPlan:
        """The plan of training round ``number``, which makes the requests 2·number and 2·number + 1.

        ``rows``: the numbers of records and of coded rows of the joint batch, if the caller has counted them.
        """
        if self.replayed is not None:
            return self.replayed.plan(number, len(self.costs.of_round(1).legs))
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

    def more_legs(self, rows: int) -> tuple[Leg, ...]:
        """The labels of the batch, from the active party to the server."""
        return labels_leg(rows, self.roster)

    # ---- the server's output

    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The top's output; with ``faults_in_evaluation``, ``attendance`` says who took part."""
        if not self.faults_in_evaluation:
            return super().output(batch, names)
        output, self.attendance = faulty_output(self, batch, names, faults_of(self, names.stage))
        return output

    def _set_up(self, stage: Stage, loaders: Any) -> None:
        if self.faults_in_evaluation:
            self.check_faults()
        super()._set_up(stage, loaders)

    def head(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The server's output; what its networks draw does not depend on the draws of bottoms."""
        if self.training and self.bottoms.stream is not None and self._top_may_draw:
            seed, names = self.bottoms.stream
            seed_torch(value.device, self.keys.get(None, seed), *names, "server")
        return super().head(value, columns)

    def join(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The aggregate after the norm, if there is one; a padding policy leaves absent columns out of both."""
        if self.norm is None:
            return super().join(value, columns)
        if columns is None or self.missing.padding is None:
            normed: Tensor = self.norm(value)
            return normed
        return super().join(self.norm(value, columns), columns)

    def owners(self) -> Iterator[nn.Module]:
        yield from self.bottoms.parties
        yield self.top if self.norm is None else nn.ModuleList([self.norm, self.top])

    def protection(self, uploads: int) -> str | None:
        """The claims of the aggregator about embeddings, of the downlink about labels, and about updates of groups."""
        labels = None if self.downlink is None else self.downlink.claim()
        labels = labels if self.place is not None else self.books.claimed("downlink", labels)
        claims = [super().protection(uploads), labels]
        said = "; ".join(claim for claim in claims if claim) or None
        if not self.roster.shared:
            return said
        if self.allow_invertible_updates:
            words = "the server may compute the records of groups from what it knows (allow_invertible_updates)"
        else:
            words = "model updates of groups have fewer numbers in all than their records; nothing more is claimed"
        return words if said is None else f"{said}; {words}"

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
            self.label_privacy.load(kept["labels"], None if path is None else Path(path))
            self.downlink.load(kept["secrets"])

    def parts(self) -> dict[str, str]:
        return super().parts() | {"norm": str(self.norm)}
