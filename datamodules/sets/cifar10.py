"""CIFAR-10: colour images from the authors' archive or from its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import Grid, Partitioner
from ..records.cells import check_count
from ..records.cifar_files import SHAPE, read_batch, read_members
from ..records.folders import fetch
from ..records.labelled import Labelled
from ..records.layout import Layout
from .published import PublishedImages, PublishedPart

if TYPE_CHECKING:
    pass

_FILES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_SOURCE = "https://www.cs.toronto.edu/~kriz/"
_ARCHIVE, _MD5 = "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"  # the authors publish no other hash
_PYTHON, _BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"


class CIFAR10(PublishedImages):
    """CIFAR-10: 50,000 training and 10,000 test images of 3 x 32 x 32, ten classes.

    The folder holds the files of the Python version (``data_batch_1`` to ``data_batch_5``, ``test_batch``) or of the
    binary version (the same with ``.bin``), each itself or in its folder as published (``cifar-10-batches-py``,
    ``cifar-10-batches-bin``), or the archive ``cifar-10-python.tar.gz``, which is downloaded if there are no files and
    read without unpacking it to the disk. A party sees (3, h, w), red, green, blue, with pixels in [0, 1], scaled to
    mean 0 and deviation 1 over all its training pixels by default. PBM-VFL gives each of 4 parties a quadrant, as
    ``Grid(2, 2)`` does, the default. It also shifts and mirrors training images at random, which is not done here.

    Args:
        partitioner: who gets which pixels; None: the default.
        val_records: records drawn from the training files for validation; 0: no validation.
        expected_records: the number of records that each of the six files must hold, so that a file cut short is
            noticed; None: any number.
        settings: further settings of ``PublishedImages`` and ``VerticalDataModule``.

    Guarantee: nothing that a file names is called or imported: a pickle that names anything but the parts of an array
        is refused. A downloaded archive has the published content (md5). A record's id is its position in the training
        files, one after the other, or in the test file.
    Not guaranteed: that files found in the folder are the published ones; only their form and the numbers of their
        records are checked. That a pickle of many small objects takes little memory: 64 times its size at most.

    Raises:
        ConfigurationError: if the files can neither be found nor downloaded, one is damaged, or the archive holds more
            than ``lightning_vfl.limits`` allows for its size.

    Examples:
        >>> CIFAR10().party_shapes
        ((3, 16, 16), (3, 16, 16), (3, 16, 16), (3, 16, 16))

    References:
        Krizhevsky, "Learning multiple layers of features from tiny images", 2009,
        https://www.cs.toronto.edu/~kriz/cifar.html. Parties: Tran, Castiglia, Patterson and Milanova, "PBM-VFL:
        Vertical Federated Learning with Feature and Sample Privacy", appendix B.
    """

    folder = "cifar10"
    usual_partitioner = Grid(2, 2)
    layout = Layout(SHAPE)
    num_classes = 10

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        expected_records: int | None = 10_000,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, **settings)
        self.expected_records = expected_records

    def prepare_data(self) -> None:
        """Download the archive if the folder holds none of the files."""
        if self._unpacked() is not None or (self.data_dir / _ARCHIVE).exists():
            return
        try:
            fetch(_SOURCE, _ARCHIVE, self.data_dir, f"md5:{_MD5}")
        except (OSError, ValueError) as error:
            raise self._absent(f"could not be downloaded from {_SOURCE} ({type(error).__name__})") from error

    def read(self, part: PublishedPart) -> Labelled:
        unpacked = self._unpacked()
        contents: Mapping[Path, bytes | None]
        if unpacked is not None:
            place, ending = unpacked
            contents = dict.fromkeys(place / f"{file}{ending}" for file in _FILES[part])
        else:
            try:
                contents = read_members(self.data_dir / _ARCHIVE, [f"{_PYTHON}/{file}" for file in _FILES[part]])
            except FileNotFoundError:
                raise self._absent("is not there") from None
        batches = []
        for path, content in contents.items():
            images, labels = read_batch(path, content)
            check_count(path, len(labels), self.expected_records, _SOURCE)
            batches.append((images, labels))
        x = np.concatenate([images for images, _ in batches]).reshape(-1, *SHAPE)
        return Labelled(x, np.concatenate([labels for _, labels in batches]), np.arange(len(x)))

    def _unpacked(self) -> tuple[Path, str] | None:
        """The folder of the files and the ending of their names; None: there are none."""
        for folder, ending in ((_PYTHON, ""), (_BINARY, ".bin"), (".", ""), (".", ".bin")):
            place = self.data_dir / folder
            if any((place / f"{file}{ending}").is_file() for files in _FILES.values() for file in files):
                return place, ending
        return None

    def _absent(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{_ARCHIVE} of {type(self).__name__} {what}; put it, or the folder {_PYTHON} or {_BINARY}, into "
            f"{self.data_dir.absolute()}, or name another folder with data_dir or LIGHTNING_VFL_DATA"
        )
