"""SplitVFL: every round all parties send embeddings, and all learn from the server's gradient."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_vfl.aggregators.base import FLOAT_BITS, Aggregator
from lightning_vfl.aggregators.clear import shared_bottoms_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.networks.joint_norm import JointNorm
from lightning_vfl.networks.mlp import MLP, Linear
from lightning_vfl.protocols.base import BOOKS
from lightning_vfl.protocols.books import plain_sgd_rate
from lightning_vfl.protocols.build import BottomFactory, TopFactory, build_norm
from lightning_vfl.protocols.invertible import Exposure, refuse_readable, refuse_solvable
from lightning_vfl.protocols.round import RoundVFL
from lightning_vfl.protocols.update_noise import UpdateNoise
from lightning_vfl.protocols.update_sums import Summed, UpdateSums
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Roll, RoundNames, VerticalBatch
from lightning_vfl.waiting import WaitingRule
from lightning_vfl.wire import Leg


class SplitVFL(RoundVFL):
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
        sum_updates_over: k, for groups that share a bottom: each party sums its update over k rounds that its group
            learns from, and the group's bottom moves once in k rounds. What is not complete when training ends is not
            sent. With plain SGD the step is -η times the sum.
        update_noise: makes the updates of groups noisy before they are sent; None: they are exact.
        allow_invertible_updates: train groups even if the server could compute their records.
        settings: those of ``VFLModule``.

    Raises:
        ConfigurationError: before training, for a waiting rule and a policy that cannot train together, under these
            faults or with this aggregator; for groups whose records the server could compute.

    Examples:
        >>> from lightning_vfl.aggregators import Mean
        >>> module = SplitVFL(Mean(), party_shapes=[(3,), (2,)], num_classes=2)
        >>> module.configure_model()
        >>> module((torch.zeros(5, 3), torch.zeros(5, 2))).shape
        torch.Size([5])
    """

    _plan: RoundPlan | None = None
    _exchange: Exchange | None = None  # of the current round, whose groups send model updates after it

    def __init__(
        self,
        aggregator: Aggregator,
        bottom: BottomFactory = MLP,
        top: TopFactory = Linear,
        width: int = 64,
        waiting: WaitingRule | None = None,
        missing: MissingPolicy | None = None,
        norm: Callable[[int], nn.Module] | None = None,
        sum_updates_over: int = 1,
        update_noise: UpdateNoise | None = None,
        allow_invertible_updates: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator, bottom, top, width, waiting, missing, **settings)
        self._norm = norm
        self.update_noise = update_noise
        self.allow_invertible_updates = allow_invertible_updates
        self._sums = UpdateSums(sum_updates_over)
        self._ids = torch.empty(0, dtype=torch.int64)  # of the round that is going on, where updates are charged
        self._faultless: dict[tuple[tuple[int, int], tuple[tuple[int, ...], ...]], RoundPlan] = {}  # few in a fit

    def configure_model(self) -> None:
        if hasattr(self, "bottoms"):
            return
        super().configure_model()
        width = self.aggregator.out_width(self.width, self.roster)
        self.norm = None if self._norm is None else JointNorm(build_norm(self._norm, width))

    # ---- before training

    def on_fit_start(self) -> None:
        """Refuse what cannot train, then make room for what is remembered."""
        if self.missing.pads and self.norm is not None and not self.norm.by_columns:
            raise ConfigurationError(
                f"missing: {type(self.missing).__name__} keeps absent columns out of the norm, which "
                f"{type(self.norm.norm).__name__} cannot do; use norm: torch.nn.BatchNorm1d (and no sync_batchnorm)"
            )
        if self.roster.shared and getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise ConfigurationError(
                "updates of groups cannot be summed before their gradients are unscaled; use precision bf16-mixed"
            )
        if self.roster.shared:
            refuse_readable(self.aggregator, self.roster, self.allow_invertible_updates)
        self.accounts_updates = self.update_noise is not None and bool(self.roster.shared)
        self._faultless.clear()
        super().on_fit_start()

    def on_train_start(self) -> None:
        """A norm over a batch has to be given one; updates of groups must not determine their records."""
        super().on_train_start()
        schedule = getattr(self.trainer.train_dataloader, "schedule", None)
        if self.roster.shared and self.update_noise is None and not self.allow_invertible_updates:
            for group in self.roster.shared:
                refuse_solvable(self._exposure(group, schedule), self._sums.over)
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

    def _exposure(self, group: tuple[int, ...], schedule: Any) -> Exposure:
        """What the updates of a group tell in this training; without a datamodule, nothing is known of the batches."""
        data, planned = getattr(self._trainer, "datamodule", None), self.trainer.estimated_stepping_batches
        records, batches = 0, []
        if data is not None and schedule is not None:
            present = data.records("train").present
            records = len(data.records("train")) if present is None else int(present[:, list(group)].any(1).sum())
            batches = [len(ids) for ids, _ in schedule.epoch(0)][: int(self.trainer.num_training_batches)]
            if records < len(data.records("train")):  # the others may all be in one batch
                batches = [max(0, size - len(data.records("train")) + records) for size in batches]
        done = self.rounds.get("fit", 0)
        return Exposure(
            group,
            self.embedding_widths[group[0]],
            sum(p.numel() for p in self.bottoms.parties[group[0]].parameters()),
            prod(self.hparams["party_shapes"][group[0]]),
            records,
            batches,
            done + planned - self.trainer.global_step,
            bool(self.faults.models),
        )

    # ---- training

    def training_step(self, batch: VerticalBatch, batch_idx: int) -> Tensor:
        """One round."""
        names = self.next_round(seed_global=True)
        rows = self.rows_of(batch).total, self.coded_rows(batch)
        plan = self._plan = self.plan_round(batch, names.round, rows)
        if plan.roll.called.any():
            self.clock.advance(self.enter_opening(rows[0], names, plan.roll.called))
        self.enter(plan, self.round_costs(*rows))
        self.spend_privacy(plan, batch)
        if self.accounts_updates:
            self._ids = self.joint_ids(batch)
        if plan.skipped:
            self.log_training(None, batch, batch_idx)
            return self.nothing_learnt()
        loss = self.rank_loss(self._through_round(batch, names, plan.roll), batch)
        self.log_training(loss, batch, batch_idx, self.aggregator_notes())
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Nobody learns from a round that they took no part in, or whose answer has not reached them."""
        if self._plan is None:
            return
        if self._plan.skipped:
            self.withhold_everything()
            return
        self.bottoms.withhold(self._plan.withheld)
        exchange = self._exchange
        if exchange is not None:
            learning = [group for group in self.roster.shared if self._plan.learners[list(group)].any()]
            complete = {group: summed for group in learning if (summed := self._added(group)) is not None}
            self._charge_updates(list(complete.values()))
            for group, summed in complete.items():
                self._join(group, summed, optimizer, exchange)
        self._exchange = None

    def _added(self, group: tuple[int, ...]) -> Summed | None:
        """Take the gradients of a group's parties and add them to their sums; gives the sums that are complete."""
        gradients = {}
        for m in group:
            own = list(self.bottoms.parties[m].parameters())
            flat = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in own]
            gradients[m] = torch.cat(flat) if flat else torch.empty(0)
            for p in own:
                p.grad = None
        return self._sums.add(group, gradients, self._ids)

    def _charge_updates(self, sent: list[Summed]) -> None:
        """Charge the records behind noisy updates: a record for as many groups as have its batch in their update."""
        if self.update_noise is None or self.privacy.accountant is None:
            return
        groups = Counter(record for summed in sent for record in set(summed.records.tolist()))
        for number in sorted(set(groups.values())):
            ids = torch.tensor([record for record, count in groups.items() if count == number])
            self.privacy.spend(self.rounds["fit"] - 1, self.update_noise.event(number), ids)  # on the disk first

    def _join(self, group: tuple[int, ...], summed: Summed, optimizer: Optimizer, round: Exchange) -> None:
        """Give the group's shared bottom the sum of its parties' updates as its gradient.

        With plain SGD a party sends its step, -η · gradient (vFedSec, section 3.2.2); any other optimiser runs at the
        server, on the sum of the gradients.
        """
        leading = list(self.bottoms.parties[group[0]].parameters())
        if not leading:
            return
        rate = plain_sgd_rate(optimizer, leading[0])
        scale, noise = 1.0 if rate is None else -rate, self.update_noise
        updates = {
            m: scale * (own if noise is None else noise.noisy(own, round.parties.names, m))
            for m, own in summed.gradients.items()
        }
        shared = shared_bottoms_of(self.aggregator)
        joined = shared.join(shared.tell(updates, round.parties), round.server)
        total = joined.to(updates[group[0]]) / scale
        if self._joint and noise is not None and noise.draws == "system":  # each process has drawn noise of its own
            total = self.trainer.strategy.broadcast(total)
        for p, part in zip(leading, torch.split(total, [p.numel() for p in leading]), strict=True):
            p.grad = part.view_as(p).to(p.dtype)

    def on_train_end(self) -> None:
        """Say what of the groups' updates was not sent."""
        super().on_train_end()
        for group, rounds in self._sums.rounds.items():
            rank_zero_warn(
                f"the parties of group {group} have summed their updates over {rounds} of {self._sums.over} rounds at "
                "the end of training; this sum is not sent"
            )

    def sending_groups(self) -> tuple[tuple[int, ...], ...]:
        return self._sums.due(self.roster.shared)

    def plan_round(self, batch: VerticalBatch, number: int, rows: tuple[int, int] | None = None) -> RoundPlan:
        """What happens in training round ``number``, which is made of the requests 2·number and 2·number + 1.

        ``rows``: records and coded rows of the joint batch, if they have been counted.
        """
        rows = rows or (self.rows_of(batch).total, self.coded_rows(batch))
        held = self._held(batch)
        alike = held is None and not self.faults.models
        key = rows, self.sending_groups()
        if alike and key in self._faultless:
            return self._faultless[key]
        plan = self.planned(
            self.round_costs(*rows),
            torch.ones(self.roster.parties, dtype=torch.bool) if held is None else held,
            self.faults.at(2 * number, self.roster),
            self.faults.at(2 * number + 1, self.roster),
            partial(self.wire.takes_part, roster=self.roster),
        )
        if alike:
            self._faultless[key] = plan
        return plan

    def more_legs(self, rows: int) -> tuple[Leg, ...]:
        """The labels of the batch, from the active party to the server."""
        if self.active is None:
            return ()
        elements, nothing = torch.zeros(self.roster.parties, dtype=torch.int64), torch.zeros(self.roster.parties)
        elements[self.active] = rows
        return (Leg("labels", "server", elements, FLOAT_BITS, nothing.double(), gate="previous"),)

    # ---- the server's output

    def _through_round(self, batch: VerticalBatch, names: RoundNames, roll: Roll) -> Tensor:
        contribution = self.brought(self.bottoms, batch, roll)
        value, exchange = self.exchanged(batch, contribution, names, roll, self.missing)
        self._exchange = exchange if self.roster.shared else None
        if self._joint_training and not roll.complete:  # every process's every parameter has to take part
            value = value + sum(leaf.sum() for leaf in contribution.leaves) * 0.0
        return self.head(value, exchange.aggregate.columns)

    def joined(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The aggregate behind the norm, where there is one; a policy that pads keeps absent columns out of both."""
        if columns is None or not self.missing.pads:
            return value if self.norm is None else self.norm(value)
        return self.missing.after(value if self.norm is None else self.norm(value, columns), columns)

    def owners(self) -> Iterator[nn.Module]:
        yield from self.bottoms.parties
        yield self.top if self.norm is None else nn.ModuleList([self.norm, self.top])

    def protection(self, uploads: int) -> str | None:
        """Of embeddings, in the aggregator's words, and of the model updates of groups."""
        said, noise = super().protection(uploads), self.update_noise
        if not self.roster.shared:
            return said
        if self.allow_invertible_updates:
            words = "the server may compute the records of groups from what it knows (allow_invertible_updates)"
            if noise is not None:
                words += f", but for the noise in their model updates, {noise}"
        elif noise is not None:
            words = f"model updates of groups are noisy, {noise}; their ε is no ε of the embeddings"
        else:
            words = "model updates of groups have fewer numbers in all than their records; nothing more is claimed"
        if noise is not None and noise.draws == "seeded":
            words += "; simulated: draws are known to who knows the seed"
        return words if said is None else f"{said}; {words}"

    # ---- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if "optimizer_states" in checkpoint and self._sums.rounds:
            checkpoint[BOOKS]["update sums"] = self._sums.state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self._sums.load(checkpoint.get(BOOKS, {}).get("update sums", {}))

    def _parts(self) -> dict[str, str]:
        return super()._parts() | {"norm": str(self.norm)}
