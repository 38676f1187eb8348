"""The base class of protocols: its settings, its networks, and what stands in a checkpoint."""

import os
import warnings
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.memory import Memory
from lightning_vfl.networks.mlp import MLP, Linear
from lightning_vfl.objectives import Objective, objective_for
from lightning_vfl.protocols.accounts.books import PrivacyBooks
from lightning_vfl.protocols.books import Books
from lightning_vfl.protocols.build import (
    BottomFactory,
    TopFactory,
    build_bottoms,
    build_top,
    note_shapes,
    plain_settings,
    refuse_overlap,
    roster_of,
    several,
)
from lightning_vfl.protocols.checks import refuse_accumulation, refuse_other_data, refuse_other_parts, refuse_trainer
from lightning_vfl.protocols.costs import Costs
from lightning_vfl.protocols.evaluation import Scores
from lightning_vfl.protocols.loading import SafelyLoaded
from lightning_vfl.protocols.preparation import Preparation
from lightning_vfl.protocols.training import OptimizerFactory, SchedulerFactory, TrainedModule
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.schedules.batches import Aligned, Schedule, Shuffled
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.types import RecordSource, Roll, RoundNames, Stage, VerticalBatch
from lightning_vfl.wire import Leg

BOOKS = "lightning_vfl"  # key in a checkpoint
SET_UP = (Stage.FIT, Stage.VALIDATION, Stage.TEST, Stage.PREDICT)  # the sanity check runs on validation records


class VFLModule(SafelyLoaded, TrainedModule, ABC):
    """A vertical federated learning protocol: M bottoms, an aggregator, a top, and an exact account of the traffic.

    A protocol of your own implements ``output`` and ``step``; ``docs/extending.md`` has one in under 30 lines. The
    networks are built in ``configure_model`` from the shapes that the datamodule reports, so a protocol runs on any
    data.

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
            messages (metered under kinds of their own), ``auto`` as the aggregator prefers. No fault happens and no
            virtual time passes there.
        seed: names the randomness of the rounds; None: the seed of ``seed_everything``, else 0.
        party_shapes: per-record shape of each party's features; None: asked of the datamodule.
        num_classes: classes of the labels, None for real-valued ones; asked of the datamodule with ``party_shapes``.
        party_groups: party numbers of each group; the parties of one hold the same columns for different records and
            share a bottom; asked of the datamodule with ``party_shapes``, None: each party is a group of its own.
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

    top: nn.Module

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
            raise ConfigurationError(f"width must be at least 1; got {width}")
        self.seed = (
            int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        )  # where seed_everything leaves it
        with warnings.catch_warnings():  # "already saved during checkpointing": plain_settings drops networks
            warnings.filterwarnings("ignore", message=r"Attribute '\w+' is an instance of `nn.Module`")
            self.save_hyperparameters()
        plain_settings(self.hparams, self._hparams_initial, self.seed, party_shapes, num_classes, party_groups)
        self.aggregator, self.width, self.active = aggregator, width, active
        self.protected_evaluation = evaluate == "protocol" or (evaluate == "auto" and aggregator.private_evaluation)
        self._bottom, self._bottom_of, self._top, self._metrics = bottom, bottom_of or {}, top, metrics
        self._objective, self._optimizer, self._lr_scheduler = objective, optimizer, lr_scheduler
        self.clock = clock or VirtualClock()
        self.faults = Faults(self.seed)
        self.preparation = Preparation()
        self.books = Books(self.clock, self.own_books())
        self.privacy = PrivacyBooks()
        self.privacy_ledger = privacy_ledger
        self._resumed: dict[str, Any] = {}  # the memory of a checkpoint, until a fit goes on

    def __setattr__(self, name: str, value: Any) -> None:
        """The trainer notes its hook's name 40 times a step; torch's search for parameters then costs 0.4 ms."""
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    # ---- what a protocol may say about itself, besides ``output`` and ``step``

    def schedule(self, records: RecordSource, batch_size: int, seed: int, drop_last: bool = False) -> Schedule:
        """The order of batches in training; default: a new permutation every epoch (of coded rows, if there are)."""
        setup = self.aggregator.setup
        if setup is None:
            return Shuffled(len(records), batch_size, seed, drop_last)
        blocks = setup.arrangement(len(records), self.roster.parties, self.seed, Stage.FIT)
        return Aligned(blocks, batch_size, seed, drop_last)

    def own_books(self) -> Any:
        """A dataclass of what this protocol alone counts; None: nothing more."""
        return None

    @property
    def memory(self) -> Memory | None:
        """What is kept between rounds and is as large as the data; None: nothing."""
        return None

    def top_width(self) -> int:
        """How many numbers of a record the top is given; default: the aggregate's width."""
        return self.aggregator.out_width(self.width, self.roster)

    def more_legs(self, rows: int) -> tuple[Leg, ...]:
        """What travels with the parties' last leg besides what the aggregator sends; default: nothing."""
        return ()

    def owners(self) -> Iterator[nn.Module]:
        """The networks that belong to different owners: each party's bottom, then the server's."""
        yield from self.bottoms.parties
        yield self.top

    def parts(self) -> dict[str, str]:
        """The parts of the model in words that compare; a checkpoint of other parts is refused."""
        return {
            "protocol": type(self).__name__,
            "aggregator": self.aggregator.identity,
            "bottom": "\n".join(str(bottom) for bottom in self.bottoms.parties),
            "top": str(self.top),
            "objective": type(self.objective).__name__,
        }

    def standing(self) -> dict[str, float]:
        """How far the training has come, see ``Books.standing``."""
        return self.books.standing(self.roster.parties)

    def protection(self, uploads: int) -> str | None:
        """What was hidden of a record after so many uploads, in words for the summary; None: nothing is claimed."""
        return self.wire.protection(uploads)

    def requests_made(self) -> int:
        """How many requests each party has had in training so far; two a round."""
        return 2 * self.books.rounds.get(Stage.FIT, 0)

    # ---- networks

    def configure_model(self) -> None:
        """Build the networks once, from the shapes in hparams or from the trainer's datamodule."""
        if hasattr(self, "bottoms"):
            return
        note_shapes(self.hparams, self.datamodule)
        shapes = tuple(tuple(shape) for shape in self.hparams["party_shapes"])
        classes = self.hparams["num_classes"]
        self.roster = roster_of(len(shapes), self.hparams["party_groups"], self.active)
        self.hparams["party_groups"] = several(self.hparams["party_groups"])
        self.aggregator = self.aggregator.among(self.roster)
        self.wire = wire_of(self.aggregator)
        self.sides = Sides.of(self.wire)
        self.objective = self._objective or objective_for(classes)
        self.bottoms = build_bottoms(self._bottom, self._bottom_of, self.aggregator, shapes, self.width, self.roster)
        self.top = build_top(self._top, self.top_width(), self.objective.outputs(classes))
        self.books.begin(self.roster.parties)
        chosen = self._metrics or self.objective.metrics(classes)
        self.val, self.test = Scores("val", chosen), Scores("test", chosen)
        self.costs = Costs(
            self.aggregator, self.roster, self.clock, self.bottoms, self.top, shapes, self.width, self.more_legs
        )

    def build_for(self, data: Any) -> None:
        """Build the networks for these data, without a trainer."""
        note_shapes(self.hparams, data)
        self.configure_model()

    def setup(self, stage: str) -> None:
        """Refuse what cannot be right before anything runs."""
        self.forget(*SET_UP)  # what a run that was broken off has left
        if self.datamodule is not None and self.hparams["party_shapes"] is not None:
            refuse_other_data(self.hparams, self.datamodule)
        refuse_trainer(self.trainer, self._compiler_ctx is not None)
        if stage == "fit":
            refuse_accumulation(self.trainer)

    def forward(self, features: tuple[Tensor, ...]) -> Tensor:
        """Predictions for features of all parties, each (B, *S_m); run as evaluation is, see ``evaluate``."""
        if self.protected_evaluation and (self.aggregator.setup or self.aggregator.accounting):
            raise ConfigurationError(
                f"{type(self.aggregator).__name__} has to know which records these features are of: it is set up for "
                "the records of a stage, or training records would be answered uncharged; use trainer.predict with a "
                "VerticalDataModule, or evaluate: plain"
            )
        refuse_overlap(self.roster, None)
        ids = torch.arange(features[0].shape[0])
        names = RoundNames(self.seed, Stage.PREDICT, self.books.next_round(Stage.PREDICT))
        return self.objective.predict(self.output(VerticalBatch(features, None, ids), names))

    def output_in_the_clear(self, batch: VerticalBatch, roll: Roll | None = None) -> Tensor:
        """The top's output for the embeddings of these parties (None: of all), aggregated in real arithmetic."""
        roll = roll or Roll.everyone(self.roster.parties)
        return self.head(self.aggregator.plain(self.bottoms(batch.features), roll, batch.present))

    def head(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The server's output for an aggregate; ``columns`` (D_out,) bool says which have arrived, None: all."""
        output: Tensor = self.top(value)
        return output

    # ---- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the books, and which parts the networks were built with."""
        books = self.books.state()
        loss = books["epoch_loss"]
        if self.joint and isinstance(loss["total"], Tensor):  # a process's sum is scaled: their mean is the joint sum
            loss["total"] = self.trainer.strategy.reduce(loss["total"].to(self.device), reduce_op="mean").cpu()
        more = {"preparation": self.preparation.state(), "privacy": self.privacy.state()}
        checkpoint[BOOKS] = {**books, "seed": self.seed, "parts": self.parts(), **more}
        if "optimizer_states" in checkpoint:  # as large as the data: only where a run goes on from
            kept = {} if self.memory is None else self.memory.state()
            checkpoint[BOOKS]["memory"] = self._resumed or kept

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue the books, if this is the same model."""
        books = checkpoint.get(BOOKS)
        if books is None:
            return
        self.configure_model()
        refuse_other_parts(books["parts"], self.parts())
        self.seed = books["seed"]
        self.faults.reseed(self.seed)
        self.books.load(books)
        self.preparation.forget(*SET_UP)  # their rounds may be counted back
        self.preparation.load(books.get("preparation", {}))
        path = None if self._trainer is None else self.trainer.ckpt_path
        self.privacy.load(books.get("privacy", {}), None if path is None else Path(path))
        self._resumed = books.get("memory", {})
