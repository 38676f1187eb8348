"""The base class of all data sets: load records, divide their columns between parties, check, scale, batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, refuse_other_kind
from lightning_vfl.protocols.hooks import FreeHooks, toolkit_hook, toolkit_part
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.protocols.trusted_classes import checked
from lightning_vfl.schedules.batches import InOrder, Schedule
from lightning_vfl.simulation.data_faults import DataFault, seeds_of
from lightning_vfl.trained.fitted import Fitted, FittedParty, TrainedIds
from lightning_vfl.types import Seat, VerticalBatch

from .loader import ScheduledLoader, training_order
from .partitioners.groups import find_holders, find_label_holders
from .partitioners.informed import fingerprint
from .partitioners.partition import Partitioner, Views
from .records.checks import check_class_names, check_labels, check_split
from .records.faulty import faulty, refuse_unchangeable
from .records.feature_stores import FeatureStore, LoadedFeatures
from .records.layout import Layout, Part
from .records.normalise import Normaliser, Standardise
from .records.records import Records, Split
from .records.records import SplitName as SplitName  # data sets import it from here
from .records.scaling import party_states
from .records.seated_records import SeatedRecords
from .records.seated_store import SeatedStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .records.seated_records import Ids


_NEEDED: dict[str, tuple[SplitName, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}


class VerticalDataModule(FreeHooks, LightningDataModule, ABC):
    """Records whose columns are divided between parties.

    A data set is a subclass that implements ``layout``, ``num_classes``, ``load`` and ``default_partitioner``. The base
    class divides columns, checks values, scales features and makes batches. Data sets with settings of their own take
    the settings below as ``**loader`` and pass them on.

    Args:
        partitioner: who gets which columns; None: the data set's default.
        normaliser: how each party scales its features: fitted on its own training rows, or with numbers given
            beforehand (``Given``); None: the data set's default.
        batch_size: rows of a batch in each process; the joint batch has this times the number of processes.
        seed: names the order of the training records, and the draw of validation and test records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes that load batches; 0 is fastest for data in memory.
        pin_memory: copy batches to pinned memory, from which a GPU loads faster.

    Guarantee: a batch is gathered in one piece. Scaling never sees a validation or test row, or another party's column.
        With several processes the rows of every batch are divided between them, so together they see exactly the joint
        batch. Features that a party does not hold are zero and ``present`` is False; no two parties of a group hold the
        same record.

    With a seat of a federation (``take_seat``) batches have that party's features, its labels if it has them, and NaN
    in place of everything else. Data of one file are loaded whole in every process, and the part of other seats is
    dropped in ``setup``; this serves processes on one machine. Data with ``own_files`` are aligned first, see
    ``lightning_vfl.types.SeatedData``.

    Raises:
        ConfigurationError: in ``setup``, for columns that cannot be divided that way, values that are not finite,
            labels out of range and records that two parties of a group hold; in ``train_dataloader``, for batches
            larger than the data.
    """

    known_bounds: ClassVar[tuple[float, float] | None] = None
    """Two numbers between which every feature lies by its definition, whatever the records are; None: not known.

    For images of bytes they are 0 and 1, because a byte b stands for b / 255."""
    categorical: tuple[str, ...] = ()
    """Columns whose categories are taken from the training records, one column of 0 and 1 for each."""
    public_categories: bool = False
    """Whether these categories are declared public knowledge, so that they are not protected."""
    data_settings: ClassVar[tuple[str, ...]] = ()
    """Names of further attributes that decide about records and columns; a checkpoint keeps their values."""
    ids_are_places: bool = False
    """Whether a record's id is its place in a file, so that records of different files may have the same id."""
    tests_apart: ClassVar[bool] = False
    """Whether test and predict records are from another file than training records."""
    own_files: ClassVar[bool] = False
    """Whether every party has a file of its own, so that the parties may be on different hosts."""
    everybody_holds: bool = True
    """Whether every party holds every record of the common order, for data with ``own_files``."""
    seat: Seat | None = None
    """The seat of this process; None: it has the records of all parties."""
    labels_at: int | None = None
    """The party that has the labels; None: the server has them."""
    copies: bool = False
    """Whether every party has the labels too."""
    _files: SeatedStore | None = None
    fitted: Fitted | None = None
    """What the parties have fitted to the training records, here or in the training of the model that is used."""

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        normaliser: Normaliser | None = None,
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        self._records: dict[SplitName, Records] = {}
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        usual, scaling = self.default_partitioner(), self.default_normaliser()
        refuse_other_kind("partitioner", partitioner or usual, Partitioner, "ContiguousColumns(4)")
        refuse_other_kind("normaliser", normaliser or scaling, Normaliser, "Standardise()")
        self.partitioner = usual if partitioner is None else partitioner.with_default(usual)
        self.normaliser = (normaliser or scaling).within(self.known_bounds, type(self).__name__)
        self._parts: tuple[Part, ...] | None = None
        self._of_model = False  # whether ``fitted`` comes from a trained model
        self.faults: tuple[DataFault, ...] = ()
        self._unused: Records | None = None  # training records that the partitioner leaves out
        self._faulty: dict[SplitName, tuple[Records, Records]] = {}  # the records of a split, without and with faults

    def __str__(self) -> str:
        sizes = ", ".join(f"{len(records):,} {name}" for name, records in self._records.items())
        return f"{type(self).__name__} ({f'{sizes} records' if sizes else 'before setup'})"

    # ---- implemented by data sets

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The form of one record before its columns are divided; may read the files."""

    @property
    @abstractmethod
    def num_classes(self) -> int | None:
        """Number of classes of the labels; None for real values."""

    @abstractmethod
    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        """The records of these splits; a split that the data do not have is left out."""

    @abstractmethod
    def default_partitioner(self) -> Partitioner:
        """The partitioner that is used when none is given."""

    def default_normaliser(self) -> Normaliser:
        """The scaling that is used when none is given; default: every column to mean 0 and deviation 1."""
        return Standardise()

    def own_fitted(self) -> Mapping[str, Any]:
        """What the data set itself takes from the training records, as plain values; default: nothing.

        It is in ``fitted.own`` when new records are loaded: the categories of each column, for example.
        """
        return {}

    def forget(self) -> None:
        """Drop the loaded records and what depends on ``fitted``; a data set with a cache of its own extends this."""
        self._parts = None
        self._unused = None
        self._clear()

    @property
    def class_names(self) -> tuple[int | str, ...]:
        """The classes as the files name them; default: their numbers. Empty for real values."""
        return tuple(range(self.num_classes or 0))

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the labels, (N, targets), if a record has several; default: empty, a record has one label."""
        return ()

    @property
    def left_out(self) -> "Mapping[str, NDArray[np.generic]]":
        """Party -> the ids of its records that are not used, because other parties lack them; default: none."""
        return {}

    # ---- used by protocols and callers

    @property
    def batch_size(self) -> int:
        """Rows of a batch in each process; at most the number of training records if a running trainer sets it.

        ``BatchSizeFinder`` doubles it until the memory is full.
        """
        return self._batch_size

    @batch_size.setter
    def batch_size(self, rows: int) -> None:
        if rows < 1:
            raise ConfigurationError(f"batch_size must be at least 1; got {rows}")
        search = "train" in self._records and self.trainer is not None
        self._batch_size = min(rows, len(self._records["train"]) // self._place()[1]) if search else rows

    @property
    def parts(self) -> tuple[Part, ...]:
        """The columns of each party; loads the training records if the partitioner depends on them."""
        return self._cut()

    @property
    def party_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Per-record shape of each party's features."""
        return tuple(part.shape for part in self.parts)

    @property
    def party_names(self) -> tuple[str, ...]:
        """The names of the parties: those of the data's views, if every view is a party, else their numbers."""
        names, parties = self.layout.view_names, range(len(self.parts))
        return names if isinstance(self.partitioner, Views) and len(names) == len(parties) else tuple(map(str, parties))

    @property
    def party_groups(self) -> tuple[tuple[int, ...], ...]:
        """Party numbers, group by group: the parties of a group hold the same columns for different records."""
        return self.partitioner.groups(len(self.parts))

    def records(self, split: SplitName) -> Records:
        """The records of a split, after ``setup``.

        Raises:
            ConfigurationError: if the stage that was set up has no such split.
        """
        if split not in self._records:
            share = f", and set {split}_share above 0" if getattr(self, f"{split}_share", None) == 0 else ""
            raise ConfigurationError(
                f"{type(self).__name__} has no '{split}' records in this stage; call setup first{share}"
            )
        records = self._records[split]
        if self.ids_are_places:
            apart = self.tests_apart and split in ("test", "predict")
            records.scope = f"{type(self).__name__}{' test' if apart else ''}"
        faults = [(fault, seed) for fault, seed in self._seeded_faults() if split in fault.splits]
        if not faults:
            return records
        kept = self._faulty.get(split)
        if kept is None or kept[0] is not records:
            kept = records, faulty(records, split, faults, self.fitted)
            self._faulty[split] = kept
        return kept[1]

    def extra_of(self, party: int) -> Tensor | None:
        """(n, *S_m) records that this party has beside those of the training, prepared and scaled; None: it has none.

        They are those that the partitioner leaves out, because other parties do not hold them.
        """
        if self._unused is None:
            return None
        present = self._unused.present
        held = torch.arange(len(self._unused)) if present is None else present[:, party].nonzero().flatten()
        return self._unused.features_of(party, held)

    def add_fault(self, fault: DataFault) -> None:
        """Let ``records`` change a party's features by this fault, until it is removed; the seed is that of the data.

        Raises:
            ConfigurationError: for a party that does not exist or whose records the fault cannot change, for records
                that are not in memory, and in a federation.
        """
        refuse_unchangeable(fault, self.seat, self.parts, self.fitted)
        self.faults = (*self.faults, fault)
        self._faulty.clear()

    def remove_fault(self, fault: DataFault) -> None:
        """Remove a fault that was added."""
        self.faults = tuple(other for other in self.faults if other is not fault)
        self._faulty.clear()

    def private_statistics(self) -> tuple[str, ...]:
        """What the preparation of a record takes from OTHER training records and is not declared public.

        Each entry says what it is, and after a semicolon what to change. Training that accounts for the privacy of
        records is refused while there are entries, because the release of one record would depend on other records.
        """
        found = []
        if self.normaliser.fitted and not self.normaliser.public:
            found.append(
                f"{type(self.normaliser).__name__} is fitted to the training records; use normaliser: Given, or "
                "declare its statistics public (public: true)"
            )
        if self._informed and not self.partitioner.public:
            found.append(
                f"{type(self.partitioner).__name__} divides the columns by the training records; use another "
                "partitioner, or declare the parts public (public: true)"
            )
        if self.categorical and not self.public_categories:
            found.append(
                "its one-hot columns are the categories of the training records; declare them public "
                "(public_categories: true), or leave these columns out"
            )
        return tuple(found)

    def label_statistics(self) -> tuple[str, ...]:
        """What the preparation of a record takes from the LABELS of training records; a downlink does not protect it.

        Each entry says what it is, and after a semicolon what to change.
        """
        return ()

    # ---- a seat of a federation

    @property
    def has_labels(self) -> bool:
        """Whether this process has the labels."""
        return self.seat is None or self.copies or self.seat.party == self.labels_at

    def take_seat(
        self,
        seat: Seat,
        party_names: Sequence[str] | None = None,
        labels_at: int | None = None,
        copies: bool = False,
    ) -> None:
        """Say which seat this process has; see ``lightning_vfl.types.SeatedData``.

        Raises:
            ConfigurationError: after ``setup``, and for parties that are not those of the data.
        """
        if self._records:
            raise ConfigurationError("the records are set up already; call take_seat before setup")
        self.seat = seat
        self.labels_at = labels_at
        self.copies = copies
        self._files = self._files_of(party_names)

    def own_ids(self) -> "NDArray[np.generic]":
        """(n,) sorted ids of the seat's own table, int64 or text; the file is read at this moment."""
        return self._own_files().own_ids()

    def split_records(self, ids_by_party: "Mapping[int, Ids]") -> "dict[str, NDArray[np.generic]]":
        """The common ids of each split, in order; called in the process that has the labels.

        Args:
            ids_by_party: ``own_ids`` of the other processes; empty: all have the ids of this process.

        Raises:
            ConfigurationError: in a process without the labels, for ids of different kinds and repeated ids, and
                without an id in common.
        """
        return self._own_files().split_records(ids_by_party)

    def align(self, order: "Mapping[str, Ids]", ids_by_party: "Mapping[int, Ids] | None" = None) -> None:
        """Take the ids of each split, in the common order.

        Args:
            order: the ids of each split; see ``lightning_vfl.types.SeatedData``.
            ids_by_party: at the server, the ids of the parties, where they need not hold every record.

        Raises:
            ConfigurationError: for repeated ids, and for ids that this process's table does not have, where every party
                holds every record.
        """
        self._own_files().align(order, ids_by_party or {})

    def own_shape(self) -> tuple[int, ...]:
        """The per-record shape of this party's features, after ``align``.

        Raises:
            ConfigurationError: for the server, before ``align``, and for a table without features.
        """
        return self._own_files().own_shape()

    def told_shapes(
        self,
        shapes: Sequence[Sequence[int]],
        num_classes: int | None = None,
        class_names: Sequence[int | str] | None = None,
    ) -> None:
        """Take the shapes of all parties and, where the labels are in another process, the classes.

        Args:
            shapes: per-record shape of each party.
            num_classes: classes of the labels; None for real values.
            class_names: the classes as the labels' file names them; None: their numbers.

        Raises:
            ConfigurationError: for another number of shapes than parties, and another shape than this party's own.
        """
        self._own_files().told_shapes(shapes, num_classes, class_names)

    def labels_digest(self) -> str:
        """What the labels of all divided records are compared by, if every party has them; after ``align``."""
        return self._own_files().labels_digest

    # ---- Lightning

    @_restricted_classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        weights_only: bool | None = None,
        trusted: Sequence[str] = (),
        **kwargs: Any,
    ) -> Self:
        """As ``VFLModule.load_from_checkpoint``: only classes that are trusted are built."""
        safe = {} if weights_only is None else {"weights_only": weights_only}
        with checked(checkpoint_path, cls, tuple(kwargs), trusted, hparams_file, weights_only) as (file, _):
            return super().load_from_checkpoint(file, map_location, hparams_file, **safe, **kwargs)

    def train_dataloader(self) -> ScheduledLoader:
        """Batches in the order of the protocol's schedule; without a protocol, shuffled."""
        records = self.records("train")
        rank, world = self._place()
        schedule = training_order(self.trainer, records, self.batch_size * world, self.seed, self.drop_last)
        return self._loader(records, schedule, rank, world)

    def val_dataloader(self) -> ScheduledLoader | list[ScheduledLoader]:
        """Validation records in order; an empty list if there are none."""
        return self._in_order("val") if "val" in self._records else []

    def test_dataloader(self) -> ScheduledLoader:
        """Test records in order."""
        return self._in_order("test")

    def predict_dataloader(self) -> ScheduledLoader:
        """Records to predict, in order: the test records, unless the data set has others."""
        return self._in_order("predict")

    def transfer_batch_to_device(
        self, batch: VerticalBatch, device: torch.device, dataloader_idx: int
    ) -> VerticalBatch:
        """Move the batch only if it is on another device: visiting the tensors of 28 parties costs 0.2 ms a step."""
        if isinstance(batch, VerticalBatch) and batch.record_ids.device == device:
            return batch
        moved: VerticalBatch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return moved

    @toolkit_hook
    def setup(self, stage: str) -> None:
        """Load, divide, check and scale the splits of the stage.

        A model that was trained with other records brings what its parties have fitted, and nothing is fitted here.
        Otherwise the training records are read too, and scaling and columns are fitted to them.

        Raises:
            ConfigurationError: for records that are not of the form that the model was trained on, and for a checkpoint
                that does not keep what its parties have fitted.
        """
        refuse_unmade(self)
        module = self._module
        if module is not None and (module.fitted is not None or stage == "fit"):
            self.use(module.fitted)
        if missing := self._missing(stage):
            self._prepare(missing)
            self._forget_others()
        if stage == "fit":
            self._note_training()

    def use(self, fitted: Fitted | None) -> None:
        """Prepare records with what the parties of a trained model have fitted; None: fit it to the training records.

        ``setup`` calls it with what the trainer's model has. Without a trainer: ``data.use(module.fitted)``.

        Raises:
            ConfigurationError: if it comes from other data, or was fitted with another partitioner or normaliser.
        """
        own = self.fitted
        if fitted is None:
            if self._of_model:
                self.forget()
                self.fitted, self._of_model = None, False
            return
        if fitted.normaliser != (here := repr(self.normaliser)):
            raise ConfigurationError(
                f"the model was trained with normaliser = {fitted.normaliser} on {fitted.data}, these data are "
                f"{type(self).__name__} with {here}; use the normaliser that it was trained with, and the same data set"
            )
        if fitted.own and fitted.data != type(self).__name__:
            raise ConfigurationError(
                f"the model was trained on {fitted.data}, these data are {type(self).__name__}; use the data set that "
                "it was trained on"
            )
        if own is None or not own.prepares_as(fitted):
            self.forget()
        self.fitted, self._of_model = fitted, True

    def _prepare(self, missing: Sequence[SplitName]) -> None:
        """Load these splits, and the training records if something is to be fitted; divide, check and scale."""
        self._check_size()
        splits, store = self._open(tuple(dict.fromkeys(missing if self.fitted else ("train", *missing))), missing)
        parts = self._cut(lambda: splits["train"].in_floats())
        present = {name: find_holders(name, own, self.partitioner, self.party_groups) for name, own in splits.items()}
        for name, split in splits.items():
            check_labels(name, len(split.ids), split, self.num_classes, len(self.targets))
        store.divide(parts, present)
        if self.fitted is None:
            scaling = store.fit(self.normaliser, parts, present.get("train"))
            self.fitted = self._note_fitted(parts, *scaling, store.trained_ids(splits))
        for name in missing:
            if name in splits:
                split = splits[name]
                holders = find_label_holders(split, self.partitioner, len(parts)) if name == "train" else None
                about = (split.labels, split.ids, present[name], holders, split.weights)
                self._keep(name, store.records(name, self.fitted, *about))

    def _open(
        self, names: tuple[SplitName, ...], missing: Sequence[SplitName]
    ) -> tuple[Mapping[SplitName, Split], FeatureStore]:
        """These splits, and their features: those of the missing splits become records.

        Data sets whose features are not loaded whole replace this; their splits have features (N, 0).
        """
        splits = loaded(self.load, names, type(self).__name__)
        for name, split in splits.items():
            check_split(name, split, self.layout, self.num_classes)
        return splits, LoadedFeatures(splits, self.layout)

    def _check_size(self) -> None:
        """Refuse records of another size than those that the model was trained on."""
        if self.fitted is None:
            return
        if self.layout.size != self.fitted.size:
            raise ConfigurationError(
                f"the model was trained on records of {self.fitted.size} numbers, these have {self.layout.size}; give "
                "records of the same form"
            )
        for number, party in enumerate(self.fitted.parties):
            if party.dtype and not self.layout.dtype_of(party.positions.numpy()):
                raise ConfigurationError(
                    f"the model was trained on {party.dtype} of party {number}, and these are real numbers; give "
                    "whole numbers or truths"
                )

    def _note_training(self) -> None:
        """Give the model what it is trained with; a trained model has the ids of all its trainings."""
        train = self._records.get("train")
        if self._of_model and self.fitted is not None and train is not None and train.blocks is None:
            ids = self.fitted.trained.including(train.known)
            self.fitted = replace(self.fitted, trained=ids)
        if self._module is not None:
            self._module.fitted = self.fitted

    def _note_fitted(self, parts: Sequence[Part], shift: Tensor, scale: Tensor, ids: "NDArray[np.generic]") -> Fitted:
        """What was fitted: shift and scale, each (ΣF,), the parts, and the ids of the training records."""
        check_class_names(self.class_names, self.num_classes)
        about = (self.num_classes, self.class_names, TrainedIds.of(ids), self.own_fitted(), repr(self.normaliser))
        return Fitted(type(self).__name__, self.layout.size, party_states(parts, shift, scale, self.layout), *about)

    # ---- checkpoints

    @toolkit_hook
    def state_dict(self) -> dict[str, Any]:
        """The settings that decide about records and columns; a model is resumed and tested with the same settings."""
        usual = {"partitioner": repr(self.partitioner), "normaliser": repr(self.normaliser), "seed": self.seed}
        settings = usual | {name: getattr(self, name) for name in self.data_settings}
        return settings | ({"columns": fingerprint(self.parts)} if self._informed else {})

    @toolkit_hook
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse other settings: with another seed or share, test records may have been training records.

        Raises:
            ConfigurationError: for the first setting that differs.
        """
        for name, own in toolkit_part(type(self), "state_dict")(self).items():  # an author's entries may differ
            if name in state_dict and state_dict[name] != own:  # earlier checkpoints keep fewer settings
                # other columns with the same settings come from other records
                remedy = "training records" if name == "columns" else name
                raise ConfigurationError(
                    f"the checkpoint was trained on {type(self).__name__} with {name} = {state_dict[name]}, these data "
                    f"have {own}; give the same {remedy}"
                )
        module = self._module
        if module is not None and module.fitted is not None and self.fitted is not module.fitted:
            names = tuple(self._records)  # set up before the checkpoint was read
            self.use(module.fitted)
            self._prepare([name for name in names if name not in self._records])
            if "train" in names:
                self._note_training()

    # ---- inside

    def _files_of(self, party_names: Sequence[str] | None) -> SeatedStore | None:
        """The files of a seat; None, the default: the data are one file. Data with ``own_files`` replace this."""
        return None

    def _own_files(self) -> SeatedStore:
        if self.seat is None:
            raise ConfigurationError(f"{type(self).__name__} has no seat yet; call take_seat first")
        if self._files is None:
            raise ConfigurationError(
                f"{type(self).__name__} is one file that a simulation cuts; run lightning-vfl cut, or federate --local"
            )
        return self._files

    def _clear(self) -> None:
        """Drop the loaded records, and what the seat's files have been made into; the common order stays."""
        self._records.clear()
        if self._files is not None:
            self._files.forget()

    def _of_seat(self, records: Records) -> Records:
        """The part of the records that the seat has."""
        if self.seat is None or isinstance(records, SeatedRecords):
            return records
        return SeatedRecords.of(records, self.seat, self.has_labels)

    def _forget_others(self) -> None:
        """Drop the scaling of other parties."""
        if self.seat is not None and self.fitted is not None:
            self.fitted = replace(
                self.fitted,
                parties=tuple(
                    party if m == self.seat.party else unknown_scaling(party)
                    for m, party in enumerate(self.fitted.parties)
                ),
            )

    @property
    def _module(self) -> VFLModule | None:
        module = None if self.trainer is None else self.trainer.lightning_module
        return module if isinstance(module, VFLModule) else None

    def _missing(self, stage: str) -> list[SplitName]:
        """The splits that the stage needs and that are not set up yet."""
        return [name for name in _NEEDED.get(stage, ("train", "val", "test")) if name not in self._records]

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def _in_order(self, name: SplitName) -> ScheduledLoader:
        records = self.records(name)
        rank, world = self._place()
        if not len(records):
            raise ConfigurationError(f"there are no {name} records; correct load, or leave out this stage")
        # a process without records cannot take part in reducing metrics, of which a prediction has none
        if len(records) < world and name != "predict":
            raise ConfigurationError(
                f"the {len(records)} {name} records cannot be shared by {world} processes; use at most {len(records)}"
            )
        return self._loader(records, InOrder(len(records), self.batch_size * world), rank, world)

    def _loader(self, records: Records, schedule: Schedule, rank: int, world: int) -> ScheduledLoader:
        return ScheduledLoader(records, schedule, rank, world, self.num_workers, self.pin_memory)

    def _seeded_faults(self) -> list[tuple[DataFault, int]]:
        return list(zip(self.faults, seeds_of(self.faults, self.seed), strict=True))

    def _cut(self, training: Callable[[], Split] | None = None) -> tuple[Part, ...]:
        """The parts of the parties; ``training`` returns the training records if they are loaded already."""
        refuse_unmade(self)
        if self._parts is None and self.fitted is not None:
            self._parts = tuple(Part(party.positions.numpy(), party.shape) for party in self.fitted.parties)
            self._check_parts(self._parts)
        if self._parts is None:
            self._parts = self.partitioner.informed_by(training or self._load_training).split(self.layout)
        return self._parts

    def _check_parts(self, trained: tuple[Part, ...]) -> None:
        """Refuse a partitioner that divides the columns otherwise; parts that depend on records cannot be compared."""
        if self._informed:
            return
        there, here = fingerprint(trained), fingerprint(self.partitioner.split(self.layout))
        if there != here:
            raise ConfigurationError(
                f"the model was trained with columns {there} of the parties, {self.partitioner!r} gives {here}; use "
                "the partitioner that it was trained with"
            )

    def _load_training(self) -> Split:
        return loaded(self.load, ("train",), type(self).__name__)["train"].in_floats()

    @property
    def _informed(self) -> bool:
        """Whether the parts depend on the training records."""
        return self.partitioner.informed_by(self._load_training) is not self.partitioner

    def _keep(self, name: SplitName, records: Records) -> None:
        """Store the records of the split, without those that the partitioner leaves out."""
        kept = self.partitioner.kept(name, len(records))
        some = records if kept is None else records.only(kept)
        used = None if some.present is None else self.partitioner.only_held(name, some.present.numpy())
        self._records[name] = self._of_seat(some if used is None else some.only(used))
        if name == "train" and len(self._records[name]) < len(records):
            places = np.arange(len(records)) if kept is None else kept
            others = np.setdiff1d(np.arange(len(records)), places if used is None else places[used])
            self._unused = self._of_seat(records.only(others))
        if name == "test" and not self.ids_are_places and self._of_model:
            self._warn_of_trained(self._records[name].known)

    def _warn_of_trained(self, ids: "NDArray[np.generic]") -> None:
        """Warn if records to be tested are among those that the model was trained on."""
        known = int(self.fitted.trained.among(ids).sum()) if self.fitted is not None else 0
        if known:
            rank_zero_warn(
                f"the model was trained on {known:,} of the {len(ids):,} test records, so its test scores are too "
                "good; leave them out, or give the training data and settings unchanged"
            )


def unknown_scaling(party: FittedParty) -> FittedParty:
    """The party with NaN in place of its scaling."""
    nan = torch.full_like(party.shift, torch.nan)
    return replace(party, shift=nan, scale=nan)


def loaded(
    load: Callable[[tuple[SplitName, ...]], Mapping[SplitName, Split]], names: tuple[SplitName, ...], who: str
) -> Mapping[SplitName, Split]:
    """The records of these splits, which may lack some of them, but not ``train``.

    Args:
        load: of the data set.
        names: of the splits.
        who: the name of the data set, for errors.

    Raises:
        ConfigurationError: for anything but a mapping of names to ``Split``.
    """
    try:
        splits = load(names)
    except KeyError as error:
        if error.args and error.args[0] in names:
            raise ConfigurationError(
                f"load of {who} has nothing for the split {error}, which it is asked for; leave a split that the data "
                "do not have out of what it returns"
            ) from error
        raise
    given = list(splits.values()) if isinstance(splits, Mapping) else [splits]
    if wrong := [value for value in given if not isinstance(value, Split)]:
        raise ConfigurationError(
            f"load of {who} must return a Split by the name of each split, such as {{'train': Split(features, labels, "
            f"ids)}}; got {type(wrong[0]).__name__}"
        )
    if "train" in names and "train" not in splits:
        raise ConfigurationError(
            f"load of {who} returns no split 'train', to which columns and scaling are fitted; return it when it is "
            "asked for"
        )
    return splits


def refuse_unmade(data: Any) -> None:
    """Accept a data set whose constructor has called that of ``VerticalDataModule``.

    Raises:
        ConfigurationError: naming the class.
    """
    if "_parts" not in vars(data):
        raise ConfigurationError(
            f"{type(data).__name__} has no partitioner and no batch size; call super().__init__(partitioner, **loader) "
            "in its __init__"
        )
