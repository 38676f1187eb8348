"""Pictures in class folders: their names, their bytes in one size, and a check for damaged files."""

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError

from .decoding import decoded, reason_of, what_is_wrong

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ENDINGS = (".png", ".jpg", ".jpeg")
_NO_CLASSES = ("__MACOSX",)  # beside the folders of an archive that was packed on a Mac
_OF_SYSTEMS = ("Thumbs.db", "desktop.ini")


@dataclass(frozen=True)
class Pictures:
    """The pictures of a folder as bytes of one size: the source of ``StreamedRecords``.

    Args:
        folder: the folder of the files.
        names: (N,) paths of the files in the folder.
        labels: (N,) int64.
        size: side in pixels; the shorter side is resized to it (bilinear) and the middle is cut out.
        channels: 1: grey, 3: red, green, blue.
        threads: number of pictures that are decoded at a time.
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
                pixels[row] = decoded(path, self.size, self.channels)
            except Exception as error:  # Pillow's errors for damaged pictures have no common class
                raise ConfigurationError(
                    f"{path} cannot be decoded ({reason_of(error)}); replace or remove it"
                ) from error

        with ThreadPoolExecutor(self.threads) as pool:  # a pool that stays open would not survive a fork into workers
            for _ in pool.map(fill, range(len(places)), places.tolist()):
                pass
        return torch.from_numpy(pixels).flatten(1)

    def refuse_damaged(self, places: "NDArray[np.int64]") -> None:
        """Accept pictures whose head and end are right. Only a picture without the usual end is decoded.

        Raises:
            ConfigurationError: for files that are not pictures, are cut short or have more than 8 bits a channel.
        """

        def wrong(part: "NDArray[np.int64]") -> list[tuple[Path, str]]:
            paths = (self.folder / name for name in self.names[part])
            return [(path, said) for path in paths if (said := what_is_wrong(path, self.size, self.channels))]

        with ThreadPoolExecutor(self.threads) as pool:
            parts = np.array_split(
                places, max(1, len(places) // 256)
            )  # a task for each picture would cost more than the check
            found = list(chain.from_iterable(pool.map(wrong, parts)))
        if found:
            path, said = found[0]
            raise ConfigurationError(
                f"{len(found)} of {len(places)} pictures cannot be used, first {path} ({said}); replace or remove them"
            )


def list_pictures(folder: Path, classes: Sequence[str], start: Path) -> "tuple[NDArray[np.str_], NDArray[np.int64]]":
    """The paths, relative to ``start``, of the pictures in the class folders of a folder, and their labels.

    Files of other kinds are warned of with their number.

    Raises:
        ConfigurationError: for a folder that is not a class, and for no pictures.
    """
    if strange := [name for name in subfolders(folder) if name not in classes]:
        raise ConfigurationError(
            f"{folder} has the folder '{strange[0]}', which is not a class of the training pictures; sort the pictures "
            "into folders with the names of the training classes, or remove the folder"
        )
    found = [find_pictures(folder / name, start) for name in classes]
    names = [pictures for pictures, _ in found]
    if others := sum((ending for _, ending in found), Counter[str]()):
        often = sorted(others.items(), key=lambda pair: (-pair[1], pair[0]))
        told = ", ".join(f"{count:,} {ending}" for ending, count in often[:8])
        rank_zero_warn(
            f"{folder} has {others.total():,} files that are not read ({told}); only {', '.join(_ENDINGS)} are: "
            "convert the pictures among them"
        )
    if not any(names):
        raise no_pictures(f"{folder} holds no pictures", "in class folders; put some there")
    labels = np.arange(len(classes), dtype=np.int64).repeat([len(of_class) for of_class in names])
    return np.array([name for of_class in names for name in of_class]), labels


def no_pictures(what: str, fix: str) -> ConfigurationError:
    """The error for a folder without pictures."""
    return ConfigurationError(f"{what} ({', '.join(_ENDINGS)}) {fix}")


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted; hidden ones and those of archives are left out."""
    names = (entry.name for entry in os.scandir(folder) if entry.is_dir())
    return sorted(name for name in names if not name.startswith(".") and name not in _NO_CLASSES)


def find_pictures(folder: Path, start: Path) -> tuple[list[str], Counter[str]]:
    """The pictures in a folder and its subfolders, and the endings of other files with their number.

    Paths are relative to ``start`` and sorted. Hidden files, and those that systems make, do not count.
    """
    found = [Path(place, file) for place, _, files in os.walk(folder, followlinks=True) for file in files]
    seen = [path for path in found if not path.name.startswith(".") and path.name not in _OF_SYSTEMS]
    pictures = sorted(path.relative_to(start).as_posix() for path in seen if path.suffix.lower() in _ENDINGS)
    others = Counter(path.suffix.lower() or path.name for path in seen if path.suffix.lower() not in _ENDINGS)
    return pictures, others
