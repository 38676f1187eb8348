"""The training half of a protocol: the order of actions around a step, the one optimiser, and the hooks of a fit."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from inspect import isfunction
from math import inf, nan
from typing import Any, final

import torch
from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.memory import Memory
from lightning_vfl.protocols.accounts.books import PrivacyBooks
from lightning_vfl.protocols.accounts.charging import open_privacy
from lightning_vfl.protocols.books import EpochLoss
from lightning_vfl.protocols.callback_checks import callbacks_of, check_validation, repeat_last_loss
from lightning_vfl.protocols.checks import (
    mean_loss,
    needed_data,
    note_large_labels,
    note_rounded_features,
    one_optimizer,
    refuse_accumulation,
    refuse_blocks,
    refuse_other_batches,
    refuse_other_loss,
    refuse_other_records,
    refuse_reloading,
    refuse_scaler,
    refuse_several_steps,
    refuse_unused_optimizer,
    training_labels,
    warn_unused_hooks,
    warn_unused_rate,
)
from lightning_vfl.protocols.columns_told import Told, say_columns
from lightning_vfl.protocols.constant_output import warn_of_chance
from lightning_vfl.protocols.costs import Costs
from lightning_vfl.protocols.early_build import with_networks
from lightning_vfl.protocols.evaluation import EvaluatedModule
from lightning_vfl.protocols.factories import made
from lightning_vfl.protocols.first_rounds import (
    FEW,
    Movement,
    check_movement,
    refuse_diverged,
    refuse_unasked_faults,
    refuse_unused_parts,
    warn_uncounted,
)
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.logs import log_standing, log_step
from lightning_vfl.protocols.party_summary import with_party_rows
from lightning_vfl.protocols.step import GivenUp, Step
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.streams import seed_torch
from lightning_vfl.types import Roster, RoundNames, Stage, VerticalBatch

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]
_ADAM: OptimizerFactory = partial(torch.optim.Adam, lr=1e-3, fused=True)  # the default


class _OwnGradients:
    """What clipping reads of an optimiser, with the parameters of one owner."""

    def __init__(self, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": parameters}]
        self._step_supports_amp_scaling = getattr(optimizer, "_step_supports_amp_scaling", False)


class TrainedModule(EvaluatedModule):
    """The half of a protocol that trains."""

    bottoms: PartyBank
    roster: Roster
    joiner: str = "the server"  # who joins the embeddings, in words
    costs: Costs
    faults: Faults
    privacy: PrivacyBooks
    privacy_ledger: str
    label_privacy: PrivacyBooks  # of labels, if a downlink is charged
    seed: int
    _rate: float | None = None
    says_who_learns: bool = True  # whether a Step without a fault names exactly the networks that change
    end_before_round: bool = False  # a callback sets it when a round would cost too much
    used: set[str]
    """The parts that training has used, see ``promised``."""
    _compared: bool = False  # whether several processes have compared their weights in this fit
    _movement: Movement | None = None  # until the first rounds of a fit are over
    _within_round: bool = False  # a round has begun, and its optimiser step is not over
    _learns_locally: bool = False  # parties make steps of their own, before the optimiser's step is over
    _pending: Step | None = None  # the rest of the current step, without its loss and with it the graph
    _optimizer: OptimizerFactory | None
    _lr_scheduler: SchedulerFactory | None
    _resumed: dict[str, Any]  # the memory of a checkpoint, until a fit resumes
    _remembered: int | None = None  # the number of records that the memory has room for

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        finished = [base for base in cls.__mro__[1:] if getattr(vars(base).get("step"), "__final__", False)]
        if "step" in vars(cls) and finished:
            raise TypeError(
                f"{cls.__name__} overrides step of {finished[0].__name__}, whose downlink, policy and accounts are "
                "applied there; derive from VFLModule and write step of your own"
            )
        if "configure_optimizers" in vars(cls):
            cls.configure_optimizers = one_optimizer(cls.configure_optimizers)  # type: ignore[method-assign,assignment]
        for name, value in vars(cls).items():
            methods = [vars(base)[name] for base in cls.__mro__[1:] if isfunction(vars(base).get(name))]
            if methods and isinstance(value, str | int | float | list | tuple | dict):
                raise TypeError(
                    f"{cls.__name__} sets {name} to {value!r}, but {name} is a method: write def {name}(self, ...), or "
                    "use another name"
                )
        if "training_step" in vars(cls) and cls.__module__ != __name__:
            raise TypeError(
                f"{cls.__name__} overrides training_step, which calls step; implement step(batch, names) -> Step"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Without the rest of a step, its graph and its listener: a copy has no messages of a round."""
        return {**super().__getstate__(), "_pending": None, "_movement": None, "tap": None}

    @abstractmethod
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """One training round or event.

        Args:
            batch: this process's part of the joint batch.
            names: the names of the round's random streams; torch's global generator is seeded from them.
        """

    @abstractmethod
    def columns_told(self, uploads: int) -> Told | None:
        """What whoever joins the embeddings can compute of the columns after so many uploads of a record."""

    @abstractmethod
    def owners(self) -> Iterator[nn.Module]:
        """The networks that belong to different owners."""

    @property
    @abstractmethod
    def memory(self) -> Memory | None:
        """The state between rounds that is as large as the data; None: the protocol has no such state."""

    @property
    def embedding_widths(self) -> tuple[int, ...]:
        """(M,) the widths of the parties' embeddings."""
        return self.costs.widths

    @property
    def datamodule(self) -> Any:
        """The trainer's datamodule; None if there is none, or if it is a container of loaders without records."""
        data = getattr(self._trainer, "datamodule", None)
        return data if hasattr(data, "records") else None

    @property
    def joint(self) -> bool:
        """Whether several processes train together."""
        return self._trainer is not None and self.trainer.world_size > 1

    @property
    def seeds_networks(self) -> bool:
        """Whether torch's global generator is seeded in the next step, for dropout in networks; default: always."""
        return True

    @property
    def meets_faults(self) -> bool:
        """Whether faults may happen in a round of this process: not in a federation, where they are real."""
        return self.place is None

    def promised(self) -> dict[str, str]:
        """The parts that were given and that a training round must use, in words: by name, see ``used``."""
        aggregator = self.aggregator
        if self.place is not None or (aggregator.wire is None and aggregator.accounting is None):
            return {}
        return {"aggregator": f"aggregator: {type(aggregator).__name__}"}

    # ---- a training step

    @final
    def training_step(self, batch: VerticalBatch, batch_idx: int) -> Tensor:
        """Run, count and log one ``step``. A step without a loss changes no parameter."""
        refuse_other_batches(batch)
        if self._movement is not None and self._movement.is_over(FEW):
            self._check_movement()
        self._within_round = True
        names = self.next_round(seed_global=self.seeds_networks)
        try:
            step = self.step(batch, names)
        except GivenUp:
            step = Step(None)
        refuse_other_kind("what step returns", step, Step, "Step(loss)")
        if self._movement is not None:
            self._check_first(step)
        if step.loss is None:
            self.books.given_up += 1
            self._pending = replace(step, withheld=(self,), learners=None, before_optimizer=None)
        else:
            refuse_other_loss(step.loss)
            self._pending = step.rest()
        log_step(self, step.loss if step.logged is None else step.logged, step.notes, batch, batch_idx)
        return self._nothing() if step.loss is None else step.loss

    def _check_first(self, step: Step) -> None:
        """Refuse faults and parts that the first round has not used; note who is to learn in the first rounds."""
        refuse_unasked_faults(self)
        if self._movement is None:
            return
        if step.loss is None:
            self._movement.pass_by(self)
            return
        if self._movement.rounds == 0:
            refuse_unused_parts(self)
        self._movement.note(self, step)

    def _check_movement(self) -> None:
        """Check once whose weights have changed."""
        movement, self._movement = self._movement, None
        if movement is not None and movement.rounds:
            check_movement(self, movement)
            warn_uncounted(self, movement.rounds)

    def _nothing(self) -> Tensor:
        """A loss that is not known (nan), whose gradients are zero, for an optimiser step that changes no parameter."""
        joint = self.trainer.world_size > 1  # DDP waits for the gradients of all parameters
        parameters = list(self.parameters()) if joint else [next(self.parameters())]
        return torch.stack([parameter.sum() for parameter in parameters]).sum() * 0.0 + nan

    @toolkit_hook
    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Delete the gradients of networks that do not learn: their parameters and optimiser state do not change."""
        step = self._pending
        if step is not None:
            self._pending = Step(None, after_optimizer=step.after_optimizer)
            self._withhold(step)
            if step.before_optimizer is not None:
                step.before_optimizer(optimizer)
        if self._movement is not None and (step is None or self not in step.withheld):
            self._movement.note_gradients(optimizer)

    def _withhold(self, step: Step) -> None:
        """Delete the gradients of networks that do not learn from a step."""
        for network in step.withheld:
            for parameter in network.parameters():
                parameter.grad = None
        if step.learners is None:
            return
        everyone = set(range(self.roster.parties))
        if strangers := set(step.learners) - everyone:
            raise ConfigurationError(
                f"the learners of a Step must be parties from 0 to {self.roster.parties - 1}; got {min(strangers)}"
            )
        if idle := everyone.difference(step.learners):
            self.bottoms.withhold(idle)

    def _after_optimizer(self, *_: Any) -> None:
        """Restore equal copies of shared bottoms; let the protocol use the parameters of after the step."""
        if self._learns_locally:
            return
        step, self._pending = self._pending, None
        if self.roster.shared:
            self.bottoms.follow()
        if step is not None and step.after_optimizer is not None:
            step.after_optimizer()
        self._within_round = False

    @property
    def learners(self) -> Collection[int] | None:
        """Between the backward pass and the optimiser's step: the parties that learn from the step; None: all."""
        step = self._pending
        return () if step is None or self in step.withheld else step.learners

    def next_round(self, seed_global: bool = False) -> RoundNames:
        """The names of the next round's random streams; ``seed_global``: also seed torch's global generator."""
        stage = self.stage
        number = self.books.next_round(stage)
        if seed_global:  # dropout masks become a function of the round: a resumed run needs no generator state
            seed = self.keys.get(self.owner, self.seed)
            seed_torch(self.device, seed, "networks", stage, number, self.global_rank)
        return RoundNames(self.seed, stage, number)

    def rank_loss(self, output: Tensor, batch: VerticalBatch) -> Tensor:
        """This process's loss, weighted by its rows: the mean over processes is the mean loss of the joint batch."""
        mine = len(batch.record_ids)
        if mine == 0:  # the joint batch has fewer rows than there are processes: this process contributes zero
            return output.sum() * 0.0
        loss = mean_loss(self.objective, output, batch)
        return loss if batch.joint is None else loss * (mine * self.trainer.world_size / batch.joint.total)

    @property
    def clock(self) -> VirtualClock:
        """The virtual time of the training, and the speeds behind it."""
        return self.books.clock

    @clock.setter
    def clock(self, clock: VirtualClock) -> None:
        self.books.clock = clock
        if hasattr(self, "costs"):
            self.costs.use(clock)

    # ---- optimiser

    @property
    def lr(self) -> float | None:
        """The rate that replaces that of ``optimizer``; LearningRateFinder sets it.

        A module with an own ``configure_optimizers`` and a ``learning_rate`` has none: Lightning then searches the
        ``learning_rate``.
        """
        own = type(self).configure_optimizers is not TrainedModule.configure_optimizers
        if own and self._rate is None and ("learning_rate" in vars(self) or "learning_rate" in self.hparams):
            raise AttributeError("lr")
        return self._rate

    @lr.setter
    def lr(self, rate: float | None) -> None:
        self._rate = rate

    def configure_optimizers(self) -> Any:
        """One optimiser for all networks: ``global_step`` counts rounds; a party without gradient does not change."""
        make = self._optimizer or _ADAM
        own = {id(p) for p in self.bottoms.parameters()}  # of a bottom that a group shares, the optimiser has one copy
        parameters = self.bottoms.leading() + [p for p in self.parameters() if id(p) not in own]
        once = list(dict.fromkeys(parameters))  # parties may share a frozen layer
        optimizer = made("optimizer", make, once, Optimizer)
        self.used.add("optimizer")
        for group in optimizer.param_groups if self._rate is not None else ():
            group["lr"] = self._rate
        if self._lr_scheduler is None:
            return optimizer
        schedule = made("lr_scheduler", self._lr_scheduler, optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val/loss"}}

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """As Lightning's, but separately for each owner: no owner knows the gradient norm of another.

        Lightning's ``configure_gradient_clipping`` calls this function, and one of an author may. Networks that
        ``owners`` does not name are clipped together with those of the last owner, the server.
        """
        values = gradient_clip_val, self.trainer.gradient_clip_val
        if not any(values) and gradient_clip_algorithm in (None, self.trainer.gradient_clip_algorithm):
            return
        by_owner = [list(network.parameters()) for network in self.owners()]
        named = {id(parameter) for parameters in by_owner for parameter in parameters}
        by_owner[-1] += [parameter for parameter in self.parameters() if id(parameter) not in named]
        for parameters in by_owner:
            own = _OwnGradients(optimizer, parameters)
            super().clip_gradients(own, gradient_clip_val, gradient_clip_algorithm)  # type: ignore[arg-type]

    # ---- the hooks of a fit

    @toolkit_hook
    def configure_callbacks(self) -> list[Callback]:
        """Give Lightning's default summary a row for each party; build networks in time for weight averages."""
        callbacks = callbacks_of(self.trainer)
        callbacks[:] = map(with_party_rows, with_networks(callbacks))
        return []

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse unsuitable settings; set up the parties; allocate the memory between rounds."""
        self.clock.speeds(self.roster.parties)
        self.faults.check(self.roster)
        self.faults.asked = False
        if self.faults.models:
            refuse_scaler(self.trainer, "a gradient scaler fails in a round that is given up, which has no gradients")
        if self.scores_here:  # a party's process has no labels
            if (who := self.objective.needs_labels) is not None:
                self.objective.take_labels(training_labels(self.datamodule, who))
            elif self.objective.may_use_labels and self.datamodule is not None:
                self.objective.take_labels(training_labels(self.datamodule, "the objective"))
            note_large_labels(self.objective, self.datamodule)
        note_rounded_features(self.trainer, self.datamodule)
        self.prepare(Stage.FIT, "train")
        if self.scores_here:
            check_validation(self)
        open_privacy(self, self.datamodule)
        say_columns(self)
        if self.memory is None:
            return
        who = f"{type(self).__name__} stores embeddings by record and must know the records"
        records = len(needed_data(self.datamodule, who).records("train"))
        if self._remembered == records:  # a second fit continues with the memory of the first
            self.memory.move(self.device)
        else:
            self.memory.prepare(records, self.embedding_widths, self.device)
            self._remembered = records
        if self._resumed:
            self.memory.load(self._resumed)
        self._resumed = {}

    def prepare(self, stage: Stage, split: str) -> None:
        """Let the parties set up a stage before its first round, and count the traffic of the set-up."""
        aggregator = self.aggregator
        if self.datamodule is not None:
            present = self.datamodule.records(split).present
            self.wire.refuse_partly_held(present, self.roster)
            if present is not None and self.place is not None and not self.wire.traits.visible:
                raise ConfigurationError(
                    f"records that some party does not hold are not between processes with {type(aggregator).__name__} "
                    "yet; use overlap: inner, or an aggregator whose server reads the embeddings, such as Mean"
                )
        if aggregator.setup is None:
            return
        who = f"{type(aggregator).__name__} is set up before the first round and must know the records"
        source = needed_data(self.datamodule, who).records(split)
        refuse_blocks(source, type(aggregator).__name__)
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        if stage == Stage.FIT and self.trainer.ckpt_path is None:
            self.preparation.start_over()
        names = RoundNames(self.seed, stage, 0)
        by = None if self.place is None else partial(self.place.set_up, self, source, names)
        basis, roster, device = self.costs.basis_widths(), self.roster, self.device
        hear = self.listener(torch.empty(0, dtype=torch.int64))
        for leg in self.preparation.run(
            aggregator, self.bottoms, basis, source, roster, names, device, fitting, by, hear
        ):
            self.books.meter.add(leg)
            if stage == Stage.FIT:  # evaluation takes no virtual time
                self.clock.advance(float((self.clock.computing(leg.flops) + self.clock.transfer(leg)).max()))

    @toolkit_hook
    def on_train_start(self) -> None:
        """Store the number of mini-batches of a pass, which is known from here on."""
        for optimizer in self.trainer.optimizers:  # also those that a subclass has made
            optimizer.register_step_post_hook(self._after_optimizer)
            refuse_several_steps(optimizer)
        warn_unused_rate(self.trainer, self._rate, "optimizer" in self.used)
        refuse_unused_optimizer(type(self).__name__, self._optimizer, self._lr_scheduler, "optimizer" in self.used)
        if not self.joint:  # DDP calls forward
            warn_unused_hooks(self)
        self._movement, self._compared = None if self.place is not None else Movement(self), False
        repeat_last_loss(self.trainer)
        loader = self.trainer.train_dataloader
        refuse_other_records(self.preparation.sources.get(Stage.FIT), loader, type(self.aggregator).__name__)
        refuse_reloading(self.trainer, loader)
        schedule, steps = getattr(loader, "schedule", None), self.trainer.num_training_batches
        self.books.pass_batches = steps if schedule is None else schedule.pass_batches
        known = int(steps) if steps < inf else 1  # of a loader without length, each round may have the same records
        self.books.epoch_batches = known if schedule is None else schedule.steps

    @toolkit_hook
    def on_train_batch_start(self, batch: VerticalBatch, batch_idx: int) -> int | None:
        """End the epoch (-1) if a callback has set ``end_before_round``."""
        if not self.end_before_round:
            return None
        self.trainer.should_stop = True
        return -1

    @toolkit_hook
    def on_train_epoch_start(self) -> None:
        """Refuse gradient accumulation again, which a callback may have changed, and an epoch without a step."""
        refuse_accumulation(self.trainer)
        if self._movement is not None and self._movement.rounds and not self._movement.steps:
            self._check_movement()

    @toolkit_hook
    def on_train_epoch_end(self) -> None:
        """Log the progress of the training; after the first epoch, compare the weights of several processes."""
        if self.joint and not self._compared:
            self._compared = True
            refuse_diverged(self)
        log_standing(self)

    @toolkit_hook
    def on_train_end(self) -> None:
        """Reset the epoch's loss: a later fit starts its first epoch from zero."""
        self._check_movement()
        self.books.epoch_loss = EpochLoss()

    @toolkit_hook
    def on_fit_end(self) -> None:
        """Warn of a model that predicts the same for every record; free the memory of the shares."""
        warn_of_chance(self, self.val.spread, "val")
        self.forget(Stage.FIT, Stage.VALIDATION)
