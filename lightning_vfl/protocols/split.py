"""SplitVFL: every round all parties send embeddings, and all learn from the server's gradient."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_vfl.aggregators.base import FLOAT_BITS, Aggregator
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.networks.joint_norm import JointNorm
from lightning_vfl.networks.mlp import MLP, Linear
from lightning_vfl.planning import RoundPlan, check_pair, plan_round
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.protocols.base import BOOKS, VFLModule
from lightning_vfl.protocols.books import plain_sgd_rate
from lightning_vfl.protocols.build import BottomFactory, TopFactory, build_norm, refuse_overlap
from lightning_vfl.protocols.preparation import of
from lightning_vfl.rounds import Exchange, contribute, contribute_some
from lightning_vfl.types import Contribution, Leg, PartyView, Roll, RoundNames, ServerView, VerticalBatch
from lightning_vfl.waiting import Ignore, WaitForAll, WaitingRule


class SplitVFL(VFLModule):
    """Synchronous split learning over vertical partitions, with any aggregator.

    One round is one mini-batch is one optimiser step: the parties' bottoms give embeddings, the aggregator joins them
    at the server, the top gives the loss, and the gradient goes back the same way. A waiting rule says when the server
    stops waiting for embeddings, a policy what stands in for those that are missing then.

    A party learns from a round if its embedding is in the aggregate and the server's answer reaches it. A party that
    holds none of a batch's records takes no part in that round and is not missed. A round with nobody in it, or whose
    server is down, is given up: nobody learns, its time and bytes are spent. In evaluation nothing is late or lost; who
    is never called in training (``Ignore``) is not called there either.

    Not guaranteed: a meaning for batch norm in the bottoms when records are partly held; rows that a party does not
        hold run through its bottom as zeros, and only their embeddings are left out; with several processes, whoever is
        missing runs its bottom all the same, and a batch norm sees the rows of its process alone.

    Args:
        aggregator: how the embeddings of the parties become one tensor.
        waiting: when the server stops waiting; None: ``WaitForAll()``.
        missing: what happens about the missing; None: ``Exclude()``.
        norm: makes a norm over the aggregate, in front of the top, from its width; None: there is none.
        settings: those of ``VFLModule``.

    Raises:
        ConfigurationError: before training, for a waiting rule and a policy that cannot train together, under these
            faults or with this aggregator.

    Example:
        >>> from lightning_vfl.aggregators import Mean
        >>> module = SplitVFL(Mean(), party_shapes=[(3,), (2,)], num_classes=2)
        >>> module.configure_model()
        >>> module((torch.zeros(5, 3), torch.zeros(5, 2))).shape
        torch.Size([5])
    """

    _plan: RoundPlan | None = None
    _view: PartyView | None = None  # of the round that is going on, for what the parties of groups send after it
    _notes: Mapping[str, float] = MappingProxyType({})
    _possible: tuple[PrivacyEvent, ...] | None = None
    left_out: tuple[int, ...] = ()  # the parties that training never calls

    def __init__(
        self,
        aggregator: Aggregator,
        bottom: BottomFactory = MLP,
        top: TopFactory = Linear,
        width: int = 64,
        waiting: WaitingRule | None = None,
        missing: MissingPolicy | None = None,
        norm: Callable[[int], nn.Module] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator, bottom, top, width, **settings)
        self._norm = norm
        self.waiting = waiting or WaitForAll()
        self.missing = missing or Exclude()

    def configure_model(self) -> None:
        if hasattr(self, "bottoms"):
            return
        super().configure_model()
        width = self.aggregator.out_width(self.width, self.roster)
        self.norm = None if self._norm is None else JointNorm(build_norm(self._norm, width))
        self._faultless: dict[tuple[int, int], RoundPlan] = {}  # by rows: a fit knows two batch sizes at most
        self._evaluation_legs: dict[tuple[int, str], tuple[Leg, ...]] = {}

    # ---- before training

    def on_fit_start(self) -> None:
        """Refuse what cannot train, then make room for what is remembered."""
        needed = self.aggregator.min_responses(self.roster.parties)
        slow = self.faults.stragglers(self.roster)
        first = self.aggregator.legs(1, self.embedding_widths, self.basis_widths(), self.roster)[0]
        quiet = self.aggregator.loses_quietly
        check_pair(self.waiting, self.missing, self.faults.silent, slow, needed, first.gate, quiet)
        policy, aggregator = type(self.missing).__name__, type(self.aggregator).__name__
        if (self.missing.needs_visible or self.missing.fills) and not self.aggregator.visible:
            raise ConfigurationError(
                f"missing: {policy} stands in for single embeddings, which {aggregator} hides from the server; "
                "use Exclude, PadAfterNorm or Skip"
            )
        if self.missing.pads and self.norm is not None and not self.norm.by_columns:
            raise ConfigurationError(
                f"missing: {policy} keeps absent columns out of the norm, which {type(self.norm.norm).__name__} cannot "
                "do; use norm: torch.nn.BatchNorm1d (and no sync_batchnorm)"
            )
        if self.roster.shared and getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise ConfigurationError(
                "updates of groups cannot be summed before their gradients are unscaled; use precision bf16-mixed"
            )
        if self.missing.remembers and self._joint:
            raise ConfigurationError(
                f"missing: {policy} would remember in each process only the records that this process has seen; "
                "train in one process, or use Exclude, Zeros or Skip"
            )
        if isinstance(self.waiting, Ignore) and not slow.any():
            warnings.warn("Ignore leaves nobody out: no fault model names a straggler", stacklevel=1)
        everybody = torch.ones(self.roster.parties, dtype=torch.bool)
        called = self.waiting.calls(everybody, slow)
        if not self.aggregator.takes_part(called, called, self.roster).any():
            raise ConfigurationError(
                f"{self.waiting} calls {int(called.sum())} of {len(called)} parties, from whom {aggregator} can make "
                "nothing; use WaitForAll, or fewer stragglers"
            )
        self.left_out = tuple((~called).nonzero().flatten().tolist())
        self._faultless.clear()
        self._possible = None
        super().on_fit_start()

    @property
    def remembers(self) -> bool:
        return self.missing.remembers

    def prepare_memory(self, records: int) -> None:
        self.missing.prepare(records, self.embedding_widths, self.device)

    def memory_state(self) -> dict[str, Any]:
        return self.missing.state()

    def load_memory(self, state: dict[str, Any]) -> None:
        self.missing.load_state(state)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint[BOOKS]["left_out"] = list(self.left_out)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.left_out = tuple(checkpoint.get(BOOKS, {}).get("left_out", ()))

    def on_train_start(self) -> None:
        """A norm over a batch has to be given one."""
        super().on_train_start()
        schedule = getattr(self.trainer.train_dataloader, "schedule", None)
        if schedule is None or self.norm is None or not isinstance(self.norm.norm, nn.modules.batchnorm._BatchNorm):
            return
        processes, smallest = self.trainer.world_size, min(len(ids) for ids, _ in schedule.epoch(0))
        if smallest < 2 * processes:
            raise ConfigurationError(
                f"the smallest batch of an epoch has {smallest} records, and each of the processes ({processes}) needs "
                "two of them for a norm; use drop_last: true or another batch_size"
            )
        if processes > 1:
            rank_zero_warn(
                f"with {processes} processes {type(self.norm.norm).__name__} normalises the rows of each by "
                "themselves, not the joint batch"
            )

    # ---- training

    def training_step(self, batch: VerticalBatch, batch_idx: int) -> Tensor:
        """One round."""
        names = self.next_round(seed_global=True)
        rows = self.rows_of(batch).total, self.coded_rows(batch)
        plan = self._plan = self.plan_round(batch, names.round, rows)
        if plan.roll.called.any():
            self.enter_opening(rows[0], names, plan.roll.called)
        self.enter(plan, self.round_costs(*rows))
        self.spend_privacy(plan, batch)
        if plan.skipped:
            self.log_training(None, batch, batch_idx)
            return self.nothing_learnt()
        loss = self.rank_loss(self._through_protocol(batch, names, plan.roll), batch)
        self.log_training(loss, batch, batch_idx, {f"aggregator/{name}": value for name, value in self._notes.items()})
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Nobody learns from a round that they took no part in, or whose answer has not reached them."""
        if self._plan is None:
            return
        if self._plan.skipped:
            self.withhold_everything()
            return
        self.bottoms.withhold(self._plan.withheld)
        for group in self.roster.shared:
            if self._view is not None and self._plan.learners[list(group)].any():
                self._join(group, optimizer, self._view)
        self._view = None

    def _join(self, group: tuple[int, ...], optimizer: Optimizer, view: PartyView) -> None:
        """Give the group's shared bottom the sum of its parties' updates as its gradient.

        With plain SGD a party sends its step, -η · gradient (vFedSec, section 3.2.2); any other optimiser runs at the
        server, on the sum of the gradients.
        """
        copies = {m: list(self.bottoms.parties[m].parameters()) for m in group}
        leading = copies[group[0]]
        rate = plain_sgd_rate(optimizer, leading[0]) if leading else None
        scale = 1.0 if rate is None else -rate
        updates = {}
        for m, own in copies.items():
            flat = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in own]
            updates[m] = scale * torch.cat(flat)
            for p in own:
                p.grad = None
        total = self.aggregator.join_updates(updates, view) / scale
        for p, part in zip(leading, torch.split(total, [p.numel() for p in leading]), strict=True):
            p.grad = part.view_as(p).to(p.dtype)

    def plan_round(self, batch: VerticalBatch, number: int, rows: tuple[int, int] | None = None) -> RoundPlan:
        """What happens in training round ``number``, which is made of the requests 2·number and 2·number + 1.

        ``rows``: records and coded rows of the joint batch, if they have been counted.
        """
        rows = rows or (self.rows_of(batch).total, self.coded_rows(batch))
        held = self._held(batch)
        alike = held is None and not self.faults.models
        if alike and rows in self._faultless:
            return self._faultless[rows]
        plan = plan_round(
            self.round_costs(*rows),
            self.waiting,
            self.missing,
            torch.ones(self.roster.parties, dtype=torch.bool) if held is None else held,
            self.faults.at(2 * number, self.roster),
            self.faults.at(2 * number + 1, self.roster),
            self.faults.stragglers(self.roster),
            self.aggregator.min_responses(self.roster.parties),
            partial(self.aggregator.takes_part, roster=self.roster),
            self.roster,
        )
        if alike:
            self._faultless[rows] = plan
        return plan

    def possible_events(self) -> tuple[PrivacyEvent, ...]:
        """What a round may release: with everybody in it, and, where parties may be missing, with as many as there are.

        Which of them is the worst depends on the unit: of a party's values fewest others, of a record's all.
        """
        if self._possible is None:
            parties, active = range(self.roster.parties), self.active
            missing = self.faults.models or self.waiting.leaves_out or self.left_out
            order = sorted(
                parties, key=lambda m: m != active
            )  # who is with whom does not matter, but for the active one
            subsets = [tuple(sorted(order[:n])) for n in (parties if missing else ()) if self._usable(order[:n])]
            subsets.append(tuple(parties))
            events = (self.aggregator.event(subset, self.embedding_widths, self.roster) for subset in subsets)
            self._possible = tuple(dict.fromkeys(event for event in events if event is not None))
        return self._possible

    def _usable(self, parties: list[int]) -> bool:
        """Whether an aggregate can be of exactly these."""
        there = torch.zeros(self.roster.parties, dtype=torch.bool)
        there[parties] = True
        return bool(parties) and torch.equal(self.aggregator.takes_part(there, there, self.roster), there)

    def more_legs(self, rows: int) -> tuple[Leg, ...]:
        """The labels of the batch, from the active party to the server."""
        if self.active is None:
            return ()
        elements, nothing = torch.zeros(self.roster.parties, dtype=torch.int64), torch.zeros(self.roster.parties)
        elements[self.active] = rows
        return (Leg("labels", "server", elements, FLOAT_BITS, nothing.double(), gate="previous"),)

    def _held(self, batch: VerticalBatch) -> Tensor | None:
        """(M,) bool, the parties that hold at least one row of the joint batch; None: all do, or nobody may tell."""
        if self.aggregator.everybody_called:
            return None
        if batch.joint is None:
            return None if batch.present is None else batch.present.any(0).cpu()
        if batch.joint.held is None:
            return None
        held = torch.zeros(self.roster.parties, dtype=torch.bool)
        held[list(batch.joint.held)] = True
        return held

    # ---- the server's output

    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The top's output, in the clear or through the aggregator's messages."""
        roll = self._evaluation_roll()
        if not self.protected_evaluation:
            return self.output_in_the_clear(batch, roll)
        self._enter_evaluation(self.coded_rows(batch), names.stage, roll)
        self.enter_opening(self.rows_of(batch).total, names, roll.called)
        return self._through_protocol(batch, names, roll, Exclude())

    def _evaluation_roll(self) -> Roll:
        """Everybody but those whom the training has never called: their bottoms have learnt nothing."""
        if not self.left_out:
            return Roll.everyone(self.roster.parties)
        called = torch.tensor([party not in self.left_out for party in range(self.roster.parties)])
        return Roll.of(self.aggregator.takes_part(called, called, self.roster))

    def _through_protocol(
        self, batch: VerticalBatch, names: RoundNames, roll: Roll, policy: MissingPolicy | None = None
    ) -> Tensor:
        aggregator, rows, everyone = self.aggregator, self.rows_of(batch), tuple(range(self.roster.parties))
        if getattr(self._trainer, "datamodule", None) is None:  # ``prepare`` has looked at its records
            aggregator.refuse_partly_held(batch.present, self.roster)
            refuse_overlap(self.roster, batch.present)
        contribution: Contribution
        if aggregator.in_the_clear and not (roll.complete or self._joint_training):
            contribution = contribute_some(self.bottoms, batch.features, roll.included_parties, self.embedding_widths)
        else:
            hidden = None if aggregator.in_the_clear else batch.present
            contribution = contribute(aggregator.form, self.bottoms, batch.features, hidden)
        prepared, stage = self.preparation, of(names.stage)
        records, agreed = prepared.count(stage), prepared.agreed
        parties = PartyView(names, self.roster, everyone, roll.called, rows, None, batch.present, agreed)
        parties = replace(parties, memory=prepared.opened(aggregator, stage, parties))
        self._notes = parties.notes
        self._view = parties if self.roster.shared and names.stage == "fit" else None
        seen = batch.present if aggregator.visible else None
        server = ServerView(names, self.roster, rows, roll, self.embedding_widths, seen, records, agreed)
        exchange = Exchange(aggregator, contribution, parties, server, policy or self.missing)
        value = exchange.run()
        self.enter_corrected(exchange.aggregate.corrected)
        if self._joint_training and not roll.complete:  # every process's every parameter has to take part
            value = value + sum(leaf.sum() for leaf in contribution.leaves) * 0.0
        return self.head(value, exchange.aggregate.columns)

    def head(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The top behind the norm, where there is one; a policy that pads keeps absent columns out of both."""
        if columns is None or not self.missing.pads:
            value = value if self.norm is None else self.norm(value)
        else:
            value = self.missing.after(value if self.norm is None else self.norm(value, columns), columns)
        return super().head(value)

    def owners(self) -> Iterator[nn.Module]:
        yield from self.bottoms.parties
        yield self.top if self.norm is None else nn.ModuleList([self.norm, self.top])

    def _parts(self) -> dict[str, str]:
        return super()._parts() | {"norm": str(self.norm)}

    def _enter_evaluation(self, rows: int, stage: str, roll: Roll) -> None:
        """Evaluation stands in the books under kinds of its own."""
        if (rows, stage) not in self._evaluation_legs:
            legs = self.aggregator.legs(rows, self.embedding_widths, self.basis_widths(), self.roster)
            self._evaluation_legs[rows, stage] = tuple(replace(leg, kind=f"{stage} {leg.kind}") for leg in legs)
        for leg in self._evaluation_legs[rows, stage]:
            self.meter.add(leg, roll.called)
