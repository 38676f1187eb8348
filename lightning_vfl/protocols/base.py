"""The networks, settings and checkpoints of a protocol."""

import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.aggregators.readable import readable
from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.column_aware import ColumnAwareTop
from lightning_vfl.networks.halved_top import HalvedTop
from lightning_vfl.networks.memory import Memory
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.objectives import Objective, objective_for
from lightning_vfl.protocols.accounts.books import PrivacyBooks
from lightning_vfl.protocols.books import Books
from lightning_vfl.protocols.build import (
    SHAPES,
    BottomFactory,
    Halves,
    TopFactory,
    build_bottoms,
    build_halves,
    build_top,
    drop_others,
    note_outputs,
    note_shapes,
    party_bottom,
    plain_settings,
    refuse_overlap,
    refuse_uncounted,
    roster_of,
    several,
    take_untaken,
    try_aggregator,
)
from lightning_vfl.protocols.callback_checks import refuse_callbacks, refuse_searches
from lightning_vfl.protocols.checkpoint_files import use_whole_checkpoints
from lightning_vfl.protocols.checks import (
    note_other_seed,
    refuse_accumulation,
    refuse_bare_batches,
    refuse_other_data,
    refuse_other_parts,
    refuse_other_shapes,
    refuse_other_targets,
    refuse_trainer,
    repeat_batches,
)
from lightning_vfl.protocols.columns_told import Noise, Read, Told, columns_of, columns_told
from lightning_vfl.protocols.costs import Costs, labels_leg
from lightning_vfl.protocols.early_build import NotBuilt, not_built
from lightning_vfl.protocols.evaluation import Scores, refuse_unnamed
from lightning_vfl.protocols.factories import refuse_made
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.loading import BOOKS, FITTED, SafelyLoaded, hand_out_again, position_in
from lightning_vfl.protocols.owner_keys import drawn_from, seeded_if_unseeded
from lightning_vfl.protocols.parameters import refuse_parameters_of, refuse_shared
from lightning_vfl.protocols.preparation import Preparation
from lightning_vfl.protocols.training import OptimizerFactory, SchedulerFactory, TrainedModule
from lightning_vfl.rebuildable import Rebuildable, names_given
from lightning_vfl.rounds.exchange import Sides
from lightning_vfl.schedules.batches import Aligned, Schedule
from lightning_vfl.schedules.blocks import shuffled
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import RecordSource, Roll, RoundNames, Stage, VerticalBatch
from lightning_vfl.wire import Leg

SET_UP = (Stage.FIT, Stage.VALIDATION, Stage.TEST, Stage.PREDICT)  # the sanity check runs on validation records


class BuiltModule(Rebuildable, SafelyLoaded, TrainedModule):
    """The networks of a protocol: M bottoms and a top, with their optimiser, books and checkpoints.

    The networks are built in ``configure_model`` from the shapes that the datamodule reports, so a protocol runs on any
    data.

    Args:
        aggregator: joins the embeddings of the parties into one tensor.
        bottom: makes a party's network from (per-record shape of its features, embedding width).
        top: makes the server's network from the aggregate's width. A factory with a parameter ``outputs`` that is left
            open gets the number of outputs that the task needs, one with ``widths`` the widths of the parties'
            embeddings. A network whose ``forward`` takes ``columns`` is told which columns have arrived. In two halves
            (U-shape), ``{"server": factory, "active": factory}``: the server's half ends in ``width`` numbers of a
            record, and the half of the active party predicts from them, so that labels and predictions stay with it.
            Not guaranteed: that the server does not learn labels; the gradients at the cut tell it of them.
        width: D, the embedding width of every party (an aggregator may correct it).
        objective: loss, predictions and default metrics; None: multi-class, binary or regression, chosen by the data.
        metrics: metrics by name, instead of the objective's; each is updated with (predictions, labels).
        bottom_of: party number -> factory, for parties that do not use ``bottom``.
        optimizer: makes the ONE optimiser of all parties and the server from their parameters; None: Adam at 1e-3.
        lr_scheduler: makes a learning-rate schedule, stepped each epoch; ReduceLROnPlateau monitors ``val/loss``.
        active: the party that holds the labels, if a party with features holds them; this party never drops out.
        clock: speed of links and machines, for the virtual time of the rounds; None: ``VirtualClock()``.
        evaluate: how validation, test and prediction run: ``plain`` in the clear, ``protocol`` through the aggregator's
            messages (metered under kinds of their own), ``auto`` as the aggregator prefers. No fault happens and no
            virtual time passes there.
        seed: seeds the random streams of the rounds; None: the seed of ``seed_everything``, else 0. If
            nobody has seeded torch's generator, a given seed is that of the initial weights too.
        party_shapes: per-record shape of each party's features; None: taken from the datamodule.
        num_classes: classes of the labels, None for real-valued labels; taken from the datamodule if ``party_shapes``
            is None.
        party_groups: party numbers of each group; the parties of one group hold the same columns for different records
            and share a bottom. Taken from the datamodule if ``party_shapes`` is None; None: every party is a group of
            its own.
        privacy_ledger: the file in which every release is charged, if the aggregator accounts for privacy. ``auto``: a
            new file beside the run; a fit that resumes a checkpoint continues the file of that run, and is refused if
            the file is missing. A path: continue this file, for example the file of a run that was killed before its
            first checkpoint. ``lost``: as ``auto``, but a missing file is accepted: the rounds that were released after
            the checkpoint are then not charged, and the summary states this.

    Faults are added to ``faults``, usually by a callback; the protocol reads the outcome of every request from it.

    Guarantee: a party that takes no part in a round has bit-identical parameters and optimiser state afterwards. A run
        resumed from a checkpoint has the same bits as the uninterrupted run. Gradients are clipped separately for each
        party and for the server, because no party sees the gradient norm of another party.
    Not guaranteed: gradient accumulation and strategies other than one device and DDP; both are refused.

    Raises:
        ConfigurationError: before training, if a network does not fit the data or the aggregator.
    """

    top: nn.Module
    fitted: Fitted | None = None
    """What the parties have fitted to the training records; the datamodule sets it in a fit, checkpoints keep it."""
    position: Mapping[str, Any] = {}
    """Where the training loader of a checkpoint stood; the datamodule takes it when the fit is resumed."""
    parties_learn_from_joiner = True  # by gradients of their embeddings
    _built = False

    def __init__(
        self,
        aggregator: Aggregator,
        bottom: BottomFactory = MLP,
        top: Halves | TopFactory = Linear,
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
        refuse_other_kind("aggregator", aggregator, Aggregator, "Mean()")
        if objective is not None:
            refuse_other_kind("objective", objective, Objective, "Binary()")
        refuse_unnamed(metrics)
        if clock is not None:
            refuse_other_kind("clock", clock, VirtualClock, "VirtualClock()")
        refuse_made(bottom=bottom, top=top, bottom_of=bottom_of, optimizer=optimizer, lr_scheduler=lr_scheduler)
        if width < 1:
            raise ConfigurationError(f"width must be at least 1; got {width}")
        self._given_seed = seed
        # seed_everything stores its seed in this variable
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        with warnings.catch_warnings():  # "already saved during checkpointing": plain_settings drops networks
            warnings.filterwarnings("ignore", message=r"Attribute '\w+' is an instance of `nn.Module`")
            self.save_hyperparameters()
        stored = self.hparams, self._hparams_initial
        given, signature = names_given(self, self.hparams), inspect.signature(type(self)).parameters
        drop_others(*stored, {*given, *signature})
        self._lost = plain_settings(*stored, self.seed, party_shapes, num_classes, party_groups, given)
        del self._made_with  # a copy of the module needs no copy of its arguments
        self.aggregator, self.width, self.active = aggregator, width, active
        self.protected_evaluation = evaluate == "protocol" or (evaluate == "auto" and aggregator.private_evaluation)
        self._bottom, self._bottom_of, self._top, self._metrics = bottom, bottom_of or {}, top, metrics
        self.halved = isinstance(top, Mapping)
        self._objective, self._optimizer, self._lr_scheduler = objective, optimizer, lr_scheduler
        self.faults = Faults(self.seed)
        self.preparation = Preparation()
        self.books = Books(clock or VirtualClock(), self.own_books())
        self.privacy = PrivacyBooks()
        self.label_privacy = PrivacyBooks()
        self.privacy_ledger = privacy_ledger
        self.keys, self.used = {}, set()
        self._absence_tried = self._rows_tried = False
        self._resumed: dict[str, Any] = {}  # the memory of a checkpoint, until a fit resumes

    # ---- what a protocol may override, besides ``output`` and ``step``

    def schedule(self, records: RecordSource, batch_size: int, seed: int, drop_last: bool = False) -> Schedule:
        """The order of batches in training; default: a new one every epoch, of records (``shuffled``) or coded rows."""
        setup = self.aggregator.setup
        if setup is None:
            return shuffled(records, batch_size, seed, drop_last)
        blocks = setup.arrangement(len(records), self.roster.parties, self.seed, Stage.FIT)
        return Aligned(blocks, batch_size, seed, drop_last)

    def own_books(self) -> Any:
        """A dataclass with the additional counts of this protocol; None: there are no additional counts.

        It is called in ``VFLModule.__init__``, before the settings of a subclass are there.
        """
        return None

    @property
    def memory(self) -> Memory | None:
        """The state between rounds that is as large as the data; None: the protocol has no such state."""
        return None

    def top_width(self) -> int:
        """How many numbers a record has at the input of the top; default: the aggregate's width."""
        return self.aggregator.out_width(self.width, self.roster)

    def more_legs(self, rows: int) -> tuple[Leg, ...]:
        """Messages that go with the parties' last leg; default: the labels, if the server needs those of a party."""
        return () if self.halved else labels_leg(rows, self.roster)

    def owners(self) -> Iterator[nn.Module]:
        """The networks that belong to different owners: those of each party, then the server's."""
        for party, bottom in enumerate(self.bottoms.parties):
            if isinstance(self.top, HalvedTop) and party == self.roster.active:
                yield nn.ModuleList([bottom, self.top.active])
            else:
                yield bottom
        yield self.top.server if isinstance(self.top, HalvedTop) else self.top

    def parts(self) -> dict[str, str]:
        """The parts of the model as comparable texts; a checkpoint with other parts is refused."""
        return {
            "protocol": type(self).__name__,
            "aggregator": self.aggregator.identity,
            "bottom": "\n".join(str(bottom) for bottom in self.bottoms.parties),
            "top": str(self.top),
            "objective": self.objective.identity,
        }

    def standing(self) -> dict[str, float]:
        """The progress of the training, see ``Books.standing``."""
        return self.books.standing(self.roster.parties)

    def protection(self, uploads: int) -> str | None:
        """What the protocol hides of a record after so many uploads, as a text for the summary; None: no claim."""
        claim = self.wire.protection(uploads)
        claim = claim if self.place is not None else self.books.claimed("aggregator", claim)
        return self.with_columns(claim, uploads)

    def with_columns(self, said: str | None, uploads: int) -> str | None:
        """A claim about hidden uploads, and what so many of them tell of the columns behind them."""
        told = None if self.wire.traits.visible else self.columns_told(uploads)
        return said if told is None else f"{said}; {told.claim(self.joiner)}"

    def columns_told(self, uploads: int) -> Told | None:
        """What whoever joins the embeddings can compute of the columns after so many uploads; see ``Told``."""
        learn, noise = self.parties_learn_from_joiner, self.noise_on_uploads
        return columns_told(self.reads(), self.party_columns, uploads, learn, noise)

    @property
    def noise_on_uploads(self) -> Noise:
        """The noise on what whoever joins the embeddings reads."""
        return Noise.NONE if self.aggregator.accounting is None else Noise.CHARGED

    def reads(self) -> tuple[Read, ...]:
        """The numbers that whoever joins the embeddings reads in a round; one party of a group stands for all."""
        others = {party for group in self.roster.shared for party in group[1:]}
        found = readable(self.aggregator, self.embedding_widths)
        return tuple(Read(one.width, tuple(m for m in one.parties if m not in others)) for one in found)

    def initial_bottom(self, party: int) -> nn.Module:
        """The bottom of a party before training, built again from the party's key."""
        shape = tuple(self.hparams["party_shapes"][party])
        factory = self._bottom_of.get(party, self._bottom)
        return party_bottom(factory, party, shape, self.embedding_widths[party], self.keys)

    def requests_made(self) -> int:
        """How many requests each party has received in training so far; two a round."""
        return 2 * self.books.rounds.get(Stage.FIT, 0)

    # ---- networks

    @toolkit_hook
    def configure_model(self) -> None:
        """Build the networks once, for the shapes in hparams or in the trainer's datamodule.

        Lightning calls this function with the trainer's device as torch's default device, and moves the networks
        afterwards. They are built on the CPU, so that their initial weights do not depend on the device, and masks of
        parties, counts and seconds stay on the CPU.
        """
        if not self._built:
            self._build_once()
        if self._trainer is not None and self.trainer.state.fn == TrainerFn.FITTING:
            refuse_callbacks(self)

    def _build_once(self) -> None:
        own = drawn_from(self.keys[self.owner], "networks") if self.keys else seeded_if_unseeded(self._given_seed)
        with own, nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
            try:
                self.build()
            except BaseException:
                if self.keys:  # the trainer moves what is left, and networks without numbers cannot be moved
                    self._modules.clear()
                raise
        refuse_shared(self)
        self._built = True  # what has refused to be built is refused again

    def build(self) -> None:
        """Build the networks, and what depends on their shapes; a protocol with more networks extends this function."""
        note_shapes(self.hparams, self.datamodule)
        shapes = tuple(tuple(shape) for shape in self.hparams["party_shapes"])
        classes = self.hparams["num_classes"]
        self.roster = roster_of(len(shapes), self.hparams["party_groups"], self.active)
        self.hparams["party_groups"] = several(self.hparams["party_groups"])
        self.aggregator = self.aggregator.among(self.roster)
        self.wire = wire_of(self.aggregator)
        self.sides = Sides.of(self.wire)
        self.objective = self._objective or objective_for(classes)
        self.objective.prepare(classes)
        refuse_other_targets(self.objective.targets, self.datamodule)
        self.bottoms = build_bottoms(
            self._bottom, self._bottom_of, self.aggregator, shapes, self.width, self.roster, self.keys
        )
        self.party_columns = tuple(map(columns_of, self.bottoms.parties, shapes))
        refuse_parameters_of(self.aggregator)
        try_aggregator(self.aggregator, self.width, self.roster)
        widths = self.aggregator.widths(self.width, self.roster)
        outputs = self.objective.outputs(classes)
        if isinstance(self._top, Mapping):
            active = self.roster.active
            self.top = build_halves(self._top, self.top_width(), self.width, outputs, self.keys, widths, active)
        else:
            self.top = build_top(self._top, self.top_width(), outputs, self.keys, widths)
        note_outputs(self.hparams, self._top, outputs)
        self._refuse_other_width()
        self.books.begin(self.roster.parties)
        chosen = self._metrics or self.objective.metrics(classes)
        self.val, self.test = Scores("val", chosen), Scores("test", chosen)
        self.costs = Costs(
            self.aggregator,
            self.roster,
            self.clock,
            self.bottoms,
            self.top,
            shapes,
            self.width,
            self.top_width(),
            self.more_legs,
        )

    def _refuse_other_width(self) -> None:
        """Refuse an own ``top_width`` that is not the width of what the top gets."""
        own = type(self).top_width.__module__.partition(".")[0] != "lightning_vfl"
        others = ("output", "output_of", "output_in_the_clear", "head", "step")  # may give the top something else
        inherited = all(getattr(type(self), name).__module__.startswith("lightning_vfl.") for name in others)
        width = self.aggregator.out_width(self.width, self.roster)
        if own and inherited and self.top_width() != width:
            raise ConfigurationError(
                f"top_width of {type(self).__name__} is {self.top_width()}, but {type(self.aggregator).__name__} gives "
                f"the top {width} numbers of a record; override head too, which calls the top, or leave top_width out"
            )

    def build_for(self, data: Any) -> None:
        """Build the networks for a datamodule, before a fit or without a trainer.

        A fit then trains these networks: loggers can watch them, and parameters can be counted or frozen before it.

        Args:
            data: of the fit; it need not be set up. Files that it downloads are downloaded.

        Raises:
            ConfigurationError: for anything but a datamodule that knows the shapes of its parties.

        Examples:
            >>> from lightning_vfl import SplitVFL
            >>> from lightning_vfl.aggregators import Mean
            >>> from lightning_vfl.datamodules import Digits
            >>> module = SplitVFL(Mean(), width=8)
            >>> module.build_for(Digits())
            >>> sum(parameter.numel() for parameter in module.top.parameters())
            90
        """
        if not hasattr(data, "party_shapes"):
            raise ConfigurationError(
                f"build_for must be given a VerticalDataModule, which knows the shapes; got {type(data).__name__}; for "
                "loaders of your own give the module party_shapes= and num_classes=, and call configure_model()"
            )
        data.prepare_data()
        note_shapes(self.hparams, data)
        self.configure_model()

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        """As torch's; a network that is not built yet is told in one line."""
        if "_modules" not in self.__dict__:
            raise NotBuilt(
                f"__init__ of {type(self).__name__} must first call super().__init__(...), as a module of torch"
            )
        if self._built or name.startswith("_") or name in self.__dict__.get("_modules", ()):
            return super().__getattr__(name)
        raise not_built(self, name)

    def named_parameters(self, *given: Any, **settings: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As torch's, which ``parameters``, ``freeze``, optimisers and summaries call.

        Raises:
            NotBuilt: before the networks are built.
        """
        launched = parent_process() is not None  # by a launcher, which asks for parameters before it runs the fit
        if not (self._built or "bottoms" in self._modules or launched):
            raise not_built(self, "parameters")
        return super().named_parameters(*given, **settings)

    @toolkit_hook
    def setup(self, stage: str) -> None:
        """Refuse unsuitable data and trainer settings before anything runs."""
        self._pending, self._within_round = None, False
        self.forget(*SET_UP)  # an interrupted run may have left shares and keys
        if self.datamodule is not None and self.hparams["party_shapes"] is not None:
            refuse_other_data(self.hparams, self.datamodule)
        refuse_trainer(self.trainer, self._compiler_ctx is not None)
        use_whole_checkpoints(self.trainer)
        refuse_bare_batches(self.trainer, stage)
        if stage == "fit":
            refuse_accumulation(self.trainer)
            repeat_batches(self.trainer)
        refuse_searches(self)

    def forward(self, features: VerticalBatch | Sequence[Tensor] | Tensor, *others: Tensor) -> Tensor:
        """Predictions for a batch, computed as in evaluation, see ``evaluate``.

        Args:
            features: a batch, or the features of all parties, each (B, *S_m).
            others: the features of parties 1 to M - 1, if ``features`` are those of party 0. Lightning calls a module
                so with a tuple as ``example_input_array``.
        """
        if not isinstance(features, VerticalBatch):
            features = _of_all_parties(features, others, self.roster.parties)
        if self.protected_evaluation and (self.aggregator.setup or self.aggregator.accounting):
            raise ConfigurationError(
                f"{type(self.aggregator).__name__} must know the records of these features, because it is set up for "
                "the records of a stage or must charge training records; use trainer.predict with a "
                "VerticalDataModule, or evaluate: plain"
            )
        refuse_overlap(self.roster, features.present)
        names = RoundNames(self.seed, Stage.PREDICT, self.books.next_round(Stage.PREDICT))
        return self.objective.predict(self.output(features, names))

    def output_in_the_clear(self, batch: VerticalBatch, roll: Roll | None = None) -> Tensor:
        """The top's output for the embeddings of the included parties (None: all), aggregated in real arithmetic."""
        roll = roll or Roll.everyone(self.roster.parties)
        return self.output_of(self.bottoms(batch.features), roll, batch.present, self.columns_from(roll))

    def columns_from(self, roll: Roll) -> Tensor | None:
        """(D_out,) bool, the columns of the aggregate that these parties bring; None: all."""
        return None if roll.complete else self.aggregator.columns(self.embedding_widths, roll)

    def output_of(
        self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None, columns: Tensor | None = None
    ) -> Tensor:
        """The server's output for M embeddings (B, D_m), aggregated in real arithmetic; ``columns`` as in ``head``."""
        return self.head(self.joined(h, roll, present), columns)

    def joined(self, h: tuple[Tensor, ...], roll: Roll, present: Tensor | None) -> Tensor:
        """``plain`` of M embeddings (B, D_m); the first time that some do not count, the aggregator is tried."""
        self.refuse_uncounted(roll, present)
        return self.aggregator.plain(h, roll, present)

    def refuse_uncounted(self, roll: Roll, present: Tensor | None) -> None:
        """Refuse, once, an aggregator that uses embeddings of absent parties, or rows that a party does not hold."""
        if not self._absence_tried and len(roll.counted) < self.roster.parties:
            self._absence_tried = True
            refuse_uncounted(self.aggregator, self.embedding_widths, roll)
        if not self._rows_tried and present is not None:
            self._rows_tried = True
            refuse_uncounted(self.aggregator, self.embedding_widths, Roll.everyone(self.roster.parties), True)

    def answers(self, there: Tensor) -> Tensor:
        """(B,) bool, the records that get a prediction if the parties in ``there`` (B, M) bool are not absent."""
        return there.any(1)

    def head(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The server's output for an aggregate; ``columns`` (D_out,) bool: the columns that arrived, None: all."""
        takes_columns = isinstance(self.top, ColumnAwareTop | HalvedTop)
        output: Tensor = self.top(value, columns) if takes_columns else self.top(value)
        return output

    def __prepare_scriptable__(self) -> Any:
        """Refuse ``torch.jit.script``, which calls this function, also from ``to_torchscript``."""
        raise ConfigurationError(
            'torch.jit.script cannot compile a round of messages; use method="trace" with a tensor for each party, or '
            "`lightning-vfl export`, which writes the halves of the parties and the server"
        )

    # ---- checkpoints

    def state_dict(self, *given: Any, **settings: Any) -> dict[str, Any]:  # type: ignore[override]  # overloads
        """As torch's.

        Raises:
            NotBuilt: before the networks are built, if no trainer asks.
        """
        if not self._built and self._trainer is None:
            raise not_built(self, "weights")
        weights: dict[str, Any] = super().state_dict(*given, **settings)
        return weights

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights; the networks are built first.

        Raises:
            ConfigurationError: if the shapes for which they would be built are not known.
        """
        if not self._built and state_dict:
            if self.hparams["party_shapes"] is None and self.datamodule is None:
                raise ConfigurationError(
                    "weights cannot be loaded before the networks are built; call build_for(datamodule) first, or use "
                    f"{type(self).__name__}.load_from_checkpoint(path)"
                )
            self.configure_model()
        return super().load_state_dict(state_dict, strict, assign)

    @toolkit_hook
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the counts and the texts that identify the model's parts.

        Raises:
            NotBuilt: before the networks are built; if an error is the reason to save, this error.
        """
        if not self._built:
            raise sys.exception() or not_built(self, "weights to save")
        hand_out_again(checkpoint)
        if self._within_round:
            rank_zero_warn(
                f"the checkpoint is saved within round {self.books.rounds[Stage.FIT]}, whose messages and charges are "
                "counted: a fit that resumes it repeats the batch as another round, so it has other bits than a fit "
                "without the interruption"
            )
        books = self.books.state()
        loss = books["epoch_loss"]
        if self.joint and isinstance(loss["total"], Tensor):  # each process scales its sum: the mean is the joint sum
            loss["total"] = self.trainer.strategy.reduce(loss["total"].to(self.device), reduce_op="mean").cpu()
        told = take_untaken(checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY, {}), type(self))
        more = {"preparation": self.preparation.state(), "privacy": self.privacy.state(), "lost": self._lost}
        more |= {"told": told} if told else {}
        checkpoint[BOOKS] = {**books, "seed": self.seed, "parts": self.parts(), **more}
        checkpoint[FITTED] = None if self.fitted is None else self.fitted.state()
        if "optimizer_states" in checkpoint:  # as large as the data: only in checkpoints for resuming
            kept = {} if self.memory is None else self.memory.state()
            checkpoint[BOOKS]["memory"] = self._resumed or kept
            if self.place is not None and self.keys:
                checkpoint[BOOKS]["secret key"] = self.keys[self.owner].hex()

    @toolkit_hook
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counts, if the checkpoint is of a model with the same parts."""
        books = checkpoint.get(BOOKS)
        if books is None:
            return
        self.fitted = Fitted.of(checkpoint[FITTED]) if checkpoint.get(FITTED) else self.fitted
        kept = {**checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY, {}), **books.get("told", {})}
        if self.hparams["party_shapes"] is None:  # the constructor of a subclass does not take them
            self.hparams.update({name: kept.get(name) for name in SHAPES})
        self.configure_model()
        if self.fitted is not None:
            refuse_other_shapes(self.fitted, self.hparams["party_shapes"])
        refuse_other_parts(books["parts"], self.parts(), kept, self.hparams)
        note_other_seed(self._trainer, self.seed, books["seed"])
        self.seed = books["seed"]
        self.faults.reseed(self.seed)
        self.books.load(books)
        self.preparation.forget(*SET_UP)  # the round numbers of the checkpoint may be smaller
        self.preparation.load(books.get("preparation", {}))
        path = None if self._trainer is None else self.trainer.ckpt_path
        self.privacy.load(books.get("privacy", {}), None if path is None else Path(path))
        self._resumed, self.position = books.get("memory", {}), position_in(checkpoint)
        if self.place is not None and self.keys and "secret key" in books:  # a resumed process draws as it would have
            self.keys[self.owner] = bytes.fromhex(books["secret key"])


def _of_all_parties(features: Any, others: tuple[Tensor, ...], parties: int) -> VerticalBatch:
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
