"""The training of a protocol: what happens around a step, in which order; the one optimiser; the course of a fit."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.memory import Memory
from lightning_vfl.protocols.accounts.books import PrivacyBooks
from lightning_vfl.protocols.accounts.charging import open_privacy
from lightning_vfl.protocols.books import EpochLoss
from lightning_vfl.protocols.checks import (
    labels_of,
    needed_data,
    refuse_accumulation,
    refuse_other_records,
    refuse_scaler,
    refuse_several_steps,
)
from lightning_vfl.protocols.costs import Costs
from lightning_vfl.protocols.evaluation import EvaluatedModule
from lightning_vfl.protocols.logs import log_standing, log_step
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.plan import plan_faultless
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.streams import seed_torch
from lightning_vfl.types import Roster, RoundNames, Stage, VerticalBatch, joint_rows

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]


class TrainedModule(EvaluatedModule, ABC):
    """The half of a protocol that trains."""

    bottoms: PartyBank
    roster: Roster
    costs: Costs
    clock: VirtualClock
    faults: Faults
    privacy: PrivacyBooks
    privacy_ledger: str
    seed: int
    accounts_updates: bool = False  # the model updates of groups are charged to their records
    end_before_round: bool = False  # set by a callback, when a round would cost too much
    _step = Step(None)  # of the round that is going on
    _optimizer: OptimizerFactory | None
    _lr_scheduler: SchedulerFactory | None
    _resumed: dict[str, Any]  # the memory of a checkpoint, until a fit goes on
    _remembered: int | None = None  # how many records the memory has room for

    @abstractmethod
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """One training round or event.

        Args:
            batch: this process's part of the joint batch.
            names: the names of the round's randomness; torch's global generator is seeded by them.
        """

    @abstractmethod
    def owners(self) -> Iterator[nn.Module]:
        """The networks that belong to different owners."""

    @property
    @abstractmethod
    def memory(self) -> Memory | None:
        """What is kept between rounds and is as large as the data; None: nothing."""

    @property
    def embedding_widths(self) -> tuple[int, ...]:
        """(M,) the widths of the parties' embeddings."""
        return self.costs.widths

    @property
    def datamodule(self) -> Any:
        """The trainer's datamodule; None: it has none, or there is no trainer."""
        return getattr(self._trainer, "datamodule", None)

    @property
    def joint(self) -> bool:
        """Whether several processes train together."""
        return self._trainer is not None and self.trainer.world_size > 1

    # ---- a training step

    @final
    def training_step(self, batch: VerticalBatch, batch_idx: int) -> Tensor:
        """One ``step``, booked and logged. A step without a loss leaves no trace in any parameter."""
        self._step = step = self.step(batch, self.next_round(seed_global=True))
        if step.loss is None:
            self.books.given_up += 1
        log_step(self, step.loss if step.logged is None else step.logged, step.notes, batch, batch_idx)
        return self._nothing() if step.loss is None else step.loss

    def _nothing(self) -> Tensor:
        """A zero loss with a gradient, for the optimiser's step from which nobody learns."""
        joint = self.trainer.world_size > 1  # DDP waits for the gradients of all parameters
        parameters = list(self.parameters()) if joint else [next(self.parameters())]
        return torch.stack([parameter.sum() for parameter in parameters]).sum() * 0.0

    @final
    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Take away the gradients of those who do not learn: the optimiser then moves neither them nor their state."""
        step = self._step
        withheld: Iterable[nn.Module] = (self,) if step.loss is None else step.withheld
        for parameter in (p for network in withheld for p in network.parameters()):
            parameter.grad = None
        if step.loss is None:
            return
        if step.learners is not None:
            self.bottoms.withhold(set(range(self.roster.parties)).difference(step.learners))
        if step.before_optimizer is not None:
            step.before_optimizer(optimizer)

    def next_round(self, seed_global: bool = False) -> RoundNames:
        """The names of the round that begins now; ``seed_global``: torch's global generator follows them."""
        stage = self.stage
        number = self.books.next_round(stage)
        if seed_global:  # dropout in any network becomes a function of the round: resume needs no generator state
            seed_torch(self.device, self.seed, "networks", stage, number, self.global_rank)
        return RoundNames(self.seed, stage, number)

    def rank_loss(self, output: Tensor, batch: VerticalBatch) -> Tensor:
        """The loss whose mean over processes is that over the joint batch: more rows count for more."""
        mine = len(batch.record_ids)
        if mine == 0:  # a joint batch smaller than the number of processes: take part with a zero
            return output.sum() * 0.0
        loss = self.objective.loss(output, labels_of(batch))
        return loss if batch.joint is None else loss * (mine * self.trainer.world_size / batch.joint.total)

    def enter_round(self, batch: VerticalBatch) -> None:
        """Enter a round of everybody in which nothing goes wrong; with faults, it is planned with ``plan_round``."""
        costs = self.costs.of_round(joint_rows(batch).total)
        self.books.enter(plan_faultless(costs, self.roster), costs)

    # ---- optimiser

    def configure_optimizers(self) -> Any:
        """One optimiser for everybody: ``global_step`` counts rounds, and a withheld gradient leaves a party alone."""
        make = self._optimizer or (lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True))
        own = {id(p) for p in self.bottoms.parameters()}  # of a bottom that a group shares, one copy is trained
        optimizer = make(self.bottoms.leading() + [p for p in self.parameters() if id(p) not in own])
        refuse_several_steps(optimizer)
        if self.roster.shared:  # whatever moves a shared bottom, its copies are equal before anything else happens
            optimizer.register_step_post_hook(lambda *_: self.bottoms.follow())
        optimizer.register_step_post_hook(self._after_optimizer)
        if self._lr_scheduler is None:
            return optimizer
        scheduler = {"scheduler": self._lr_scheduler(optimizer), "monitor": "val/loss"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _after_optimizer(self, *_: Any) -> None:
        if self._step.after_optimizer is not None:
            self._step.after_optimizer()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip for each owner apart: no owner knows the norm of another's gradient."""
        by_value = getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm) == "value"
        clip = nn.utils.clip_grad_value_ if by_value else nn.utils.clip_grad_norm_
        for network in self.owners() if gradient_clip_val else ():
            clip(network.parameters(), gradient_clip_val or 0.0)

    # ---- the course of a fit

    def on_fit_start(self) -> None:
        """Refuse what cannot train; set up the parties; make room for what is remembered."""
        self.clock.speeds(self.roster.parties)
        self.faults.at(0, self.roster)
        if self.faults.models:
            refuse_scaler(self.trainer, "a round that nobody learns from has no gradients to be unscaled")
        self.prepare(Stage.FIT, "train")
        open_privacy(self, self.datamodule)
        if self.memory is None:
            return
        who = f"{type(self).__name__} remembers embeddings by record and has to know the records"
        records = len(needed_data(self.datamodule, who).records("train"))
        if self._remembered == records:  # a second fit goes on with what the first has left
            self.memory.move(self.device)
        else:
            self.memory.prepare(records, self.embedding_widths, self.device)
            self._remembered = records
        if self._resumed:
            self.memory.load(self._resumed)
        self._resumed = {}

    def prepare(self, stage: Stage, split: str) -> None:
        """Let the parties set up a stage before its first round, and enter what that sends."""
        aggregator = self.aggregator
        if self.datamodule is not None:
            self.wire.refuse_partly_held(self.datamodule.records(split).present, self.roster)
        if aggregator.setup is None:
            return
        who = f"{type(aggregator).__name__} is set up before the first round and has to know the records"
        source = needed_data(self.datamodule, who).records(split)
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        if stage == Stage.FIT and self.trainer.ckpt_path is None:
            self.preparation.start_over()
        names = RoundNames(self.seed, stage, 0)
        for leg in self.preparation.run(aggregator, self.bottoms, source, self.roster, names, self.device, fitting):
            self.books.meter.add(leg)
            if stage == Stage.FIT:  # no virtual time passes in evaluation
                self.clock.advance(float((self.clock.computing(leg.flops) + self.clock.transfer(leg)).max()))

    def on_train_start(self) -> None:
        """How many mini-batches a pass has is known now."""
        loader = self.trainer.train_dataloader
        refuse_other_records(self.preparation.sources.get(Stage.FIT), loader, type(self.aggregator).__name__)
        schedule, steps = getattr(loader, "schedule", None), int(self.trainer.num_training_batches)
        self.books.pass_batches = steps if schedule is None else schedule.pass_batches
        self.books.epoch_batches = steps if schedule is None else schedule.steps

    def on_train_batch_start(self, batch: VerticalBatch, batch_idx: int) -> int | None:
        """A callback may have decided that this round shall not take place: -1 ends the epoch."""
        if not self.end_before_round:
            return None
        self.trainer.should_stop = True
        return -1

    def on_train_epoch_start(self) -> None:
        """A callback may have changed it since."""
        refuse_accumulation(self.trainer)

    def on_train_epoch_end(self) -> None:
        """Where the epoch has got to."""
        log_standing(self)

    def on_train_end(self) -> None:
        """A later fit counts its first epoch anew."""
        self.books.epoch_loss = EpochLoss()

    def on_fit_end(self) -> None:
        """Shares are as large as the data: give them back."""
        self.forget(Stage.FIT, Stage.VALIDATION)
