"""SplitModel: the networks, settings and accounts of a protocol, and its outputs in the clear."""

import inspect
import os
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from multiprocessing import parent_process
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.clear import ClearParty, InTheClear, PlainServer, wire_of
from lightning_vfl.aggregators.parts import Traits, Wire
from lightning_vfl.aggregators.readable import readable
from lightning_vfl.compressors import Compressor, Sender
from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.local_updates import LocalUpdate
from lightning_vfl.missing import Exclude, MissingPolicy
from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.batched import has_rule
from lightning_vfl.networks.column_aware import ColumnAwareTop
from lightning_vfl.networks.halved_top import HalvedTop
from lightning_vfl.networks.memory import Memories, Memory
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.objectives import Objective, mean_loss, objective_for
from lightning_vfl.protocols.accounts.books import PrivacyBooks
from lightning_vfl.protocols.books import Books
from lightning_vfl.protocols.build import (
    LAST_HALF,
    BottomFactory,
    Halves,
    TopFactory,
    build_bottoms,
    build_halves,
    build_top,
    by_number,
    drop_others,
    note_outputs,
    note_shapes,
    party_bottom,
    party_names_of,
    plain_settings,
    refuse_made,
    refuse_parameters_of,
    refuse_shared,
    refuse_uncounted,
    refuse_unregistered,
    roster_of,
    several,
    try_aggregator,
)
from lightning_vfl.protocols.checks import refuse_other_targets
from lightning_vfl.protocols.columns_told import Columns, Noise, Read, Told, columns_of, columns_told
from lightning_vfl.protocols.costs import Costs
from lightning_vfl.protocols.early_build import NotBuilt, not_built
from lightning_vfl.protocols.hooks import FreeHooks
from lightning_vfl.protocols.loading import SafelyLoaded
from lightning_vfl.protocols.optimizer_groups import (
    SERVER,
    check_settings,
    make_optimizer,
    make_schedule,
    settings_by_owner,
)
from lightning_vfl.protocols.owner_keys import drawn_from, seeded_if_unseeded
from lightning_vfl.protocols.place import Behind, Elsewhere, Place
from lightning_vfl.protocols.preparation import Preparation
from lightning_vfl.protocols.scores import Scores, refuse_unnamed
from lightning_vfl.protocols.subtraction import SummedSets
from lightning_vfl.rebuildable import Rebuildable, names_given
from lightning_vfl.rounds.exchange import Hear, Sides
from lightning_vfl.rounds.plan import Plans, RoundPlan
from lightning_vfl.schedules.batches import Aligned, Schedule
from lightning_vfl.schedules.blocks import shuffled
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.streams import seed_torch
from lightning_vfl.support import Part, Unsupported, refuse_unsupported
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import RecordSource, Roll, Roster, RoundNames, Seat, Stage, Tensors, VerticalBatch, Widths
from lightning_vfl.waiting import WaitForAll, WaitingRule
from lightning_vfl.wire import Embeddings, Tap

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]
_ADAM: OptimizerFactory = partial(torch.optim.Adam, lr=1e-3, fused=True)  # the default


class _OwnGradients:
    """What clipping reads of an optimiser, with the parameters of one owner."""

    def __init__(self, optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": parameters}]
        self._step_supports_amp_scaling = getattr(optimizer, "_step_supports_amp_scaling", False)


class SplitModel(FreeHooks, Rebuildable, SafelyLoaded, metaclass=ABCMeta):  # no base ABC: an author's mixin may have it
    """M bottoms, an aggregator and a top, with their settings, optimiser and accounts: what ``VFLModule`` trains.

    The networks are built from the shapes that the datamodule reports, so a protocol runs on any data.

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
        waiting: when the server (or the party that joins the embeddings) stops waiting; None: ``WaitForAll()``.
        missing: the policy for missing embeddings; None: ``Exclude()``.
        allow_embeddings_by_subtraction: where uploads are hidden, accept that parties are in some sums of a record and
            not in others, so that the server can subtract two sums and has the embedding of the party between them; the
            summary says of how many records.
        allow_invertible_updates: train groups even if the server could compute their records.
        local_update: how a party learns from the gradient of its embeddings, for example by several local steps;
            None: by one step.
        compressor: of the embeddings that parties send in training, for example ``TopK(share=0.25)``; the gradient
            ignores what is lost. None: they are sent in float32.
        gradient_compressor: of the gradients that the server sends back; None: they are sent in float32.
        objective: loss, predictions and default metrics; None: multi-class, binary or regression, chosen by the data.
        metrics: metrics by name, instead of the objective's; each is updated with (predictions, labels).
        bottom_of: party number, or name -> factory, for parties that do not use ``bottom``.
        optimizer: makes the ONE optimiser of all parties and the server from their parameters; None: Adam at 1e-3.
        optimizer_of: party number, or name, or ``server`` -> settings of the optimiser for its networks alone, for
            example ``{bank: {lr: 0.1, weight_decay: 0.01}}``; a schedule multiplies each rate.
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

    A protocol names the parts that it does not support in ``unsupported``, each with what to use instead. The table
    of a class extends those of its bases, and None takes a part back in.

    Raises:
        ConfigurationError: for settings that do not suit each other, and for a part that the protocol does not support;
            before training, if a network does not fit the data or the aggregator.
    """

    aggregator: Aggregator
    wire: Wire
    traits: Traits
    sides: Sides
    objective: Objective
    roster: Roster
    bottoms: PartyBank
    top: nn.Module
    party_columns: tuple[Columns, ...]
    embedding_widths: Widths
    """(M,), of each party."""
    costs: Costs
    books: Books
    preparation: Preparation
    faults: Faults
    seed: int
    protected_evaluation: bool
    val: Scores
    test: Scores
    privacy: PrivacyBooks
    label_privacy: PrivacyBooks  # of labels, if a downlink is charged
    privacy_ledger: str
    keys: dict[int | None, bytes]
    """By hosted owner (None: the server), the secret that replaces the seed in a federation; empty in a simulation."""
    place: Place | None = None  # None: everybody is hosted in this process
    tap: Tap | None = None  # listens to all messages, for an audit
    used: set[str]
    """The parts that training has used, see ``promised``."""
    fitted: Fitted | None = None
    """What the parties have fitted to the training records; the datamodule sets it in a fit, checkpoints keep it."""
    joiner: str = "the server"  # who joins the embeddings, in words
    parties_learn_from_joiner = True  # by gradients of their embeddings
    seeds_networks: bool = True  # whether a step seeds torch's global generator, for dropout in networks
    names_draws: bool = True  # whether what the networks draw in a step depends on its round, see ``name_draws``
    sends_labels: ClassVar[bool] = True  # whether the active party sends the labels of a round, if the top is elsewhere
    labels_everywhere: ClassVar[bool] = False  # whether every party learns with the labels of its own
    says_who_learns: bool = True  # whether a Step without a fault names exactly the networks that change
    unsupported: ClassVar[Unsupported] = {
        Part.DOWNLINK: "use SplitVFL",
        Part.SUBSETS: "use SplitVFL",
        Part.FEDERATION: "use SplitVFL, AsyncVFL, DecoupledVFL, LaserVFL or EnsembleVFL",
    }
    learns_locally = False  # a party makes a step of its own, before the optimiser's step is over
    replayed: Plans | None = None
    """What has happened in a federation, if this training repeats it."""
    _rate: float | None = None
    _build_begun = False
    _built = False

    def __init__(
        self,
        aggregator: Aggregator,
        bottom: BottomFactory = MLP,
        top: Halves | TopFactory = Linear,
        width: int = 64,
        waiting: WaitingRule | None = None,
        missing: MissingPolicy | None = None,
        allow_embeddings_by_subtraction: bool = False,
        allow_invertible_updates: bool = False,
        local_update: LocalUpdate | None = None,
        compressor: Compressor | None = None,
        gradient_compressor: Compressor | None = None,
        objective: Objective | None = None,
        metrics: Mapping[str, Metric] | None = None,
        bottom_of: dict[int | str, BottomFactory] | None = None,
        optimizer: OptimizerFactory | None = None,
        optimizer_of: dict[int | str, dict[str, Any]] | None = None,
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
        refuse_unnamed(metrics)
        refuse_made(bottom=bottom, top=top, bottom_of=bottom_of, optimizer=optimizer, lr_scheduler=lr_scheduler)
        if width < 1:
            raise ConfigurationError(f"width must be at least 1; got {width}")
        for name, value, kind, example in (
            ("objective", objective, Objective, "Binary()"),
            ("clock", clock, VirtualClock, "VirtualClock()"),
            ("waiting", waiting, WaitingRule, "WaitForAll()"),
            ("missing", missing, MissingPolicy, "Exclude()"),
            ("local_update", local_update, LocalUpdate, "LocalSteps(2)"),
            ("compressor", compressor, Compressor, "TopK(share=0.25)"),
            ("gradient_compressor", gradient_compressor, Compressor, "TopK(share=0.25)"),
        ):
            if value is not None:
                refuse_other_kind(name, value, kind, example)
        self._given_seed = seed
        # seed_everything stores its seed in this variable
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed
        with warnings.catch_warnings():  # "already saved during checkpointing": plain_settings drops networks
            warnings.filterwarnings("ignore", message=r"Attribute '\w+' is an instance of `nn.Module`")
            self.save_hyperparameters()
        stored = self.hparams, self._hparams_initial
        given = names_given(self, self.hparams)
        signature = inspect.signature(type(self)).parameters
        drop_others(*stored, {*given, *signature})
        self._lost = plain_settings(*stored, self.seed, party_shapes, num_classes, party_groups, given)
        del self._made_with  # a copy of the module needs no copy of its arguments
        self.aggregator = aggregator
        self.width = width
        self.active = active
        self.protected_evaluation = evaluate == "protocol" or (evaluate == "auto" and aggregator.private_evaluation)
        self._bottom = bottom
        self._top = top
        self._metrics = metrics
        self._named_bottoms = bottom_of or {}
        self._bottom_of: dict[int, BottomFactory] = {}  # by number, when the parties are known
        self._named_settings = settings_by_owner(optimizer_of)
        self._optimizer_of: dict[int | str, dict[str, Any]] = {}  # by number, as above
        self.halved = isinstance(top, Mapping)
        self._objective = objective
        self._optimizer = optimizer
        self._lr_scheduler = lr_scheduler
        self.waiting = waiting or WaitForAll()
        self.missing = missing or Exclude()
        self.local_update = local_update
        self.compressor = compressor
        self.gradient_compressor = gradient_compressor
        self.allow_embeddings_by_subtraction = allow_embeddings_by_subtraction
        self.allow_invertible_updates = allow_invertible_updates
        self._refuse_unsupported(
            {
                Part.WAITING: waiting is not None,
                Part.MISSING: missing is not None,
                Part.HIDDEN: aggregator.wire is not None or aggregator.accounting is not None,
                Part.PROTECTED_EVALUATION: self.protected_evaluation,
                Part.HALVES: self.halved,
                Part.LOCAL_UPDATE: local_update is not None,
                Part.COMPRESSOR: self.compresses,
            }
        )
        self.faults = Faults(self.seed)
        self.preparation = Preparation()
        self.books = Books(clock or VirtualClock(), self.own_books())
        self.privacy = PrivacyBooks()
        self.label_privacy = PrivacyBooks()
        self.privacy_ledger = privacy_ledger
        self.summed = SummedSets()
        self.keys = {}
        self.used = set()
        self._absence_tried = self._rows_tried = self._decoding_tried = False
        self._faultless: dict[tuple[int, int], RoundPlan] = {}  # a fit has few different plans
        self._resumed: dict[str, Any] = {}  # the memory of a checkpoint, until a fit resumes
        self.optimizers_given: dict[str, dict[str, Any]] = {}  # of the fit, or of that of the checkpoint

    def _refuse_unsupported(self, given: Mapping[Part, bool]) -> None:
        refuse_unsupported(type(self), [part for part, is_given in given.items() if is_given])

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
        return self.with_residues(self.missing.memory)

    def with_residues(self, memory: Memory | None) -> Memory | None:
        """A memory, and the residues of the senders that are hosted here, if there are any."""
        if not (self.compresses and self._built):
            return memory
        _, party, server = self.sides
        kept: dict[str, Memory] = {}
        if isinstance(party, ClearParty) and (self.place is None or self.place.seat.party is not None):
            kept |= _residues("embeddings", party.sender)
        if isinstance(server, PlainServer) and (self.place is None or self.place.seat.party is None):
            kept |= _residues("gradients", server.sender)
        if not kept:
            return memory
        return Memories(kept if memory is None else {"latest embeddings": memory, **kept})

    def top_width(self) -> int:
        """How many numbers a record has at the input of the top; default: the aggregate's width."""
        return self.aggregator.out_width(self.width, self.roster)

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
        frozen, free = "track_running_stats=False", "track_running_stats=True"  # a callback may freeze a normalisation
        return {
            "protocol": type(self).__name__,
            "aggregator": self.aggregator.identity,
            "bottom": "\n".join(str(bottom).replace(frozen, free) for bottom in self.bottoms.parties),
            "top": str(self.top).replace(frozen, free),
            "objective": self.objective.identity,
        }

    def standing(self) -> dict[str, float]:
        """The progress of the training, see ``Books.standing``."""
        return self.books.standing(self.roster.parties)

    def with_columns(self, said: str | None, uploads: int) -> str | None:
        """A claim about hidden uploads, and what so many of them tell of the columns behind them."""
        told = None if self.wire.traits.visible else self.columns_told(uploads)
        return said if told is None else f"{said}; {told.claim(self.joiner)}"

    def columns_told(self, uploads: int) -> Told | None:
        """What whoever joins the embeddings can compute of the columns after so many uploads; see ``Told``."""
        learn = self.parties_learn_from_joiner
        noise = self.noise_on_uploads
        names = party_names_of(self.datamodule, self.roster.parties)
        return columns_told(self.reads(), self.party_columns, uploads, learn, noise, names)

    @property
    def noise_on_uploads(self) -> Noise:
        """The noise on what whoever joins the embeddings reads."""
        return Noise.NONE if self.aggregator.accounting is None else Noise.CHARGED

    def reads(self) -> tuple[Read, ...]:
        """The numbers that whoever joins the embeddings reads in a round; one party of a group stands for all."""
        others = {party for group in self.roster.shared for party in group[1:]}
        found = readable(self.aggregator, self.embedding_widths)
        return tuple(Read(one.width, tuple(m for m in one.parties if m not in others)) for one in found)

    def initial_networks(self, party: int) -> nn.Module:
        """The networks of a party, as ``owners`` gives them, before training, built again from the party's key."""
        shape = tuple(self.hparams["party_shapes"][party])
        factory = self._bottom_of.get(party, self._bottom)
        name = party_names_of(self.datamodule, self.roster.parties)[party]
        bottom = party_bottom(factory, party, shape, self.embedding_widths[party], self.keys, name)
        if not isinstance(self._top, Mapping) or party != self.roster.active:
            return bottom
        half = build_top(
            self._top["active"], self.width, self._outputs, self.keys, self.embedding_widths, party, LAST_HALF
        )
        return nn.ModuleList([bottom, half])

    def requests_made(self) -> int:
        """How many requests each party has received in training so far; two a round."""
        return 2 * self.books.training_rounds

    @property
    def meets_faults(self) -> bool:
        """Whether faults may happen in a round of this process: not in a federation, where they are real."""
        return self.place is None and self.replayed is None

    def repeats_given_up(self, names: RoundNames) -> bool:
        """Whether this training repeats that of a federation, which has given up this round."""
        return self.replayed is not None and self.replayed.plan(names.round, 1).skipped

    def promised(self) -> dict[str, str]:
        """The parts that were given and that a training round must use, in words: by name, see ``used``."""
        if self.replayed is not None:
            return self._promised_by_aggregator()
        parts = {
            "waiting": None if type(self.waiting) is WaitForAll else self.waiting,
            "missing": None if type(self.missing) is Exclude else self.missing,
            "local_update": self.local_update,
            "compressor": self.compressor or self.gradient_compressor,
        }
        given = {name: f"{name}: {type(part).__name__}" for name, part in parts.items() if part is not None}
        return self._promised_by_aggregator() | given

    def _promised_by_aggregator(self) -> dict[str, str]:
        aggregator = self.aggregator
        if self.place is not None or (aggregator.wire is None and aggregator.accounting is None):
            return {}
        return {"aggregator": f"aggregator: {type(aggregator).__name__}"}

    def joiners(self) -> tuple[int | None, ...]:
        """The parties that join embeddings; None stands for the server."""
        return (None,)

    # ---- where it runs

    @property
    def owner(self) -> int | None:
        """Whose process this is: a party's, or None for the server's, and for a simulation, which hosts everybody."""
        return None if self.place is None else self.place.seat.party

    @property
    def scores_here(self) -> bool:
        """Whether this process has the outputs: that of the server, or of the party behind the cut of a top."""
        return self.place is None or self.place.seat.party == (self.roster.active if self.labels_stay else None)

    @property
    def labels_here(self) -> bool:
        """Whether this process scores and knows all labels: a party with the labels sends those of each batch."""
        return self.labels_everywhere or (
            self.scores_here and (self.place is None or self.labels_stay or self.roster.active is None)
        )

    @property
    def labels_stay(self) -> bool:
        """Whether the party with the labels computes losses and predictions itself, so that no label is sent."""
        return self.halved

    @property
    def cut_width(self) -> int:
        """How many numbers of a record the server sends to that party."""
        width: int = self.top.cut  # type: ignore[assignment]  # of a top in halves
        return width

    def listener(self, ids: Tensor, at: int | None = None) -> Hear | None:
        """The function to call with each message about records ``ids`` (B,); None: nobody listens.

        ``at``: the party that plays the server; None: the server itself.
        """
        return None if self.tap is None else partial(self.tap.sent, ids=ids, at=at)

    @property
    def stage(self) -> Stage:
        """The stage of the trainer; without a trainer, prediction."""
        trainer = self._trainer
        if trainer is None:
            return Stage.PREDICT
        if trainer.training:  # first, because Lightning takes 3 µs for each of these questions
            return Stage.FIT
        if trainer.predicting:
            return Stage.PREDICT
        if trainer.sanity_checking:
            return Stage.SANITY_CHECK
        if trainer.testing:
            return Stage.TEST
        return Stage.VALIDATION if trainer.validating or trainer.evaluating else Stage.FIT

    @stage.setter
    def stage(self, value: Any) -> None:
        raise ConfigurationError(
            f"stage is the trainer's stage, which protocols read; keep {value!r} under another name (self.stage_name)"
        )

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
    def trains_jointly(self) -> bool:
        """Whether several processes are in a training step: DDP then needs a gradient of every parameter."""
        return self.joint and self.stage == Stage.FIT

    @property
    def clock(self) -> VirtualClock:
        """The virtual time of the training, and the speeds behind it."""
        return self.books.clock

    @clock.setter
    def clock(self, clock: VirtualClock) -> None:
        self.books.clock = clock
        if hasattr(self, "costs"):
            self.costs.start_over()

    # ---- networks

    def _build_once(self) -> None:
        self._refuse_taken_names()
        own = drawn_from(self.keys[self.owner], "networks") if self.keys else seeded_if_unseeded(self._given_seed)
        with own, nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
            try:
                self.build()
                refuse_shared(self.owners(), self.roster.parties)
                refuse_unregistered(self)
                if self.place is not None:
                    self.keep_own(self.place.seat)
            except BaseException:
                if self.keys:  # the trainer moves what is left, and networks without numbers cannot be moved
                    self._modules.clear()
                raise
        self._built = True  # what has refused to be built is refused again

    def networks_by_party(self) -> list[nn.ModuleList]:
        """Lists with a network of each party."""
        return [self.bottoms.parties]

    def keep_own(self, seat: Seat) -> None:
        """In a process of a federation: replace the networks of others, after the costs of rounds are known from all.

        With ``weights: secret`` the networks of others have been built for their sizes alone. With ``weights: seeded``
        all networks are built here, in order of their owners: every process has the initial weights of the simulation.

        Raises:
            ConfigurationError: for parties that share a bottom.
        """
        if self.roster.shared:
            raise ConfigurationError(
                f"parties {list(self.roster.shared[0])} share a bottom, which runs simulated only; give each party "
                "columns of its own between processes"
            )
        self.costs.know()
        for networks in self.networks_by_party():
            for party in range(self.roster.parties):
                if party != seat.party:
                    networks[party] = Elsewhere(f"party {party}")
        self.bottoms.groups = ()
        active = self.roster.active
        if isinstance(self.top, HalvedTop):
            if seat.party is None:
                self.top.active = Behind(f"party {active}")
            elif seat.party == active:
                self.top.server = Elsewhere("the server")
            else:
                self.top = Elsewhere("the server")
        elif not isinstance(self.top, nn.ModuleList):  # the heads of parties are replaced already
            holder = active if self.labels_stay else None
            if seat.party != holder:
                self.top = Elsewhere("the server" if holder is None else f"party {holder}")

    def _refuse_taken_names(self) -> None:
        """Refuse attributes of an author that the networks and metrics would silently take the place of."""
        names = {} if self._build_begun else vars(self) | self._modules  # a build that has failed leaves its networks
        self._build_begun = True
        for name in ("objective", "bottoms", "top", "val", "test"):
            if names.get(name) is not None:
                raise ConfigurationError(
                    f"{type(self).__name__} sets {name}, which is the name of a part that is built; use another name "
                    f"(self.own_{name})"
                )

    def build(self) -> None:
        """Build the networks, and what depends on their shapes; a protocol with more networks extends this function."""
        note_shapes(self.hparams, self.datamodule)
        self._bottom_of = by_number("bottom_of", self._named_bottoms, self.hparams, self.datamodule)
        self._optimizer_of = by_number(
            "optimizer_of", self._named_settings, self.hparams, self.datamodule, others=[SERVER]
        )
        shapes = tuple(tuple(shape) for shape in self.hparams["party_shapes"])
        classes = self.hparams["num_classes"]
        self.roster = roster_of(len(shapes), self.hparams["party_groups"], self.active)
        self.hparams["party_groups"] = several(self.hparams["party_groups"])
        self.aggregator = self.aggregator.among(self.roster)
        self._take_wire(wire_of(self.aggregator))
        self.preparation.setup = self.aggregator.setup
        self.preparation.opening = self.aggregator.opening
        self.preparation.needed = self.aggregator.setup is not None or self.aggregator.opening is not None
        self.objective = self._objective or objective_for(classes)
        self.objective.prepare(classes)
        refuse_other_targets(self.objective.targets, self.datamodule)
        names = party_names_of(self.datamodule, len(shapes))
        self.bottoms = build_bottoms(
            self._bottom, self._bottom_of, self.aggregator, shapes, self.width, self.roster, self.keys, names
        )
        self.party_columns = tuple(map(columns_of, self.bottoms.parties, shapes))
        refuse_parameters_of(self.aggregator)
        try_aggregator(self.aggregator, self.width, self.roster)
        self.embedding_widths = widths = self.aggregator.widths(self.width, self.roster)
        self._outputs = outputs = self.objective.outputs(classes)
        if isinstance(self._top, Mapping):
            active = self.roster.active
            self.top = build_halves(self._top, self.top_width(), self.width, outputs, self.keys, widths, active)
        else:
            holder = self.active if self.labels_stay else None
            self.top = build_top(self._top, self.top_width(), outputs, self.keys, widths, holder)
        note_outputs(self.hparams, self._top, outputs)
        self._refuse_other_width()
        self.books.begin(self.roster.parties)
        chosen = self._metrics or self.objective.metrics(classes)
        self.val, self.test = Scores("val", chosen), Scores("test", chosen)
        self.costs = Costs(self)
        self._refuse_unsupported({Part.GROUPS: bool(self.roster.shared)})
        self._top_may_draw = not has_rule(self.top)
        if self.local_update is not None:
            self._check_local_update(self.local_update)
        if self.compresses:
            self._check_compressors()
            self._take_wire(InTheClear(self.aggregator, self.compressor, self.gradient_compressor))
            self.costs.legs(1)
            self.wire.downlink(1, self.embedding_widths, self.roster)  # refuses widths that cannot be sent

    def _take_wire(self, wire: Wire) -> None:
        self.wire = wire
        self.traits = wire.traits
        self.sides = Sides.of(wire)

    @property
    def compresses(self) -> bool:
        """Whether embeddings or gradients are compressed."""
        return self.compressor is not None or self.gradient_compressor is not None

    def _check_compressors(self) -> None:
        """Refuse compressors where parties do not send embeddings in the clear."""
        if self.aggregator.wire is not None or self.aggregator.accounting is not None:
            raise ConfigurationError(
                f"{type(self.aggregator).__name__} sends messages of its own form, which no compressor changes; use "
                "Concat, Sum, Mean or Max, or leave out compressor and gradient_compressor"
            )
        if self.protected_evaluation:
            raise ConfigurationError("compressors work in training alone; use evaluate: plain")

    def _check_local_update(self, update: LocalUpdate) -> None:
        """Refuse a local update that has no gradient of embeddings, or whose bottoms are summed after the step."""
        update.check(self.roster.parties)
        who = f"local_update: {type(update).__name__} learns from gradients of embeddings"
        if self.aggregator.form is not Embeddings:
            raise ConfigurationError(
                f"{who}, and {type(self.aggregator).__name__} sends those of weights; use Mean or MaskedSum"
            )
        if self.roster.shared:
            raise ConfigurationError(f"{who}, and groups sum the updates of one step; leave out party_groups")

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

    def __prepare_scriptable__(self) -> Any:
        """Refuse ``torch.jit.script``, which calls this function, also from ``to_torchscript``."""
        raise ConfigurationError(
            'torch.jit.script cannot compile a round of messages; use method="trace" with a tensor for each party, or '
            "`lightning-vfl export`, which writes the halves of the parties and the server"
        )

    # ---- outputs

    @abstractmethod
    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The top model's output (B, outputs) for a batch in a stage that does not train."""

    def output_in_the_clear(self, batch: VerticalBatch, roll: Roll | None = None) -> Tensor:
        """The top's output for the embeddings of the included parties (None: all), aggregated in real arithmetic."""
        roll = roll or Roll.everyone(self.roster.parties)
        return self.output_of(self.bottoms(batch.features), roll, batch.present, self.columns_from(roll))

    def columns_from(self, roll: Roll) -> Tensor | None:
        """(D_out,) bool, the columns of the aggregate that these parties bring; None: all."""
        return None if roll.complete else self.aggregator.columns(self.embedding_widths, roll)

    def output_of(self, h: Tensors, roll: Roll, present: Tensor | None, columns: Tensor | None = None) -> Tensor:
        """The server's output for M embeddings (B, D_m), aggregated in real arithmetic; ``columns`` as in ``head``."""
        return self.head(self.joined(h, roll, present), columns)

    def joined(self, h: Tensors, roll: Roll, present: Tensor | None) -> Tensor:
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
        """The server's output for an aggregate; a padding policy puts zeros into absent columns.

        What the server's networks draw in a round does not depend on the draws of bottoms.

        Args:
            value: (B, D_out).
            columns: (D_out,) bool, the columns that arrived; None: all.
        """
        top = self.top
        if self._top_may_draw:
            self._seed_top(value.device, None, "server")
        if isinstance(top, HalvedTop) and self._top_may_draw:
            top.seed = partial(self._seed_top, value.device, self.roster.active, "active")
        value = self.join(value, columns)
        takes_columns = isinstance(top, ColumnAwareTop | HalvedTop)
        output: Tensor = top(value, columns) if takes_columns else top(value)
        return output

    def _seed_top(self, device: torch.device, owner: int | None, what: str) -> None:
        """Let what a part of the top draws in a round depend on the round and its owner alone."""
        if self.bottoms.stream is not None:
            seed, names = self.bottoms.stream
            seed_torch(device, self.keys.get(owner, seed), *names, what)

    def join(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The top's input for an aggregate."""
        padding = self.missing.padding
        return value if columns is None or padding is None else padding(value, columns)

    def rank_loss(self, output: Tensor, batch: VerticalBatch) -> Tensor:
        """This process's loss, weighted by its rows: the mean over processes is the mean loss of the joint batch."""
        mine = len(batch.record_ids)
        if mine == 0:  # the joint batch has fewer rows than there are processes: this process contributes zero
            return output.sum() * 0.0
        self.refuse_other_output(output, batch)
        loss = mean_loss(self.objective, output, batch)
        return loss if batch.joint is None else loss * (mine * self.trainer.world_size / batch.joint.total)

    def refuse_other_output(self, output: object, batch: VerticalBatch) -> None:
        """Refuse an output that has not a row for each record of a batch and a column for each output of the task."""
        shape = len(batch.record_ids), self._outputs
        if not isinstance(output, Tensor) or output.shape != shape:
            found = f"a tensor {(*output.shape,)}" if isinstance(output, Tensor) else type(output).__name__
            raise ConfigurationError(
                f"output of {type(self).__name__} is {found} for {shape[0]} records; return a tensor {shape}, a row "
                "for each record"
            )

    # ---- optimiser

    @property
    def lr(self) -> float | None:
        """The rate that replaces that of ``optimizer``; LearningRateFinder sets it.

        A module with an own ``configure_optimizers`` and a ``learning_rate`` has none: Lightning then searches the
        ``learning_rate``.
        """
        own = type(self).configure_optimizers is not SplitModel.configure_optimizers
        if own and self._rate is None and ("learning_rate" in vars(self) or "learning_rate" in self.hparams):
            raise AttributeError("lr")
        return self._rate

    @lr.setter
    def lr(self, rate: float | None) -> None:
        self._rate = rate

    @property
    def has_rates(self) -> bool:
        """Whether parties or the server have learning rates of their own."""
        return any("lr" in settings for settings in self._named_settings.values())

    def configure_optimizers(self) -> Any:
        """One optimiser for all networks: ``global_step`` counts rounds; a party without gradient does not change."""
        make = self._optimizer or _ADAM
        own = {id(p) for p in self.bottoms.parameters()}  # of a bottom that a group shares, the optimiser has one copy
        parameters = self.bottoms.leading() + [p for p in self.parameters() if id(p) not in own]
        once = list(dict.fromkeys(parameters))  # parties may share a frozen layer
        owners = list(self.owners())
        check_settings(self._optimizer_of, self.roster, owners)
        if self._rate is not None and self.has_rates:
            raise ConfigurationError("lr is one rate for all, and optimizer_of has rates too; leave one out")
        optimizer = make_optimizer(make, once, self._optimizer_of, owners)
        self.used.add("optimizer")
        for group in optimizer.param_groups if self._rate is not None else ():
            group["lr"] = self._rate
        if self._lr_scheduler is None:
            return optimizer
        schedule = make_schedule(self._lr_scheduler, optimizer, self._optimizer_of)
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
            if any(parameter.grad is not None for parameter in parameters):  # torch cannot clip no values
                own = _OwnGradients(optimizer, parameters)
                super().clip_gradients(own, gradient_clip_val, gradient_clip_algorithm)  # type: ignore[arg-type]


def _residues(what: str, sender: Sender | None) -> dict[str, Sender]:
    """What a sender keeps between rounds, by name; empty if it keeps nothing."""
    return {} if sender is None or not sender.compressor.feedback else {f"residues of {what}": sender}
