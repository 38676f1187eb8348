"""The base class of all data sets: load records, divide their columns between parties, check, scale, batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Self

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.trusted_classes import checked
from lightning_vfl.schedules.batches import InOrder, Schedule
from lightning_vfl.types import VerticalBatch

from .loader import ScheduledLoader
from .order import training_order
from .partitioners.groups import find_holders
from .partitioners.informed import fingerprint
from .partitioners.partition import Partitioner
from .records.layout import Layout, Part
from .records.normalise import Normaliser, Standardise
from .records.records import Records, Split, VerticalRecords, scale_columns, take_columns
from .records.records import SplitName as SplitName  # data sets import it from here

_NEEDED: dict[str, tuple[SplitName, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}


class VerticalDataModule(LightningDataModule, ABC):
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
        usual = self.default_partitioner()
        self.partitioner = usual if partitioner is None else partitioner.with_default(usual)
        self.normaliser = (normaliser or self.default_normaliser()).within(self.known_bounds, type(self).__name__)
        self._records: dict[SplitName, Records] = {}
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self._parts: tuple[Part, ...] | None = None

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

    # ---- used by protocols and callers

    @property
    def parts(self) -> tuple[Part, ...]:
        """The columns of each party; loads the training records if the partitioner depends on them."""
        return self._cut()

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
    def party_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Per-record shape of each party's features."""
        return tuple(part.shape for part in self.parts)

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
            raise ConfigurationError(f"{type(self).__name__} has no '{split}' records in this stage; call setup first")
        return self._records[split]

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
        with checked(checkpoint_path, cls, tuple(kwargs), trusted, hparams_file, weights_only) as file:
            return super().load_from_checkpoint(file, map_location, hparams_file, **safe, **kwargs)

    def setup(self, stage: str) -> None:
        """Load, divide, check and scale the splits of the stage. Training rows are always read, to fit the scaling."""
        missing = self._missing(stage)
        if not missing:
            return
        splits = self.load(tuple(dict.fromkeys(("train", *missing))))
        parts = self._cut(lambda: splits["train"].in_floats())
        positions = torch.cat([torch.from_numpy(part.positions) for part in parts])
        widths = [len(part.positions) for part in parts]
        cut = {name: take_columns(split.features.flatten(1), positions) for name, split in splits.items()}
        present, lacking = {}, {}
        for name, features in cut.items():
            present[name] = held = find_holders(name, splits[name], self.partitioner, self.party_groups)
            if held is not None:  # features that a party does not hold are zero before and after scaling
                lacking[name] = ~held.repeat_interleave(torch.tensor(widths), dim=1)
                if features.is_floating_point():  # bytes may be the data set's own memory, and are always finite
                    features.masked_fill_(lacking[name], 0.0)
            self._check(name, features, splits[name], parts)
        columns = self.layout.columns
        names = [columns[i] for i in positions.tolist()] if columns else []
        shift, scale = self._fit_scaling(cut["train"], present["train"], widths, names)
        for name in missing:
            if name in splits:
                split = splits[name]
                features = scale_columns(cut[name], shift, scale)
                if name in lacking:
                    features.masked_fill_(lacking[name], 0.0)
                holders = self._label_holders(split) if name == "train" else None
                records = VerticalRecords(
                    features.float(), self.party_shapes, split.labels, split.ids, present[name], holders
                )
                self._keep(name, records)

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
        if batch.record_ids.device == device:
            return batch
        moved: VerticalBatch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return moved

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The settings that decide about records and columns; a model is resumed and tested with the same settings."""
        usual = {"partitioner": repr(self.partitioner), "normaliser": repr(self.normaliser), "seed": self.seed}
        settings = usual | {name: getattr(self, name) for name in self.data_settings}
        return settings | ({"columns": fingerprint(self.parts)} if self._informed else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse other settings: with another seed or share, test records may have been training records.

        Raises:
            ConfigurationError: for the first setting that differs.
        """
        for name, own in self.state_dict().items():
            if name in state_dict and state_dict[name] != own:  # earlier checkpoints keep fewer settings
                # other columns with the same settings come from other records
                remedy = "training records" if name == "columns" else name
                raise ConfigurationError(
                    f"the checkpoint was trained on {type(self).__name__} with {name} = {state_dict[name]}, these data "
                    f"have {own}; give the same {remedy}"
                )

    # ---- inside

    def _cut(self, training: Callable[[], Split] | None = None) -> tuple[Part, ...]:
        """The parts of the parties; ``training`` returns the training records if they are loaded already."""
        if self._parts is None:
            self._parts = self.partitioner.informed_by(training or self._load_training).split(self.layout)
        return self._parts

    def _load_training(self) -> Split:
        return self.load(("train",))["train"].in_floats()

    @property
    def _informed(self) -> bool:
        """Whether the parts depend on the training records."""
        return self.partitioner.informed_by(self._load_training) is not self.partitioner

    def _missing(self, stage: str) -> list[SplitName]:
        """The splits that the stage needs and that are not set up yet."""
        return [name for name in _NEEDED.get(stage, ("train", "val", "test")) if name not in self._records]

    def _keep(self, name: SplitName, records: Records) -> None:
        """Store the records of the split, without those that the partitioner leaves out."""
        kept = self.partitioner.kept(name, len(records))
        self._records[name] = records if kept is None else records.only(kept)

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def _in_order(self, name: SplitName) -> ScheduledLoader:
        records = self.records(name)
        rank, world = self._place()
        if len(records) < world:  # a process without records cannot take part in reducing the metrics
            raise ConfigurationError(
                f"the {len(records)} {name} records cannot be shared by {world} processes; use at most {len(records)}"
            )
        return self._loader(records, InOrder(len(records), self.batch_size * world), rank, world)

    def _loader(self, records: Records, schedule: Schedule, rank: int, world: int) -> ScheduledLoader:
        return ScheduledLoader(records, schedule, rank, world, self.num_workers, self.pin_memory)

    def _label_holders(self, train: Split) -> Tensor | None:
        """(N,) int64, the party that holds the label of each training record; None: not specified."""
        if train.labels is None:
            return None
        records, parties = len(train.ids), len(self.parts)
        holders = self.partitioner.label_holders(train.labels.numpy(), train.ids, parties)
        if holders is None:
            return None
        if holders.shape != (records,) or holders.min() < -1 or holders.max() >= parties:
            raise ConfigurationError(
                f"{type(self.partitioner).__name__}.label_holders has shape {holders.shape} and values from "
                f"{holders.min()} to {holders.max()}; return one number from -1 (no party) to {parties - 1} for "
                f"each of the {records} records"
            )
        return torch.from_numpy(holders)

    def _fit_scaling(
        self, train: Tensor, present: Tensor | None, widths: list[int], names: Sequence[str] = ()
    ) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (ΣF,), of the columns (N, ΣF); ``widths[m]`` of them belong to party m."""
        fitted, begin = [], 0
        for party, own in enumerate(torch.split(train, widths, dim=1)):
            rows = own if present is None else own[present[:, party]]
            if not len(rows):
                raise without_records(party, len(own))
            normaliser = self.normaliser.of_columns(names[begin : begin + widths[party]], names)
            begin += widths[party]
            fitted.append(normaliser.fit_bytes(rows) if rows.dtype == torch.uint8 else normaliser.fit(rows))
        return torch.cat([shift for shift, _ in fitted]), torch.cat([scale for _, scale in fitted])

    def _check(self, name: str, features: Tensor, split: Split, parts: tuple[Part, ...]) -> None:
        if features.is_floating_point():  # bytes are always finite
            self._check_finite(name, features.float(), split, parts)
        self._check_labels(name, len(features), split)

    def _check_finite(self, name: str, features: Tensor, split: Split, parts: tuple[Part, ...]) -> None:
        """Check features in float32, as training uses them: a larger value is infinite in float32."""
        # a sum is finite only if all its terms are; for images this takes a tenth of the time
        if not torch.isfinite(features.sum()) and (bad := ~torch.isfinite(features)).any():
            row, column = (int(i) for i in bad.nonzero()[0])
            ends = torch.tensor([len(part.positions) for part in parts]).cumsum(0)
            party = int((ends <= column).sum())
            position = int(torch.cat([torch.from_numpy(part.positions) for part in parts])[column])
            raise ConfigurationError(
                f"{int(bad.sum())} feature values of the {name} records are NaN or infinite, first of party {party}, "
                f"{self.layout.name_of(position)}, record {split.ids[row]}; impute or remove them before training"
            )

    def _check_labels(self, name: str, records: int, split: Split) -> None:
        if split.labels is None:
            return
        if len(split.labels) != records:
            raise ConfigurationError(
                f"{records} {name} records have {len(split.labels)} labels; give one label for each record"
            )
        wrong = ~torch.isfinite(split.labels)
        if wrong.any():
            raise ConfigurationError(
                f"{int(wrong.sum())} labels of the {name} records are NaN or infinite, first of record "
                f"{split.ids[int(wrong.nonzero()[0])]}; correct them or remove the records"
            )
        if split.labels.ndim != 1:
            raise ConfigurationError(
                f"labels of the {name} records have shape {tuple(split.labels.shape)}; give one number for each record"
            )
        classes = self.num_classes
        if classes is not None and len(split.labels):
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= classes:
                raise ConfigurationError(
                    f"labels of the {name} records run from {low} to {high}, outside 0..{classes - 1}; "
                    "correct num_classes or the labels"
                )


def without_records(party: int, records: int) -> ConfigurationError:
    """The error for a party that holds none of so many training records."""
    return ConfigurationError(
        f"party {party} holds none of the {records} training records, so its scaling cannot be fitted; give it "
        "records or leave the party out"
    )
