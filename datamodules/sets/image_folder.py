"""Pictures in class folders, such as ImageNet-100: decoded batch by batch, never all in memory."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import numbers_in

from ..partitioners.partition import Grid, Partitioner
from ..records.feature_stores import FeatureStore
from ..records.folders import missing_files
from ..records.layout import Layout, Part, positions_of
from ..records.normalise import Normaliser, StandardiseParty
from ..records.pictures import Pictures, list_pictures, no_pictures, subfolders
from ..records.records import Split, SplitName
from ..records.scaling import fit_scaling, without_records
from ..records.streamed_records import Columns, StreamedRecords, match_moments
from ..split import check_shares, split_rows
from .published import PublishedSet

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ImageFolderVFL(PublishedSet):
    """Pictures of your own, or ImageNet-100, in class folders: streamed from the disk, a quadrant for each party.

    The folder holds ``train/CLASS``, and ``test/CLASS`` or ``val/CLASS`` or both, with PNG or JPEG files (``.png``,
    ``.jpg``, ``.jpeg``) at any depth; other files are not read. If there are both ``test`` and ``val``, their pictures
    are the test and the validation records. If there is one of them, its pictures are the test records (as is usual for
    ImageNet's 50,000), and validation records are drawn from the training pictures. Classes are the folders of
    ``train`` in the order of their names; a record's id is the path of its file in the folder, ``train/cat/1.jpg``.

    A picture is turned as its EXIF data say, its shorter side is resized to ``size`` and the middle is cut out;
    transparent pixels become opaque. A
    party sees (C, h, w), red, green, blue, scaled channel by channel, by default to mean 0 and deviation 1 over all its
    training pixels of that channel. PBM-VFL gives each of 4 parties a quadrant of 100 classes of ImageNet, in batches
    of 256; it does not state the size.

    A batch is decoded when it is needed, 300 to 400 photographs of 500 x 375 a second and core. With ``num_workers`` 0
    it is decoded between two steps, ``threads`` pictures at a time; worker processes decode two batches each ahead of
    the training.

    Args:
        partitioner: who gets which pixels; None: four quadrants.
        normaliser: how each party scales the pixels of each channel; None: ``StandardiseParty``.
        val_share: share of the training pictures for validation, unless both ``test`` and ``val`` are there; 0: none.
        size: S, side of the pictures in pixels.
        colour: red, green and blue; False: grey. Pictures are converted.
        fit_records: the number of training pictures to which a party's scaling is fitted, drawn by the seed from those
            that the party holds; None: all, which takes as long as an epoch.
        mean: what is subtracted from each channel (pixels in [0, 1]), instead of a fitted scaling; together with
            ``deviation``. Usual for ImageNet: [0.485, 0.456, 0.406].
        deviation: what each channel is divided by. Usual for ImageNet: [0.229, 0.224, 0.225].
        threads: number of pictures that are decoded at a time, in every process.
        settings: further settings of ``PublishedSet`` and ``VerticalDataModule``: ``batch_size`` and so on.

    Shapes: a quadrant (C, size / 2, size / 2), C 3 or 1.
    Units: memory, a few batches of 6 · C · size² bytes a picture (0.9 MB at 224), and some 300 bytes for the name and
        label of each picture; nothing else grows with the number of pictures.
    Guarantee: pixels are not kept. Scaling is fitted to the mean and the deviation of each pixel over training
        pictures, sums of whole numbers: threads, workers and batches do not change it. The validation records are
        stratified by class. Before training the head and the last bytes of every picture of the stage are checked:
        files that are not pictures, or were cut short, are refused by name.
    Not guaranteed: that a picture damaged in the middle is noticed before it is decoded, which ends training with its
        name. Random crops and mirror images are not made.

    Raises:
        ConfigurationError: if a folder is not there, a class has no training pictures, or a picture is damaged or has
            more than 8 bits a channel.

    Examples:
        >>> ImageFolderVFL(size=64).party_shapes
        ((3, 32, 32), (3, 32, 32), (3, 32, 32), (3, 32, 32))

    References:
        Parties: Tran, Castiglia, Patterson and Milanova, "PBM-VFL: Vertical Federated Learning with Feature and Sample
        Privacy", appendix B. ImageNet: Deng et al., CVPR 2009, https://www.image-net.org.
    """

    known_bounds = (0.0, 1.0)
    data_settings = ("val_share", "size", "colour", "fit_records", "mean", "deviation")
    ids_are_places = False  # they are paths of files
    folder = "image_folder"
    usual_partitioner = Grid(2, 2)
    usual_normaliser = StandardiseParty()

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        normaliser: Normaliser | None = None,
        *,
        val_share: float = 0.1,
        size: int = 224,
        colour: bool = True,
        fit_records: int | None = 1000,
        mean: Sequence[float] | None = None,
        deviation: Sequence[float] | None = None,
        threads: int = 4,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, normaliser=normaliser, **settings)
        check_shares(val_share)
        for name, count in (("size", size), ("fit_records", fit_records), ("threads", threads)):
            if count is not None and count < 1:
                raise ConfigurationError(f"{name} must be at least 1; got {count}")
        self.val_share = val_share
        self.size = size
        self.colour = colour
        self.fit_records = fit_records
        self.mean = None if mean is None else tuple(mean)
        self.deviation = None if deviation is None else tuple(deviation)
        self.threads = threads
        self._check_constants(normaliser)

    @property
    def layout(self) -> Layout:
        return Layout((self._channels, self.size, self.size))

    @property
    def num_classes(self) -> int:
        return len(self._classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self._classes)

    def forget(self) -> None:
        super().forget()
        for cached in ("_classes", "sources"):
            self.__dict__.pop(cached, None)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        """Labels and ids of these splits; features are (N, 0), because the pictures stay on the disk."""
        if "test" not in self.sources and {"test", "predict"} & {*names}:
            raise self._absent("test or val")
        splits = {}
        for name in names:
            if name in self.sources:
                source, places = self.sources[name]
                labels = torch.from_numpy(source.labels[places])
                splits[name] = Split(torch.empty(len(places), 0), labels, source.names[places])
        return splits

    def _open(
        self, names: tuple[SplitName, ...], missing: Sequence[SplitName]
    ) -> tuple[Mapping[SplitName, Split], FeatureStore]:
        """The pictures of these splits, of which those of the missing ones are checked."""
        splits = self.load(names)
        for name in missing:
            if name in splits:
                source, places = self.sources[name]
                source.refuse_damaged(places)
        return splits, _PictureStore(self)

    def private_statistics(self) -> tuple[str, ...]:
        """As in the base class; with ``mean`` and ``deviation`` nothing is fitted."""
        return () if self.mean is not None else super().private_statistics()

    # ---- inside

    @property
    def _channels(self) -> int:
        return 3 if self.colour else 1

    def _check_constants(self, normaliser: Normaliser | None) -> None:
        if self.mean is None and self.deviation is None:
            return
        if self.mean is None or self.deviation is None or normaliser is not None:
            raise ConfigurationError(
                "mean and deviation must be given together and without a normaliser; give both and no normaliser, or "
                "neither"
            )
        if {len(self.mean), len(self.deviation)} != {self._channels} or not all(
            number > 0 for number in self.deviation
        ):
            raise ConfigurationError(
                f"mean and deviation must have {self._channels} number(s) each, deviations above 0; got mean "
                f"{list(self.mean)} and deviation {list(self.deviation)}"
            )

    @cached_property
    def _classes(self) -> list[str]:
        if self.fitted is not None:
            return [str(name) for name in self.fitted.class_names]
        if not (train := self.data_dir / "train").is_dir():
            raise self._absent("train")
        return subfolders(train)

    @cached_property
    def sources(self) -> "dict[SplitName, tuple[Pictures, NDArray[np.int64]]]":
        """Split -> the pictures among which its records are, and their places there."""
        if self.fitted is not None and not (self.data_dir / "train").is_dir():  # new pictures for a trained model
            held = [part for part in ("test", "val") if (self.data_dir / part).is_dir()]
            if not held:
                raise self._absent("test")
            tests = self._pictures(held[0])
            return dict.fromkeys(("test", "predict"), (tests, np.arange(len(tests))))
        train = self._pictures("train")
        given = [part for part in ("val", "test") if (self.data_dir / part).is_dir()]
        share = 0.0 if len(given) == 2 else self.val_share
        drawn = split_rows(np.arange(len(train)), self.seed, share, 0.0, train.labels, self._classes)
        sources: dict[SplitName, tuple[Pictures, NDArray[np.int64]]] = {"train": (train, drawn["train"])}
        if len(drawn["val"]):
            sources["val"] = train, drawn["val"]
        if len(given) == 2:
            val = self._pictures("val")
            sources["val"] = val, np.arange(len(val))
        if given:
            tests = self._pictures(given[-1])
            sources["test"] = sources["predict"] = tests, np.arange(len(tests))
        return sources

    def _pictures(self, part: str) -> Pictures:
        """The pictures of a folder, class by class."""
        folder = self.data_dir / part
        classes = self._classes
        names, labels = list_pictures(folder, classes, self.data_dir)
        counts = np.bincount(labels, minlength=len(classes))
        if part == "train" and not counts.all():
            raise no_pictures(
                f"{folder / classes[int(counts.argmin())]} holds no pictures",
                "to learn the class from; put some there, or remove the folder",
            )
        rank_zero_info(
            f"{type(self).__name__}: {counts.sum():,} pictures of {len(counts)} classes in {folder}, "
            f"{counts.min():,} to {counts.max():,} of each"
        )
        return Pictures(self.data_dir, names, labels, self.size, self._channels, self.threads)

    def _absent(self, what: str) -> ConfigurationError:
        return missing_files(
            self.data_dir,
            f"{what} of {type(self).__name__}",
            "the pictures, as train/CLASS/NAME.jpg and test/CLASS/NAME.jpg or val/CLASS/NAME.jpg,",
        )


class _PictureStore(FeatureStore):
    """Pictures that each batch decodes. Scaling is fitted to some of them, or made of given constants."""

    def __init__(self, data: ImageFolderVFL) -> None:
        self._data = data

    def fit(self, normaliser: Normaliser, parts: Sequence[Part], held: Tensor | None) -> tuple[Tensor, Tensor]:
        data = self._data
        positions = torch.from_numpy(positions_of(parts))
        channels = positions // data.size**2
        if data.mean is not None and data.deviation is not None:
            shift, scale = torch.tensor([data.mean, data.deviation], dtype=torch.float32)
            return shift[channels], scale[channels]
        source, places = data.sources["train"]
        if held is None:
            held = torch.ones(len(places), len(parts), dtype=torch.bool)
        for party in numbers_in(~held.any(0)):
            raise without_records(party, len(places))
        order = torch.from_numpy(permutation(len(places), data.seed, "scaling"))
        first = held[order] & (held[order].cumsum(0) <= (data.fit_records or len(places)))
        order = order[first.any(1)]
        first = first[first.any(1)]
        owners = torch.arange(len(parts)).repeat_interleave(torch.tensor([part.width for part in parts]))
        if normaliser.fitted:
            rows = match_moments(source, torch.from_numpy(places)[order], positions, owners, first)
        else:
            rows = torch.zeros(2, len(positions), dtype=torch.float64)  # the normaliser ignores their values
        # each channel of a party is scaled like a party of its own; the positions of a part may be in any order
        of_channel = owners * source.channels + channels
        by, widths = torch.unique(of_channel, return_inverse=True, return_counts=True)[1:]
        sorting = by.argsort(stable=True)
        shift, scale = fit_scaling(normaliser, rows[:, sorting], None, widths.tolist())
        back = sorting.argsort()
        return shift[back].float(), scale[back].float()

    def records(self, name: SplitName, fitted: Fitted, *about: Any) -> StreamedRecords:
        source, places = self._data.sources[name]
        columns = Columns(torch.cat([party.positions for party in fitted.parties]), fitted.shift, fitted.scale)
        shapes = [party.shape for party in fitted.parties]
        return StreamedRecords(source, torch.from_numpy(places), columns, shapes, *about)
