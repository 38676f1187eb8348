"""The datamodule that all data sets share: load, cut, check, scale, and hand out batches."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, Self

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.base import VFLModule
from lightning_vfl.schedules import InOrder, Schedule, Shuffled
from lightning_vfl.trusted_classes import checked
from lightning_vfl.types import VerticalBatch

from .groups import who_holds
from .informed import fingerprint
from .loader import ScheduledLoader
from .normalise import Normaliser, Standardise
from .partition import Layout, Part, Partitioner
from .records import Records, Split, VerticalRecords, columns_of, scaled

SplitName = Literal["train", "val", "test", "predict"]
_NEEDED: dict[str, tuple[SplitName, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}


class VerticalDataModule(LightningDataModule, ABC):
    """Records cut by columns between parties.

    A data set is a subclass that says ``layout`` and ``load``; cutting, checking, scaling and batching are here.

    Args:
        partitioner: who gets which columns; None: the data set's usual cut.
        normaliser: how each party scales its features: fitted on its own training rows, or with numbers given
            beforehand (``Given``); None: the data set's usual way.
        batch_size: rows of a batch in each process; the joint batch has this times the number of processes.
        seed: names the order of the training records (and what else the data set draws).
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.

    Guarantee: a batch is gathered whole. Scaling never sees a validation or test row, nor another party's column. With
        several processes every batch is shared out row by row, so together they see exactly the joint batch. Features
        that a party does not hold are zero and ``present`` says so; no two parties of a group hold the same record.

    Raises:
        ConfigurationError: in ``setup``, for columns that cannot be cut that way, values that are not finite, labels
            out of range and records that two parties of a group hold; in ``train_dataloader``, for batches larger than
            the data.
    """

    known_bounds: ClassVar[tuple[float, float] | None] = None
    """Two numbers between which every feature lies by its definition, whatever the records are; None: nobody has said.

    Of images of bytes they are 0 and 1, the numbers that the bytes stand for."""
    categorical: tuple[str, ...] = ()
    """Columns whose categories are taken from the training records, one column of 0 and 1 for each."""
    public_categories: bool = False
    """Whether these categories are declared to be known to everybody already, so that they are not protected."""
    data_settings: ClassVar[tuple[str, ...]] = ()
    """What else than cut, scaling and seed decides about records and columns: attributes that a checkpoint keeps."""

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
        if batch_size < 1:
            raise ConfigurationError(f"batch_size {batch_size} is not a number of records; use 1 or more")
        usual = self.default_partitioner()
        self.partitioner = usual if partitioner is None else partitioner.with_default(usual)
        self.normaliser = (normaliser or self.default_normaliser()).within(self.known_bounds, type(self).__name__)
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self._parts: tuple[Part, ...] | None = None
        self._records: dict[SplitName, Records] = {}

    # ---- what a data set says about itself

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """What one record looks like before it is cut; may read the files."""

    @property
    @abstractmethod
    def num_classes(self) -> int | None:
        """Number of classes of the labels; None for real values."""

    @abstractmethod
    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        """These splits of the data; a split that the data do not have is left out."""

    @abstractmethod
    def default_partitioner(self) -> Partitioner:
        """The cut that is used when none is chosen."""

    def default_normaliser(self) -> Normaliser:
        """The scaling that is used when none is chosen; default: every column to mean 0 and deviation 1."""
        return Standardise()

    # ---- what everybody else asks

    @property
    def parts(self) -> tuple[Part, ...]:
        """Which columns each party holds; may load the training records, where the partitioner goes by them."""
        return self._cut()

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
            ConfigurationError: if this stage has none.
        """
        if split not in self._records:
            raise ConfigurationError(f"{type(self).__name__} has no '{split}' records in this stage; call setup first")
        return self._records[split]

    def private_statistics(self) -> tuple[str, ...]:
        """What the preparation of a record takes from OTHER training records and is not declared public.

        Each entry says in words what it is, and after a semicolon what to change. Under an aggregator that accounts for
        the privacy of records, all of it is refused: the release of one record would depend on others.
        """
        found = []
        if self.normaliser.fitted and not self.normaliser.public:
            found.append(
                f"{type(self.normaliser).__name__} is fitted to the training records; use normaliser: Given, or "
                "declare its statistics public (public: true)"
            )
        if self._informed and not self.partitioner.public:
            found.append(
                f"{type(self.partitioner).__name__} cuts the columns by the training records; use another partitioner, "
                "or declare the cut public (public: true)"
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
        """Load, cut, check and scale what the stage needs; the training rows are always read, to fit the scaling."""
        missing = self._missing(stage)
        if not missing:
            return
        splits = self.load(tuple(dict.fromkeys(("train", *missing))))
        parts = self._cut(lambda: splits["train"].in_floats())
        positions = torch.cat([torch.from_numpy(part.positions) for part in parts])
        widths = [len(part.positions) for part in parts]
        cut = {name: columns_of(split.features.flatten(1), positions) for name, split in splits.items()}
        present, lacking = {}, {}
        for name, features in cut.items():
            present[name] = held = who_holds(name, splits[name], self.partitioner, self.party_groups)
            if held is not None:  # what a party does not hold is zero, whatever the data and the scaling
                lacking[name] = ~held.repeat_interleave(torch.tensor(widths), dim=1)
                if features.is_floating_point():  # bytes may be the data's own, and are always finite
                    features.masked_fill_(lacking[name], 0.0)
            self._check(name, features, splits[name], parts)
        columns = self.layout.columns
        names = [columns[i] for i in positions.tolist()] if columns else []
        shift, scale = self._fit_scaling(cut["train"], present["train"], widths, names)
        for name in missing:
            if name in splits:
                split = splits[name]
                features = scaled(cut[name], shift, scale)
                if name in lacking:
                    features.masked_fill_(lacking[name], 0.0)
                holders = self._label_holders(split) if name == "train" else None
                records = VerticalRecords(
                    features.float(), self.party_shapes, split.labels, split.ids, present[name], holders
                )
                self._keep(name, records)

    def train_dataloader(self) -> ScheduledLoader:
        """Batches in the order that the protocol's schedule gives; without a protocol, shuffled."""
        records = self.records("train")
        rank, world = self._place()
        joint = self.batch_size * world
        module = self.trainer.lightning_module if self.trainer is not None else None
        if isinstance(module, VFLModule):
            schedule = module.schedule(records, joint, self.seed, self.drop_last)
        else:
            schedule = Shuffled(len(records), joint, self.seed, self.drop_last)
        return self._loader(records, schedule, rank, world)

    def val_dataloader(self) -> ScheduledLoader | list[ScheduledLoader]:
        """Validation records in order; nothing if the data set keeps none."""
        return self._in_order("val") if "val" in self._records else []

    def test_dataloader(self) -> ScheduledLoader:
        """Test records in order."""
        return self._in_order("test")

    def predict_dataloader(self) -> ScheduledLoader:
        """Records to predict, in order; the test records, unless the data set has others."""
        return self._in_order("predict")

    def transfer_batch_to_device(
        self, batch: VerticalBatch, device: torch.device, dataloader_idx: int
    ) -> VerticalBatch:
        """Only when there is somewhere to go: walking through the tensors of 28 parties costs 0.2 ms a step."""
        if batch.record_ids.device == device:
            return batch
        moved: VerticalBatch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return moved

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """How the records were cut and split: a model is resumed and tested on these data and no others."""
        usual = {"partitioner": repr(self.partitioner), "normaliser": repr(self.normaliser), "seed": self.seed}
        settings = usual | {name: getattr(self, name) for name in self.data_settings}
        return settings | ({"columns": fingerprint(self.parts)} if self._informed else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuse data that were cut otherwise; another seed or share may have put test records into training."""
        for name, own in self.state_dict().items():
            if name in state_dict and state_dict[name] != own:  # earlier checkpoints keep fewer of them
                remedy = "training records" if name == "columns" else name  # the settings are the same
                raise ConfigurationError(
                    f"the checkpoint was trained on {type(self).__name__} with {name} = {state_dict[name]}, these data "
                    f"have {own}; give the same {remedy}"
                )

    # ---- inside

    def _cut(self, training: Callable[[], Split] | None = None) -> tuple[Part, ...]:
        """The parts; ``training``: the training records, where they are loaded already."""
        if self._parts is None:
            self._parts = self.partitioner.informed_by(training or self._load_training).split(self.layout)
        return self._parts

    def _load_training(self) -> Split:
        return self.load(("train",))["train"].in_floats()

    @property
    def _informed(self) -> bool:
        """Whether the training records decide about the cut."""
        return self.partitioner.informed_by(self._load_training) is not self.partitioner

    def _missing(self, stage: str) -> list[SplitName]:
        """The splits that the stage needs and that are not there yet."""
        return [name for name in _NEEDED.get(stage, ("train", "val", "test")) if name not in self._records]

    def _keep(self, name: SplitName, records: Records) -> None:
        """Have these as the records of the split, less those that the partitioner leaves out."""
        kept = self.partitioner.kept(name, len(records))
        self._records[name] = records if kept is None else records.only(kept)

    def _place(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def _in_order(self, name: SplitName) -> ScheduledLoader:
        records = self.records(name)
        rank, world = self._place()
        if len(records) < world:  # a process that never sees a record cannot join in reducing the metrics
            raise ConfigurationError(
                f"the {len(records)} {name} records cannot be shared by {world} processes; use at most {len(records)}"
            )
        return self._loader(records, InOrder(len(records), self.batch_size * world), rank, world)

    def _loader(self, records: Records, schedule: Schedule, rank: int, world: int) -> ScheduledLoader:
        return ScheduledLoader(records, schedule, rank, world, self.num_workers, self.pin_memory)

    def _label_holders(self, train: Split) -> Tensor | None:
        """(N,) int64, which party holds the label of each training record; None: nobody has said."""
        if train.labels is None:
            return None
        records, parties = len(train.ids), len(self.parts)
        holders = self.partitioner.label_holders(train.labels.numpy(), train.ids, parties)
        if holders is None:
            return None
        if holders.shape != (records,) or holders.min() < -1 or holders.max() >= parties:
            raise ConfigurationError(
                f"{type(self.partitioner).__name__} says who holds the labels in shape {holders.shape}, with numbers "
                f"from {holders.min()} to {holders.max()}, but there are {records} records and {parties} parties; give "
                f"each record one of -1 (nobody) to {parties - 1}"
            )
        return torch.from_numpy(holders)

    def _fit_scaling(
        self, train: Tensor, present: Tensor | None, widths: list[int], names: Sequence[str] = ()
    ) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (ΣF,), of the columns (N, ΣF), of which so many belong to each party."""
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
        """``features`` as training will see them: a value beyond float32 is infinite there."""
        # a sum is finite only if all its terms are: a tenth of the time for images
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
            raise ConfigurationError(f"{records} {name} records have {len(split.labels)} labels; give one for each")
        wrong = ~torch.isfinite(split.labels)
        if wrong.any():
            raise ConfigurationError(
                f"{int(wrong.sum())} labels of the {name} records are NaN or infinite, first of record "
                f"{split.ids[int(wrong.nonzero()[0])]}; correct them or remove the records"
            )
        if split.labels.ndim != 1:
            raise ConfigurationError(
                f"labels of the {name} records have shape {tuple(split.labels.shape)}; give one number a record"
            )
        classes = self.num_classes
        if classes is not None and len(split.labels):
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= classes:
                raise ConfigurationError(
                    f"labels of the {name} records run from {low} to {high}, outside 0..{classes - 1}; "
                    "correct num_classes or the labels"
                )


def data_folder(data_dir: str | Path | None, name: str) -> Path:
    """The folder of file-based data: ``data_dir`` itself, else ``$LIGHTNING_VFL_DATA/name``, else ``data/name``."""
    if data_dir is not None:
        return Path(data_dir)
    return Path(os.environ.get("LIGHTNING_VFL_DATA", "data")) / name


def without_records(party: int, records: int) -> ConfigurationError:
    """What to raise where a party holds none of so many training records."""
    return ConfigurationError(
        f"party {party} holds none of the {records} training records, so nothing can be fitted to it; give it some or "
        "leave the party out"
    )


def absent(folder: Path, what: str, put: str) -> ConfigurationError:
    """What to raise where the files of a data set are missing.

    Args:
        folder: where they should be.
        what: is missing, of which data set.
        put: the files, and where they come from.
    """
    return ConfigurationError(
        f"{folder.absolute()} holds no {what}; put {put} there, or name another folder with data_dir or "
        "LIGHTNING_VFL_DATA"
    )
