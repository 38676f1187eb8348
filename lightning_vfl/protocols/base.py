"""What all protocols share: networks, objective, optimiser, evaluation, and books that survive a checkpoint."""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import MeanMetric, Metric, MetricCollection

from lightning_vfl.aggregators.base import FLOAT_BITS, Aggregator
from lightning_vfl.aggregators.clear import shared_bottoms_of, wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.flops import Work, work_of, works_of
from lightning_vfl.networks.mlp import MLP, Linear
from lightning_vfl.objectives import Objective, objective_for
from lightning_vfl.protocols.books import EpochLoss, PrivacyBooks, drop_unplain, is_due
from lightning_vfl.protocols.build import (
    BottomFactory,
    TopFactory,
    build_bottoms,
    build_top,
    refuse_overlap,
    roster_of,
    several,
)
from lightning_vfl.protocols.preparation import Preparation
from lightning_vfl.protocols.single_records import refuse_shared_statistics
from lightning_vfl.protocols.trusted_classes import checked
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.rounds.plan import RoundCosts, RoundPlan, plan_round
from lightning_vfl.schedules.batches import Aligned, InOrder, Schedule, Shuffled
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.faults import Faults, RoundOutcome
from lightning_vfl.simulation.meter import CommunicationMeter
from lightning_vfl.streams import seed_torch
from lightning_vfl.types import RecordSource, Roll, Roster, RoundNames, Rows, Stage, VerticalBatch
from lightning_vfl.waiting import WaitForAll
from lightning_vfl.wire import Leg, LinearForms

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]

BOOKS = "lightning_vfl"  # key in a checkpoint


class Predictions(NamedTuple):
    """Positions (B,) in the predicted records, and probabilities or values (B,) or (B, C)."""

    record_ids: Tensor
    values: Tensor


class VFLModule(LightningModule, ABC):
    """A vertical federated learning protocol: M bottoms, an aggregator, a top, and an exact account of the traffic.

    Subclass it, say how a batch becomes an ``output`` and a training loss, and everything else is here;
    ``docs/extending.md`` does so in under 40 lines. The networks are built in ``configure_model`` from the shapes that
    the datamodule reports, so the same protocol runs on any data.

    Args:
        aggregator: how the embeddings of the parties become one tensor.
        bottom: makes a party's network from (per-record shape of its features, embedding width).
        top: makes the server's network from the aggregate's width. If it declares ``outputs`` and leaves it open, it is
            given the number of outputs that the task needs.
        width: D, the embedding width asked of a party (an aggregator may correct it).
        objective: loss, predictions and default metrics; None: multi-class, binary or regression, as the data say.
        metrics: metrics by name, instead of the objective's; each is updated with (predictions, labels).
        bottom_of: party number -> factory, for parties whose bottom is not ``bottom``'s.
        optimizer: makes the ONE optimiser of all parties and the server from their parameters; None: Adam at 1e-3.
        lr_scheduler: makes a learning-rate schedule, stepped each epoch; ReduceLROnPlateau watches ``val/loss``.
        active: the party that holds the labels, if it is one of those with features; it never drops out.
        clock: speed of links and machines, for the virtual time of the rounds; None: ``VirtualClock()``.
        evaluate: how validation, test and prediction run: ``plain`` in the clear, ``protocol`` through the aggregator's
            messages (metered under kinds of their own), ``auto`` as the aggregator prefers. Nothing fails and no
            virtual time passes there.
        seed: names the randomness of the rounds; None: the seed of ``seed_everything``, else 0.
        party_shapes: per-record shape of each party's features; None: asked of the datamodule.
        num_classes: classes of the labels, None for real-valued ones; asked of the datamodule with ``party_shapes``.
        party_groups: party numbers of each group; the parties of one hold the same columns for different records and
            share a bottom; asked of the datamodule with ``party_shapes``, None: everybody is a group.
        privacy_ledger: where every release is charged, if the aggregator accounts for privacy. ``auto``: a new file
            beside the run; a fit that resumes a checkpoint goes on in the file of that run, and is refused if the file
            is missing. A path: go on in this file, for example that of a run that was killed before its first
            checkpoint. ``lost``: as ``auto``, but a missing file is accepted: the rounds that were released after the
            checkpoint are then not charged, and the summary says so.

    Faults are added to ``faults``, usually by a callback; the protocol asks what happens at a request.

    Guarantee: a party that takes no part in a round has bit-identical parameters and optimiser state afterwards. A run
        resumed from a checkpoint gives the bits of the uninterrupted run. Gradients are clipped for each party and for
        the server apart, because no party sees another's norm.
    Not guaranteed: gradient accumulation and strategies other than one device and DDP; both are refused.

    Raises:
        ConfigurationError: before training, for networks that do not fit the data or the aggregator.
    """

    bottoms: PartyBank
    top: nn.Module
    roster: Roster
    meter: CommunicationMeter
    host_meter: CommunicationMeter | None = None  # where joiners are no parties, what they send
    accounts_updates: bool = False  # the model updates of groups are charged to their records

    def __init__(
        self,
        aggregator: Aggregator,
        bottom: BottomFactory = MLP,
        top: TopFactory = Linear,
        width: int = 64,
        objective: Objective | None = None,
        metrics: Mapping[str, Metric] | None = None,
        bottom_of: dict[int, BottomFactory] | None = None,
        optimizer: OptimizerFactory | None = None,
        lr_scheduler: SchedulerFactory | None = None,
        active: int | None = None,
        clock: VirtualClock | None = None,
        evaluate: Literal["auto", "plain", "protocol"] = "auto",
        seed: int | None = None,
        party_shapes: Sequence[Sequence[int]] | None = None,
        num_classes: int | None = None,
        party_groups: Sequence[Sequence[int]] | None = None,
        privacy_ledger: str = "auto",
    ) -> None:
        super().__init__()
        if width < 1:
            raise ConfigurationError(f"width {width} is no embedding; use width >= 1")
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed  # where seed_everything leaves it
        with warnings.catch_warnings():  # "already saved during checkpointing": dropped below
            warnings.filterwarnings("ignore", message=r"Attribute '\w+' is an instance of `nn.Module`")
            self.save_hyperparameters()
        self.hparams["seed"] = seed
        if party_shapes is not None:  # numpy's integers are no plain data
            self.hparams["party_shapes"] = [[int(side) for side in shape] for shape in party_shapes]
            self.hparams["num_classes"] = None if num_classes is None else int(num_classes)
        if party_groups is not None:
            self.hparams["party_groups"] = [[int(party) for party in group] for group in party_groups]
        for stored in (self.hparams, self._hparams_initial):
            drop_unplain(stored)

        self.aggregator = aggregator
        self.width = width
        self.seed = seed
        self.protected_evaluation = evaluate == "protocol" or (evaluate == "auto" and aggregator.private_evaluation)
        self._bottom, self._bottom_of, self._top, self._metrics = bottom, bottom_of or {}, top, metrics
        self._objective, self._optimizer, self._lr_scheduler = objective, optimizer, lr_scheduler
        self.active = active
        self.clock = clock or VirtualClock()
        self.faults = Faults(seed)
        self.preparation = Preparation()
        self.rounds: dict[str, int] = {}
        self.opened: dict[str, int] = {}  # by stage, the last round that began with anybody
        self.mini_batches = 0  # of single parties, that training has used
        self.pass_batches = 1  # in a party's pass over its records
        self.epoch_batches = 1  # in an epoch, the smaller last one included
        self.given_up = 0  # rounds that nobody learnt from
        self.corrected: dict[int, int] = {}  # wrong answers that were noticed and corrected, by party
        self.privacy = PrivacyBooks()
        self.privacy_ledger = privacy_ledger
        self.end_before_round = False  # set by a callback, when a round would cost too much
        self._epoch = EpochLoss()
        self._work: tuple[list[Work], Work] | None = None
        self._costs: dict[tuple[int, int, tuple[tuple[int, ...], ...]], RoundCosts] = {}  # by rows and groups that send
        self._openings: dict[tuple[Leg, str], tuple[Leg, float]] = {}
        self._resumed_memory: dict[str, Any] = {}  # until a fit goes on
        self._remembered: int | None = None  # how many records there is room for

    def __setattr__(self, name: str, value: Any) -> None:
        """The trainer notes its hook's name 40 times a step; torch's search for parameters then costs 0.4 ms."""
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # ---- what a protocol says about itself

    @abstractmethod
    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The top model's output (B, outputs) for a batch in a stage that does not train."""

    @abstractmethod
    def training_step(self, batch: VerticalBatch, batch_idx: int) -> Tensor:
        """One round or event, and its loss."""

    def schedule(self, records: RecordSource, batch_size: int, seed: int, drop_last: bool = False) -> Schedule:
        """The order of batches in training; default: a new permutation every epoch (of coded rows, if there are)."""
        setup = self.aggregator.setup
        if setup is None:
            return Shuffled(len(records), batch_size, seed, drop_last)
        blocks = setup.arrangement(len(records), self.roster.parties, self.seed, "fit")
        return Aligned(blocks, batch_size, seed, drop_last)

    # ---- networks

    def configure_model(self) -> None:
        """Build the networks once, from the shapes in hparams or from the trainer's datamodule."""
        if hasattr(self, "bottoms"):
            return
        if self.hparams["party_shapes"] is None:
            self._note_shapes(self._trainer_data())
        shapes = [tuple(shape) for shape in self.hparams["party_shapes"]]
        classes = self.hparams["num_classes"]

        if self.active is not None and not 0 <= self.active < len(shapes):
            raise ConfigurationError(
                f"active names party {self.active}, but the parties are 0 to {len(shapes) - 1}; correct its number"
            )
        self.roster = roster_of(len(shapes), self.hparams["party_groups"], self.active)
        self.hparams["party_groups"] = several(self.hparams["party_groups"])
        self.aggregator = self.aggregator.among(self.roster)
        self.wire = wire_of(self.aggregator)
        self.sides = Sides.of(self.wire)
        self.objective = self._objective or objective_for(classes)
        self.bottoms = build_bottoms(self._bottom, self._bottom_of, self.aggregator, shapes, self.width, self.roster)
        self.top = build_top(self._top, self.top_width(), self.objective.outputs(classes))
        self.embedding_widths = self.aggregator.widths(self.width, self.roster)
        self.meter = CommunicationMeter(self.roster.parties)
        chosen = self._metrics or self.objective.metrics(classes)
        self.val_loss, self.test_loss = MeanMetric(), MeanMetric()  # weighted by rows, over all processes
        self.val_metrics = MetricCollection(dict(chosen)).clone(prefix="val/")
        self.test_metrics = MetricCollection(dict(chosen)).clone(prefix="test/")

    def top_width(self) -> int:
        """How many numbers of a record the top is given; default: the aggregate."""
        return self.aggregator.out_width(self.width, self.roster)

    def build_for(self, data: Any) -> None:
        """Build the networks for these data, without a trainer."""
        if self.hparams["party_shapes"] is None:
            self._note_shapes(data)
        self.configure_model()

    def _note_shapes(self, data: Any) -> None:
        self.hparams["party_shapes"] = [list(shape) for shape in data.party_shapes]
        self.hparams["num_classes"] = data.num_classes
        self.hparams["party_groups"] = several(getattr(data, "party_groups", None))

    def _trainer_data(self) -> Any:
        data = getattr(self._trainer, "datamodule", None)
        if data is None:
            raise ConfigurationError(
                "the networks cannot be built without the shapes of the data; give the trainer a datamodule, "
                "or the module party_shapes= and num_classes="
            )
        return data

    def setup(self, stage: str) -> None:
        """Refuse what cannot be right before anything runs."""
        self._forget("fit", "validation", "test", "predict")  # what a run that was broken off has left
        data = getattr(self._trainer, "datamodule", None)
        if data is not None and self.hparams["party_shapes"] is not None:
            built, given = self.hparams["party_shapes"], [list(shape) for shape in data.party_shapes]
            if [list(shape) for shape in built] != given:
                raise ConfigurationError(
                    f"the model was built for parties of shapes {built} but the data have {given}; "
                    "use the partitioner that it was trained with"
                )
            if self.hparams["num_classes"] != data.num_classes:
                raise ConfigurationError(
                    f"the model was built for num_classes = {self.hparams['num_classes']} but the data have "
                    f"{data.num_classes}; give the same num_classes with party_shapes"
                )
            groups = self.hparams["party_groups"], several(getattr(data, "party_groups", None))
            if groups[0] != groups[1]:
                there, here = (f"groups {own}" if own else "no groups of several parties" for own in groups)
                raise ConfigurationError(
                    f"the model was built for {there} but the data have {here}; use the partitioner that it was "
                    "trained with"
                )
        strategy = self.trainer.strategy
        if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy) or isinstance(strategy, DeepSpeedStrategy):
            raise ConfigurationError(
                f"{type(self.trainer.strategy).__name__} would shard networks that belong to different parties; "
                "use strategy: auto or ddp"
            )
        if self._compiler_ctx is not None:
            raise ConfigurationError(
                "a compiled protocol cannot be traced through the messages of a round; compile the networks instead: "
                "bottom=lambda shape, width: torch.compile(MLP(shape, width))"
            )
        if stage == "fit":
            self._refuse_accumulation()

    def on_train_start(self) -> None:
        """How many mini-batches a pass has is known now."""
        self._refuse_strangers(self.trainer.train_dataloader, "fit")
        schedule = getattr(self.trainer.train_dataloader, "schedule", None)
        self.pass_batches = self.trainer.num_training_batches if schedule is None else schedule.pass_batches  # type: ignore[assignment]  # no stream
        self.epoch_batches = self.trainer.num_training_batches if schedule is None else schedule.steps  # type: ignore[assignment]  # no stream

    def on_train_batch_start(self, batch: VerticalBatch, batch_idx: int) -> int | None:
        """A callback may have decided that this round shall not take place: -1 ends the epoch."""
        if not self.end_before_round:
            return None
        self.trainer.should_stop = True
        return -1

    def on_train_epoch_start(self) -> None:
        """A callback may have changed it since."""
        self._refuse_accumulation()

    def _refuse_accumulation(self) -> None:
        if self.trainer.accumulate_grad_batches != 1:
            raise ConfigurationError(
                "accumulate_grad_batches > 1 would make one optimiser step of several rounds with different parties; "
                "raise batch_size instead"
            )

    def on_train_end(self) -> None:
        """A later fit counts its first epoch anew."""
        self._epoch = EpochLoss()

    def forward(self, features: tuple[Tensor, ...]) -> Tensor:
        """Predictions for features of all parties, each (B, *S_m); run as evaluation is, see ``evaluate``."""
        if self.protected_evaluation and self.aggregator.setup is not None:
            raise ConfigurationError(
                f"{type(self.aggregator).__name__} is set up for the records of a stage, and these belong to none; use "
                "trainer.predict with a datamodule, or evaluate: plain"
            )
        if self.protected_evaluation and self.aggregator.accounting is not None:
            raise ConfigurationError(
                "nobody knows whether these features are of training records, answers about which cost privacy that "
                "nobody counts here; use trainer.predict with a VerticalDataModule, or evaluate: plain"
            )
        refuse_overlap(self.roster, None)
        ids = torch.arange(features[0].shape[0])
        number = self.rounds["predict"] = self.rounds.get("predict", -1) + 1  # no round comes twice
        output = self.output(VerticalBatch(features, None, ids), RoundNames(self.seed, "predict", number))
        return self.objective.predict(output)

    # ---- training

    def configure_optimizers(self) -> Any:
        """One optimiser for everybody: ``global_step`` counts rounds, and a withheld gradient leaves a party alone."""
        make = self._optimizer or (lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True))
        optimizer = make(self.trained_parameters())
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigurationError(
                "LBFGS computes several rounds in one step and moves all parties together; use a first-order optimiser"
            )
        if self.roster.shared:  # whatever moves a shared bottom, its copies are equal before anything else happens
            optimizer.register_step_post_hook(lambda *_: self.bottoms.follow())
        if self._lr_scheduler is None:
            return optimizer
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": self._lr_scheduler(optimizer), "monitor": "val/loss"},
        }

    def trained_parameters(self) -> list[nn.Parameter]:
        """What the optimiser moves: everybody's parameters, of a bottom that a group shares one copy."""
        own = {id(p) for p in self.bottoms.parameters()}
        return self.bottoms.leading() + [p for p in self.parameters() if id(p) not in own]

    def owners(self) -> Iterator[nn.Module]:
        """The networks that belong to different owners: each party's bottom, then the server's."""
        yield from self.bottoms.parties
        yield self.top

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip for each owner apart: nobody knows the norm of another's gradient."""
        if not gradient_clip_val:
            return
        by_value = getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm) == "value"
        clip = nn.utils.clip_grad_value_ if by_value else nn.utils.clip_grad_norm_
        for network in self.owners():
            clip(network.parameters(), gradient_clip_val)

    def next_round(self, seed_global: bool = False) -> RoundNames:
        """The names of the round that starts now; ``seed_global``: torch's global generator follows them."""
        stage = self.stage
        number = self.rounds.get(stage, 0)
        self.rounds[stage] = number + 1
        if seed_global:  # dropout in anybody's network becomes a function of the round: resume needs no generator state
            seed_torch(self.device, self.seed, "networks", stage, number, self.global_rank)
        return RoundNames(self.seed, stage, number)

    @property
    def stage(self) -> Stage:
        """The stage that the trainer is in; without one, prediction."""
        trainer = self._trainer
        if trainer is None or trainer.predicting:
            return "predict"
        if trainer.sanity_checking:
            return "sanity check"
        if trainer.testing:
            return "test"
        return "validation" if trainer.validating or trainer.evaluating else "fit"

    def rows_of(self, batch: VerticalBatch) -> Rows:
        """Where this rank's rows stand in the joint batch."""
        if batch.joint is None:
            return Rows(batch.record_ids, 0, len(batch.record_ids))
        return Rows(batch.record_ids, batch.joint.start, batch.joint.total)

    def rank_loss(self, output: Tensor, batch: VerticalBatch) -> Tensor:
        """The loss whose mean over ranks is the mean over the joint batch: ranks with more rows count for more."""
        mine = len(batch.record_ids)
        if mine == 0:  # a joint batch smaller than the number of ranks: take part with a zero
            return output.sum() * 0.0
        loss = self.objective.loss(output, self._labels(batch))
        if batch.joint is None:
            return loss
        return loss * (mine * self.trainer.world_size / batch.joint.total)

    def standing(self) -> dict[str, float]:
        """How far the training has come, in every unit that runs are compared by.

        ``clock/virtual_seconds``; ``comm/up_bytes``, ``comm/down_bytes`` and ``comm/peer_bytes`` of all parties;
        ``progress/passes``: mini-batches that parties have contributed, over M times those of a pass over the data.
        """
        sums = {f"comm/{way}_bytes": float(self.meter.total(way).sum()) for way in ("up", "down", "peer")}
        passes = self.mini_batches / (self.roster.parties * self.pass_batches)
        return {"clock/virtual_seconds": self.clock.seconds, "progress/passes": passes, **sums}

    def protection(self, uploads: int) -> str | None:
        """What was hidden of a record after so many uploads, in words for the summary; None: nothing is claimed."""
        return self.wire.protection(uploads)

    def requests_made(self) -> int:
        """How many requests each party has had in training so far; two a round."""
        return 2 * self.rounds.get("fit", 0)

    def log_training(
        self,
        loss: Tensor | None,
        batch: VerticalBatch,
        batch_idx: int,
        notes: Mapping[str, float | Tensor] | None = None,
    ) -> None:
        """``train/loss`` and the standing at every logging step; with an epoch's last round, its mean loss and ε too.

        ``notes`` are further values of the round, by the name they are logged under.

        Logging costs 0.2 ms a value, so it is not done in steps whose value nobody would see. The loss of a round that
        nobody has learnt from is None and enters no mean.
        """
        total = len(batch.record_ids) if batch.joint is None else batch.joint.total
        if self._epoch.number != self.current_epoch:
            self._epoch = EpochLoss(self.current_epoch)
        if loss is not None:
            self._epoch.add(loss.detach(), total)
        trainer = self.trainer
        seen = batch_idx == 0 or is_due(self.global_step + 1, trainer.log_every_n_steps)  # type: ignore[attr-defined]  # set in Trainer.__init__
        if not (seen or trainer.is_last_batch):
            return
        joint = self._joint
        self.log_dict(self._exact_standing())
        if seen and loss is not None:
            self.log("train/loss", loss.detach(), prog_bar=True, sync_dist=joint, batch_size=total)
            for name, value in (notes or {}).items():
                self.log(name, value, sync_dist=joint, batch_size=total)
        if trainer.is_last_batch and self._epoch.rows:
            mean = self._epoch.mean()
            self.log("train/loss_epoch", mean, on_step=False, on_epoch=True, sync_dist=joint, batch_size=1)
        if trainer.is_last_batch and self.privacy.accountant is not None:
            spent = torch.tensor(self.privacy.epsilon(), dtype=torch.float64)
            name = "privacy/update_epsilon" if self.aggregator.accounting is None else "privacy/epsilon"
            self.log(name, spent, on_step=False, on_epoch=True, reduce_fx="max", sync_dist=joint)

    def _exact_standing(self) -> dict[str, Tensor]:
        """As float64 tensors: Lightning would make float32 of numbers."""
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in self.standing().items()}

    def _log_standing(self) -> None:
        """Beside an epoch's values, so that every logger can plot them against time, bytes and passes."""
        self.log_dict(self._exact_standing(), on_step=False, on_epoch=True, reduce_fx="max", sync_dist=self._joint)

    def on_train_epoch_end(self) -> None:
        """Where the epoch has got to."""
        self._log_standing()

    def on_validation_epoch_end(self) -> None:
        """Where the training stood when it was validated."""
        if self.stage == "validation":
            self._log_standing()

    def nothing_learnt(self) -> Tensor:
        """The zero loss of a round that nobody learns from; ``withhold_everything`` makes it leave no trace."""
        parameters = list(self.parameters()) if self._joint else [next(self.parameters())]  # DDP waits for them all
        return torch.stack([parameter.sum() for parameter in parameters]).sum() * 0.0

    def withhold_everything(self) -> None:
        """Take all gradients away: the optimiser then moves nobody."""
        for parameter in self.parameters():
            parameter.grad = None

    # ---- what a round costs, and what is remembered between rounds

    def round_costs(self, rows: int, coded: int | None = None) -> RoundCosts:
        """Seconds of a faultless round of so many rows, from planned traffic and the networks' FLOPs.

        ``coded``: how many coded rows these records are in, where the aggregator computes on such.
        """
        coded = rows if coded is None else coded
        key = rows, coded, self.sending_groups()
        if key not in self._costs:
            legs = self.wire.legs(coded, self.embedding_widths, self.basis_widths(), self.roster)
            downlink = self.wire.downlink(rows, self.embedding_widths, self.roster)
            legs, updates = (*legs, *self.more_legs(rows)), self.update_legs()
            self._costs[key] = RoundCosts.of(legs, downlink, rows, *self.networks_work(), self.clock, updates)
        return self._costs[key]

    def networks_work(self) -> tuple[list[Work], Work]:
        """FLOPs of a record: each party's bottom, and the top."""
        if self._work is None:
            shapes = [tuple(shape) for shape in self.hparams["party_shapes"]]
            out_width = self.aggregator.out_width(self.width, self.roster)
            top = work_of(self.top, (out_width,), input_gradient=True)
            bottoms = works_of(self.bottoms.parties, shapes)
            if self.aggregator.form is LinearForms:  # no party runs its bottom: the products are a leg's work
                bottoms = [Work(0.0, work.backward) for work in bottoms]
            self._work = bottoms, top
        return self._work

    def more_legs(self, rows: int) -> tuple[Leg, ...]:
        """What travels with the parties' last leg besides what the aggregator sends; default: nothing."""
        return ()

    def sending_groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups that send model updates in the next round that they learn from; default: all that share."""
        return self.roster.shared

    def update_legs(self) -> tuple[Leg, ...]:
        """What the parties of groups send the server of their bottoms, and what comes back."""
        if not self.sending_groups():
            return ()
        sizes = [sum(p.numel() for p in bottom.parameters()) for bottom in self.bottoms.parties]
        elements, nothing = torch.zeros(len(sizes), dtype=torch.int64), torch.zeros(len(sizes), dtype=torch.float64)
        for party in (m for group in self.sending_groups() for m in group):
            elements[party] = sizes[party]
        up = Leg("model updates", "server", elements, shared_bottoms_of(self.aggregator).bits, nothing)
        return up, Leg("shared bottoms", "parties", elements, FLOAT_BITS, nothing)

    def coded_rows(self, batch: VerticalBatch) -> int:
        """How many coded rows the records of the joint batch are in; without coded rows, how many records it has."""
        blocks = self.preparation.blocks(self.aggregator, self.roster.parties, self.seed, self.stage)
        if blocks is None:
            return self.rows_of(batch).total
        return len(blocks.coded_rows(self.joint_ids(batch))[0])

    def enter(self, plan: RoundPlan, costs: RoundCosts) -> None:
        """Enter what a planned round sends and how long it takes in the books."""
        called = int(plan.roll.called.sum())
        for leg, senders in zip(costs.legs, plan.sent, strict=True):
            self.meter.add(leg.among(called), senders)
        if costs.downlink is not None:
            self.meter.add(costs.downlink, plan.answered)
        for leg in costs.updates:
            self.meter.add(leg, plan.learners)
        self.clock.advance(plan.seconds)
        if plan.skipped:
            self.given_up += 1
        else:
            self.mini_batches += int(plan.roll.included.sum())

    def enter_opening(self, rows: int, names: RoundNames, called: Tensor, roster: Roster | None = None) -> float:
        """Enter what the parties send each other at the beginning of a round; absences do not hold it up.

        ``roster``: who joins the embeddings, where that is one of the parties.

        Returns:
            the seconds that it takes.
        """
        last, self.opened[names.stage] = self.opened.get(names.stage, -1), names.round
        taken, opening = 0.0, self.aggregator.opening
        if opening is None:
            return taken
        for leg in opening.legs(rows, roster or self.roster, called, names.round, last):
            known = self._openings.get((leg, names.stage))
            if known is None:  # few different ones in a run
                named = leg if names.stage == "fit" else replace(leg, kind=f"{names.stage} {leg.kind}")
                seconds = float((self.clock.computing(leg.flops) + self.clock.transfer(leg)).max())
                known = self._openings[leg, names.stage] = named, seconds
            self.meter.add(known[0])
            taken += known[1]
        return taken

    def enter_corrected(self, parties: Sequence[int]) -> None:
        """Enter parties whose wrong answers were corrected in this round, and name each once."""
        if (
            self.wire.traits.corrects and self._trainer is not None and self._joint
        ):  # a wrong answer may concern the rows of one process only
            wrong = torch.zeros(self.roster.parties, device=self.device)
            wrong[list(parties)] = 1.0
            seen: Tensor = self.trainer.strategy.reduce(wrong, reduce_op="sum")
            parties = seen.nonzero().flatten().tolist()
        for party in parties:
            if party not in self.corrected:
                rank_zero_warn(f"an answer of party {party} was wrong and has been corrected; more are only counted")
            self.corrected[party] = self.corrected.get(party, 0) + 1

    def enter_round(self, rows: int) -> None:
        """Enter a round of everybody in which nothing goes wrong; with faults, it is planned with ``plan_round``."""
        nothing, everybody = RoundOutcome.nothing(self.roster), Roll.everyone(self.roster.parties).called
        costs = self.round_costs(rows)
        self.enter(plan_round(costs, WaitForAll(), Exclude(), everybody, nothing, nothing, ~everybody), costs)

    def basis_widths(self) -> tuple[int, ...]:
        """(M,) widths of the expanded features, for aggregators of ``LinearForms``; empty for others."""
        if self.aggregator.form is not LinearForms:
            return ()
        networks: list[Any] = list(self.bottoms.parties)
        return tuple(len(network.weight) for network in networks)

    def on_fit_start(self) -> None:
        """Refuse what cannot train; make room for what is remembered, filled from a checkpoint that is resumed."""
        self.clock.speeds(self.roster.parties)
        self.faults.at(0, self.roster)
        if self.faults.models and getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise ConfigurationError(
                "a round that nobody learns from has no gradients to be unscaled; use precision bf16-mixed under faults"
            )
        self.prepare("fit", "train")
        self._open_privacy()
        if not self.remembers:
            return
        data = getattr(self._trainer, "datamodule", None)
        if data is None:
            raise ConfigurationError(
                f"{type(self).__name__} remembers embeddings by record and has to know the records; give the trainer a "
                "VerticalDataModule instead of a loader"
            )
        records = len(data.records("train"))
        if self._remembered != records:  # a second fit goes on with what the first has left
            self.prepare_memory(records)
            self._remembered = records
        if self._resumed_memory:
            self.load_memory(self._resumed_memory)
        self._resumed_memory = {}

    def _open_privacy(self) -> None:
        if self.aggregator.accounting is None and not self.accounts_updates:
            return
        data = getattr(self._trainer, "datamodule", None)
        if data is None:
            raise ConfigurationError(
                f"{self._accounting} accounts for the privacy of each record and needs to know the records; give the "
                "trainer a VerticalDataModule instead of a loader"
            )
        self.refuse_shared_statistics(data)
        failure: ConfigurationError | None = None
        if self.trainer.is_global_zero:
            try:
                self.privacy.open(len(data.records("train")), self._ledger_folder(), self.privacy_ledger)
            except ConfigurationError as error:
                failure = error
        if self._joint:  # one process writes; the others may see no file at all
            failure, state = self.trainer.strategy.broadcast((failure, self.privacy.state()))
            if not (self.trainer.is_global_zero or failure):
                self.privacy.follow(state)
        if failure is not None:
            raise failure

    def _ledger_folder(self) -> Path | None:
        """The folder that also holds the folder of checkpoints; None: nothing is kept, as Lightning keeps nothing."""
        trainer = self.trainer
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # set in Trainer.__init__
            return None
        folder: Any = trainer.default_root_dir
        if trainer.loggers:
            logger = trainer.loggers[0]
            version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
            folder = os.path.join(logger.save_dir or folder, str(logger.name), version)
        if "://" in str(folder):
            raise ConfigurationError(
                f"the privacy ledger has to be a file of this machine, and {folder} is none; give the trainer a local "
                "default_root_dir and a logger with a local save_dir"
            )
        return Path(folder)

    def refuse_shared_statistics(self, data: Any) -> None:
        """Refuse bottoms and data in which one record tells of others, which no figure of a record would count.

        Raises:
            ConfigurationError: naming the layer or the statistics, and what to use instead.
        """
        shapes = self.hparams["party_shapes"]
        refuse_shared_statistics(self._accounting, self.bottoms.parties, shapes, data)

    @property
    def _accounting(self) -> str:
        """The name of the part that accounts, for errors."""
        return "update_noise" if self.aggregator.accounting is None else type(self.aggregator).__name__

    def spend_privacy(self, plan: RoundPlan, batch: VerticalBatch, reader: int | None = None) -> None:
        """Charge the records of the joint batch with what the server can read of a round, whatever comes of it.

        ``reader``: the party that joins the embeddings instead of a server; what it has drawn itself hides nothing from
        it.
        """
        accounting = self.aggregator.accounting
        if self.privacy.accountant is None or accounting is None:
            return
        roster = self.roster if reader is None else replace(self.roster, active=reader)
        released = accounting.released(plan.roll, plan.sent[0], roster)
        parties = tuple(m for m in released.nonzero().flatten().tolist() if m != reader)
        event = accounting.event(parties, self.embedding_widths, roster)
        if event is not None:
            self.privacy.spend(self.rounds["fit"] - 1, event, self.joint_ids(batch))
            if self._joint:  # nobody uploads before the charge is on the disk
                self.trainer.strategy.barrier("privacy ledger")

    def joint_ids(self, batch: VerticalBatch) -> Tensor:
        """Positions of the records of the joint batch, on the CPU."""
        ids = None if batch.joint is None else batch.joint.ids
        return batch.record_ids.cpu() if ids is None else torch.from_numpy(ids)

    def prepare(self, stage: Stage, split: str) -> None:
        """Let the parties set up a stage before its first round, and enter what that sends."""
        aggregator, data = self.aggregator, getattr(self._trainer, "datamodule", None)
        if data is not None:
            self.wire.refuse_partly_held(data.records(split).present, self.roster)
        if aggregator.setup is None:
            return
        if data is None:
            raise ConfigurationError(
                f"{type(aggregator).__name__} is set up before the first round and has to know the records; give the "
                "trainer a VerticalDataModule instead of a loader"
            )
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        if stage == "fit" and self.trainer.ckpt_path is None:
            self.preparation.start_over()
        names = RoundNames(self.seed, stage, 0)
        source: RecordSource = data.records(split)
        for leg in self.preparation.run(aggregator, self.bottoms, source, self.roster, names, self.device, fitting):
            self.meter.add(leg)
            if stage == "fit":  # no virtual time passes in evaluation
                self.clock.advance(float((self.clock.computing(leg.flops) + self.clock.transfer(leg)).max()))

    def _refuse_strangers(self, loaders: Any, stage: Stage) -> None:
        """Batches have to be of the records that were set up: the trainer keeps a datamodule from earlier calls."""
        source = self.preparation.sources.get(stage)
        if source is None:
            return
        several = loaders if isinstance(loaders, list | tuple) else [loaders]
        if any(getattr(loader, "records", None) is not source for loader in several):
            raise ConfigurationError(
                f"the batches are not of the records that {type(self.aggregator).__name__} was set up with; give the "
                "trainer these data as a datamodule, not as a loader"
            )

    def on_fit_end(self) -> None:
        """Shares are as large as the data: give them back."""
        self._forget("fit", "validation")

    @property
    def remembers(self) -> bool:
        """Whether something as large as the data is remembered between rounds; default: no."""
        return False

    def prepare_memory(self, records: int) -> None:
        """Make room for N records; default: a protocol remembers nothing between rounds."""
        return

    def memory_state(self) -> dict[str, Any]:
        """What is remembered, for checkpoints that can be resumed; tensors and plain values."""
        return {}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Remember it again."""
        return

    # ---- evaluation

    def on_validation_start(self) -> None:
        """Set up validation records, once a fit; begin to count anew.

        Metrics that were reset in inference mode could not be updated outside of it, as a fit does; and what was broken
        off must not count in the next result.
        """
        self.val_loss.reset()
        self.val_metrics.reset()
        self._prepare_evaluation("validation", "val", self.trainer.val_dataloaders)

    def on_test_start(self) -> None:
        """Set up test records; begin to count anew, as in ``on_validation_start``."""
        self.test_loss.reset()
        self.test_metrics.reset()
        self._prepare_evaluation("test", "test", self.trainer.test_dataloaders)

    def on_predict_start(self) -> None:
        """Set up the records to predict."""
        self._prepare_evaluation("predict", "predict", self.trainer.predict_dataloaders)

    def _prepare_evaluation(self, stage: Stage, split: str, loaders: Any) -> None:
        if not self.protected_evaluation:
            return
        self._refuse_protected(loaders)
        if stage not in self.preparation.memory:
            self.prepare(stage, split)
        self._refuse_strangers(loaders, stage)

    def _refuse_protected(self, loaders: Any) -> None:
        """Answers about training records would cost privacy; those of validation and test records are not protected."""
        several = loaders if isinstance(loaders, list | tuple) else [loaders]
        schedules = [getattr(loader, "schedule", None) for loader in several]
        if self.aggregator.accounting is not None and not all(isinstance(order, InOrder) for order in schedules):
            raise ConfigurationError(
                "nobody knows whether these are training records, answers about which cost privacy that nobody counts "
                "here; evaluate a VerticalDataModule, or use evaluate: plain"
            )

    def on_validation_end(self) -> None:
        """During a fit the shares are used again."""
        if self.trainer.state.fn == TrainerFn.VALIDATING:
            self._forget("validation")

    def on_test_end(self) -> None:
        """Give the shares back."""
        self._forget("test")

    def on_predict_end(self) -> None:
        """Give the shares back."""
        self._forget("predict")

    def _forget(self, *stages: Stage) -> None:
        """Shares and keys of these stages; who comes back to one has to make new ones."""
        self.preparation.forget(*stages)
        for stage in stages:
            self.opened.pop(stage, None)

    def output_in_the_clear(self, batch: VerticalBatch, roll: Roll | None = None) -> Tensor:
        """The top's output for the embeddings of these parties (None: of all), aggregated in real arithmetic."""
        roll = roll or Roll.everyone(self.roster.parties)
        return self.head(self.aggregator.plain(self.bottoms(batch.features), roll, batch.present))

    def head(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The server's output for an aggregate; ``columns`` (D_out,) bool says which have arrived, None: all."""
        output: Tensor = self.top(value)
        return output

    def validation_step(self, batch: VerticalBatch, batch_idx: int) -> None:
        """Loss and metrics of a batch."""
        self._evaluate(batch, "val", self.val_loss, self.val_metrics)

    def test_step(self, batch: VerticalBatch, batch_idx: int) -> None:
        """Loss and metrics of a batch."""
        self._evaluate(batch, "test", self.test_loss, self.test_metrics)

    def predict_step(self, batch: VerticalBatch, batch_idx: int) -> Predictions:
        """Predictions of a batch, with the positions of its records."""
        output = self.output(batch, self.next_round())
        return Predictions(batch.record_ids, self.objective.predict(output).float())

    def _evaluate(self, batch: VerticalBatch, prefix: str, mean_loss: Metric, metrics: MetricCollection) -> None:
        output = self.output(batch, self.next_round())
        rows = len(batch.record_ids)
        if rows == 0:  # a rank without rows in the last batch
            return
        labels = self._labels(batch)
        loss = self.objective.loss(output, labels)
        mean_loss.update(loss, rows)
        metrics.update(self.objective.predict(output).float(), labels)
        self.log(f"{prefix}/loss", mean_loss, batch_size=rows, on_epoch=True, on_step=False)
        self.log_dict(metrics, batch_size=rows, on_epoch=True, on_step=False)

    def _labels(self, batch: VerticalBatch) -> Tensor:
        if batch.labels is None:
            raise ConfigurationError(
                "the data have no labels to learn from or test against; name the party that holds them"
            )
        return batch.labels

    # ---- checkpoints

    @_restricted_classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        trusted: Sequence[str] = (),
        **kwargs: Any,
    ) -> Self:
        """The module of a checkpoint, as Lightning loads it, from classes that are trusted and no others.

        Guarantee: a class that the checkpoint names is built only if it is defined in ``lightning_vfl``, is a network,
            metric, optimiser or scheduler of torch or torchmetrics, or is ``trusted``; everything is checked before the
            first import.
        Not guaranteed: anything with ``weights_only=False``, which lets the file run any code.

        Args:
            checkpoint_path: a path, an address or an open file.
            map_location: where tensors go, as in ``torch.load``.
            hparams_file: a YAML file whose hyperparameters are used instead of the checkpoint's.
            strict: whether the names of the weights have to be the module's.
            weights_only: read plain values and tensors only; None: True, for addresses too.
            trusted: further packages, modules or classes that the checkpoint may name: ``["my_project"]``.
            kwargs: parts and settings that replace those of the checkpoint.

        Raises:
            ConfigurationError: for a checkpoint that names anything else, or was trained with other parts.
        """
        safe = {} if weights_only is None else {"weights_only": weights_only}
        with checked(checkpoint_path, cls, tuple(kwargs), trusted, hparams_file, weights_only) as file:
            return super().load_from_checkpoint(file, map_location, hparams_file, strict, **safe, **kwargs)

    def _parts(self) -> dict[str, str]:
        """What the networks are, in words that compare: the printed form of what was built."""
        bottoms = "\n".join(str(bottom) for bottom in self.bottoms.parties)
        objective = type(self.objective).__name__
        protocol = type(self).__name__
        return {
            "protocol": protocol,
            "aggregator": self.aggregator.identity,
            "bottom": bottoms,
            "top": str(self.top),
            "objective": objective,
        }

    def _epoch_of_all(self) -> EpochLoss:
        """The running loss over all processes; a rank's own sum is scaled so that their mean is the joint sum."""
        total = self._epoch.total
        if self._trainer is not None and self._joint and isinstance(total, Tensor):
            total = self.trainer.strategy.reduce(total.clone(), reduce_op="mean")
        return EpochLoss(self._epoch.number, total.cpu() if isinstance(total, Tensor) else total, self._epoch.rows)

    @property
    def _joint(self) -> bool:
        return self.trainer.world_size > 1

    @property
    def _joint_training(self) -> bool:
        return self._trainer is not None and self._joint and self.stage == "fit"

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the books: round numbers, bytes, seconds, running loss, and which parts the networks were built with."""
        checkpoint[BOOKS] = {
            "rounds": dict(self.rounds),
            "opened": dict(self.opened),
            "meter": self.meter.state_dict(),
            "clock": self.clock.seconds,
            "mini_batches": self.mini_batches,
            "pass_batches": self.pass_batches,
            "epoch_batches": self.epoch_batches,
            "given_up": self.given_up,
            "corrected": dict(self.corrected),
            "epoch_loss": asdict(self._epoch_of_all()),
            "seed": self.seed,
            "parts": self._parts(),
            "preparation": self.preparation.state(),
            "privacy": self.privacy.state(),
        }
        if "optimizer_states" in checkpoint:  # as large as the data: only where a run goes on from
            checkpoint[BOOKS]["memory"] = self._resumed_memory or self.memory_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue the books, after a look whether this is the same model."""
        books = checkpoint.get(BOOKS)
        if books is None:
            return
        self.configure_model()
        trained, own = books["parts"], self._parts()
        for name, part in own.items():
            there = trained.get(name, part)  # a part that the checkpoint is too old to name
            if there != part:
                words = f": {there} there, {part} here" if "\n" not in there + part else ""
                raise ConfigurationError(
                    f"the checkpoint was trained with another {name} than this model has{words}; give the same one "
                    f"(in Python: load_from_checkpoint(path, {name}=...))"
                )
        self.seed = books["seed"]
        self.faults.reseed(self.seed)
        self.clock.seconds = books["clock"]
        self.mini_batches, self.pass_batches = books["mini_batches"], books["pass_batches"]
        self.rounds = dict(books["rounds"])
        self.opened = dict(books.get("opened", {}))
        self.meter.load_state_dict(books["meter"])
        self.given_up = books["given_up"]
        self.epoch_batches = books.get("epoch_batches", self.pass_batches)  # not in checkpoints before 0.2
        self.corrected = dict(books.get("corrected", {}))
        self.preparation.forget("fit", "validation", "test", "predict")  # their rounds may be counted back
        self.preparation.load(books.get("preparation", {}))
        path = None if self._trainer is None else self.trainer.ckpt_path
        self.privacy.load(books.get("privacy", {}), None if path is None else Path(path))
        self._resumed_memory = books.get("memory", {})
        self._epoch = EpochLoss(**books["epoch_loss"])
