"""Pictures in class folders, such as ImageNet-100: decoded batch by batch, never all in memory."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import refuse_pixels
from lightning_vfl.streams import permutation

from .base import SplitName, VerticalDataModule, absent, data_folder, without_records
from .groups import who_holds
from .normalise import Normaliser, StandardiseParty
from .partition import Grid, Layout, Part, Partitioner
from .records import Split
from .split import check_shares, split_rows
from .streamed_records import Columns, StreamedRecords, two_alike

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ENDINGS = (".png", ".jpg", ".jpeg")
_FORMATS = ("JPEG", "PNG")
_ENDS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}  # MPO: what some cameras call a JPEG
_TAIL = 32  # bytes at the end of a file among which its format's last mark is
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")  # those of 8 bits; more would be cut off without a word


@dataclass(frozen=True)
class Pictures:
    """The pictures of a folder as bytes of one size: the source of ``StreamedRecords``.

    Args:
        folder: where they are.
        names: (N,) their files, from the folder.
        labels: (N,) int64.
        size: side in pixels; the shorter side is made that long and the middle cut out (bilinear, every pixel counts).
        channels: 1: grey, 3: red, green, blue.
        threads: how many are decoded at a time.
    """

    folder: Path
    names: "NDArray[np.str_]"
    labels: "NDArray[np.int64]"
    size: int
    channels: int
    threads: int

    def __len__(self) -> int:
        return len(self.names)

    def read(self, places: Tensor) -> Tensor:
        """(B, channels · size²) uint8.

        Raises:
            ConfigurationError: for a picture that cannot be decoded, with its name.
        """
        pixels = np.empty((len(places), self.channels, self.size, self.size), np.uint8)

        def fill(row: int, place: int) -> None:
            path = self.folder / self.names[place]
            try:
                pixels[row] = _decoded(path, self.size, self.channels)
            except Exception as error:  # a damaged picture trips up Pillow in any of a dozen ways
                raise ConfigurationError(
                    f"{path} cannot be decoded ({_reason(error)}); replace or remove it"
                ) from error

        with ThreadPoolExecutor(self.threads) as pool:  # a lasting one would not survive a fork into workers
            for _ in pool.map(fill, range(len(places)), places.tolist()):
                pass
        return torch.from_numpy(pixels).flatten(1)

    def refuse_damaged(self, places: "NDArray[np.int64]") -> None:
        """Accept pictures whose head can be read and whose end is there; others, and they alone, are decoded.

        Raises:
            ConfigurationError: for what is no picture, is cut short or has more than 8 bits a channel.
        """

        def wrong(part: "NDArray[np.int64]") -> list[tuple[Path, str]]:
            paths = (self.folder / name for name in self.names[part])
            return [(path, said) for path in paths if (said := _what_is_wrong(path, self.size, self.channels))]

        with ThreadPoolExecutor(self.threads) as pool:
            parts = np.array_split(places, max(1, len(places) // 256))  # a task for each picture costs more than it
            found = list(chain.from_iterable(pool.map(wrong, parts)))
        if found:
            path, said = found[0]
            raise ConfigurationError(
                f"{len(found)} of {len(places)} pictures cannot be used, first {path} ({said}); replace or remove them"
            )


class ImageFolderVFL(VerticalDataModule):
    """Pictures of your own, or ImageNet-100, in class folders: streamed from the disk, a quadrant for each party.

    The folder holds ``train/CLASS``, and ``test/CLASS`` or ``val/CLASS`` or both, with PNG or JPEG files (``.png``,
    ``.jpg``, ``.jpeg``) at any depth; other files are not read. Test records are those of ``test``. Where only one of
    ``test`` and ``val`` is there, its pictures are the test records, as ImageNet's 50,000 usually are, and validation
    records are drawn from the training pictures. Classes are the folders of ``train`` in the order of their names; a
    record's id is its file's name from the folder, ``train/cat/1.jpg``.

    Of a picture, the shorter side is made ``size`` long and the middle cut out; what is transparent is taken as opaque.
    A party sees (C, h, w), red, green, blue, scaled channel by channel: by numbers fitted to the training pictures, or
    by ``mean`` and ``deviation`` of your choice. PBM-VFL gives each of 4 parties a quadrant of 100 classes of ImageNet
    in batches of 256; it does not state the size.

    A batch is decoded when it is asked for, 300 to 400 photographs of 500 x 375 a second and core. With ``num_workers``
    0 that is done between two steps, ``threads`` pictures at a time; worker processes decode ahead, while the model
    learns.

    Args:
        partitioner: who gets which pixels; None: four quadrants.
        normaliser: how each party scales the pixels of each channel; None: mean 0, deviation 1 over all of its training
            pixels of that channel.
        batch_size: rows of a batch in each process.
        seed: names the validation records, the pictures that the scaling is fitted to, and the order of the training
            records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes that decode ahead, two batches each; 0: none.
        pin_memory: for a faster way to a GPU.
        data_dir: the folder; None: ``$LIGHTNING_VFL_DATA/image_folder``, else ``data/image_folder``.
        val_share: share of the training pictures for validation, unless both ``test`` and ``val`` are there; 0: none.
        size: S, side of the pictures in pixels.
        colour: red, green and blue; False: grey. Either is made of the other.
        fit_records: how many training pictures a party's scaling is fitted to, drawn by the seed from those that it
            holds; None: all, which takes as long as an epoch.
        mean: what is taken off each channel, of pixels in [0, 1], instead of what is fitted; together with
            ``deviation``. Usual for ImageNet: [0.485, 0.456, 0.406].
        deviation: what each channel is divided by. Usual for ImageNet: [0.229, 0.224, 0.225].
        threads: pictures decoded at a time, in every process.

    Shapes: a quadrant (C, size / 2, size / 2), C 3 or 1.
    Units: memory, a few batches of 6 · C · size² bytes a picture (0.9 MB at 224), and some 300 bytes for the name and
        label of each picture; nothing else grows with their number.
    Guarantee: pixels are never kept. Scaling is fitted to the mean and the deviation of each pixel over training
        pictures, whole numbers summed exactly: neither threads, workers nor batches matter. The validation records are
        stratified by class. Before training every picture of the stage is looked at, its head and its last bytes: what
        is no picture, or was cut short, is refused by name.
    Not guaranteed: that a picture damaged in the middle is noticed before it is decoded, which ends training with its
        name. Turning pictures as their EXIF data say. Cropping or mirroring at random is not done here.

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

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        normaliser: Normaliser | None = None,
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        data_dir: str | Path | None = None,
        val_share: float = 0.1,
        size: int = 224,
        colour: bool = True,
        fit_records: int | None = 1000,
        mean: Sequence[float] | None = None,
        deviation: Sequence[float] | None = None,
        threads: int = 4,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_shares(val_share)
        for name, count in (("size", size), ("fit_records", fit_records), ("threads", threads)):
            if count is not None and count < 1:
                raise ConfigurationError(f"{name} {count} is too small; use 1 or more")
        self.data_dir = data_folder(data_dir, "image_folder")
        self.val_share = val_share
        self.size = size
        self.colour = colour
        self.fit_records = fit_records
        self.mean = None if mean is None else tuple(mean)
        self.deviation = None if deviation is None else tuple(deviation)
        self.threads = threads
        self._check_constants(normaliser)
        self._fitted: Columns | None = None

    @property
    def layout(self) -> Layout:
        return Layout((self._channels, self.size, self.size))

    @property
    def num_classes(self) -> int:
        return len(self._classes)

    def default_partitioner(self) -> Partitioner:
        return Grid(2, 2)

    def default_normaliser(self) -> Normaliser:
        return StandardiseParty()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        """Labels and ids of these splits; features (N, 0), because the pictures stay where they are."""
        if "test" not in self._sources and {"test", "predict"} & {*names}:
            raise self._absent("test or val")
        splits = {}
        for name in names:
            if name in self._sources:
                source, places = self._sources[name]
                labels = torch.from_numpy(source.labels[places])
                splits[name] = Split(torch.empty(len(places), 0), labels, source.names[places])
        return splits

    def setup(self, stage: str) -> None:
        """List and check the pictures of the stage; fit the scaling to training pictures, if that was not done yet."""
        missing = self._missing(stage)
        if not missing:
            return
        splits = self.load(tuple(dict.fromkeys(("train", *missing))))
        parts = self._cut()
        present = {name: who_holds(name, split, self.partitioner, self.party_groups) for name, split in splits.items()}
        for name, split in splits.items():
            self._check(name, split.features, split, parts)
            if name in missing:
                source, places = self._sources[name]
                source.refuse_damaged(places)
        if self._fitted is None:
            self._fitted = self._fit(parts, present["train"])
        for name in missing:
            if name in splits:
                split = splits[name]
                source, places = self._sources[name]
                holders = self._label_holders(split) if name == "train" else None
                records = StreamedRecords(
                    source,
                    torch.from_numpy(places),
                    self._fitted,
                    self.party_shapes,
                    split.labels,
                    split.ids,
                    present[name],
                    holders,
                )
                self._keep(name, records)

    def private_statistics(self) -> tuple[str, ...]:
        """As everywhere; numbers that are given as ``mean`` and ``deviation`` are fitted to nothing."""
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
                "mean and deviation are given together and instead of a normaliser; give both and no normaliser, or "
                "neither"
            )
        if {len(self.mean), len(self.deviation)} != {self._channels} or not all(
            number > 0 for number in self.deviation
        ):
            raise ConfigurationError(
                f"mean {list(self.mean)} and deviation {list(self.deviation)} do not scale {self._channels} channels; "
                f"give {self._channels} number(s) for each, deviations above 0"
            )

    def _fit(self, parts: Sequence[Part], held: Tensor | None) -> Columns:
        """How columns are scaled, by constants or fitted; ``held`` (N, M) for training records."""
        positions = torch.cat([torch.from_numpy(part.positions) for part in parts])
        channels = positions // self.size**2
        if self.mean is not None and self.deviation is not None:
            shift, scale = torch.tensor([self.mean, self.deviation], dtype=torch.float32)
            return Columns(positions, shift[channels], scale[channels])
        source, places = self._sources["train"]
        if held is None:
            held = torch.ones(len(places), len(parts), dtype=torch.bool)
        for party in (~held.any(0)).nonzero().flatten().tolist():
            raise without_records(party, len(places))
        order = torch.from_numpy(permutation(len(places), self.seed, "scaling"))
        first = held[order] & (held[order].cumsum(0) <= (self.fit_records or len(places)))
        order, first = order[first.any(1)], first[first.any(1)]
        owners = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part.positions) for part in parts]))
        if self.normaliser.fitted:
            rows = two_alike(source, torch.from_numpy(places)[order], positions, owners, first)
        else:
            rows = torch.zeros(2, len(positions), dtype=torch.float64)  # their values do not matter
        # a party's channels are scaled like parties of their own; a part may be in any order
        by, widths = torch.unique(owners * self._channels + channels, return_inverse=True, return_counts=True)[1:]
        sorting = by.argsort(stable=True)
        shift, scale = self._fit_scaling(rows[:, sorting], None, widths.tolist())
        back = sorting.argsort()
        return Columns(positions, shift[back].float(), scale[back].float())

    @cached_property
    def _classes(self) -> list[str]:
        if not (train := self.data_dir / "train").is_dir():
            raise self._absent("train")
        return _folders(train)

    @cached_property
    def _sources(self) -> "dict[SplitName, tuple[Pictures, NDArray[np.int64]]]":
        """The pictures of each split that there is, and its places among them."""
        train = self._pictures("train")
        given = [part for part in ("val", "test") if (self.data_dir / part).is_dir()]
        share = 0.0 if len(given) == 2 else self.val_share
        drawn = split_rows(np.arange(len(train)), self.seed, share, 0.0, train.labels)
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
        folder, classes = self.data_dir / part, self._classes
        if strange := [name for name in _folders(folder) if name not in classes]:
            raise ConfigurationError(
                f"{folder} has the folder '{strange[0]}', which is no class of {self.data_dir / 'train'}; sort the "
                "pictures into folders called like those of the training pictures, or remove it"
            )
        names = [_files(folder / name, self.data_dir) for name in classes]
        counts = np.array([len(of_class) for of_class in names])
        if not counts.sum():
            raise ConfigurationError(
                f"{folder} holds no pictures ({', '.join(_ENDINGS)}) in class folders; put some there"
            )
        if part == "train" and not counts.all():
            raise ConfigurationError(
                f"{folder / classes[int(counts.argmin())]} holds no pictures ({', '.join(_ENDINGS)}) to learn a class "
                "from; put some there, or remove the folder"
            )
        rank_zero_info(
            f"{type(self).__name__}: {counts.sum():,} pictures of {len(counts)} classes in {folder}, "
            f"{counts.min():,} to {counts.max():,} of each"
        )
        labels = np.arange(len(classes), dtype=np.int64).repeat(counts)
        listed = np.array([name for of_class in names for name in of_class])
        return Pictures(self.data_dir, listed, labels, self.size, self._channels, self.threads)

    def _absent(self, what: str) -> ConfigurationError:
        return absent(
            self.data_dir,
            f"{what} of {type(self).__name__}",
            "the pictures, as train/CLASS/NAME.jpg and test/CLASS/NAME.jpg or val/CLASS/NAME.jpg,",
        )


def _folders(folder: Path) -> list[str]:
    """Names of the folders in it, sorted."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path, start: Path) -> list[str]:
    """Names, from ``start``, of the pictures in a folder and in those below it, sorted."""
    found = (Path(place, file) for place, _, files in os.walk(folder, followlinks=True) for file in files)
    return sorted(
        path.relative_to(start).as_posix()
        for path in found
        if path.suffix.lower() in _ENDINGS and not path.name.startswith(".")
    )


def _decoded(file: Path | BinaryIO, size: int, channels: int) -> "NDArray[np.uint8]":
    """(channels, size, size): the middle of a picture, its shorter side made ``size`` long."""
    with Image.open(file, formats=_FORMATS) as image:
        _refuse_unfit(image)
        if image.mode == "P":  # its transparency goes the way of everybody's: Pillow warns of dropping it otherwise
            picture = image.convert("RGBA").convert("L" if channels == 1 else "RGB")
        else:
            picture = image.convert("L" if channels == 1 else "RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    middle = picture.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    return np.asarray(middle).reshape(size, size, channels).transpose(2, 0, 1)


def _refuse_unfit(image: Image.Image) -> None:
    """Refuse a picture by its head, before it is decoded."""
    refuse_pixels(*image.size)
    if image.mode not in _MODES:
        raise ValueError(f"mode {image.mode} has not 8 bits a channel")


def _what_is_wrong(path: Path, size: int, channels: int) -> str:
    """Why a picture cannot be used, as far as its head and its end tell; "": nothing."""
    try:
        with path.open("rb") as file:
            with Image.open(file, formats=_FORMATS) as image:
                _refuse_unfit(image)
                mark = _ENDS[str(image.format)]
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            if mark not in file.read():  # cut short, or something follows the picture
                _decoded(file, size, channels)
    except Exception as error:  # a damaged picture trips up Pillow in any of a dozen ways
        return _reason(error)
    return ""


def _reason(error: Exception) -> str:
    return "neither PNG nor JPEG" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
