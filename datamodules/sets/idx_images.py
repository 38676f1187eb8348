"""Form of data sets of 28 x 28 images in the IDX format of MNIST."""

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from lightning_vfl import __version__
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import refuse_growth

from ..partitioners.informed import fingerprint
from ..partitioners.partition import Partitioner, RowStrips, find_setting_files
from ..records.cache import RecordCache, contents, describe, stat_files
from ..records.feature_stores import FeatureStore, KeptFeatures, LoadedFeatures
from ..records.idx import read_idx
from ..records.labelled import Labelled
from ..records.layout import Layout, Part
from ..records.normalise import Normaliser, StandardiseParty
from ..records.records import Split, SplitName
from ..split import check_val_records, draw_validation
from .published import PublishedPart, PublishedParts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class IDXImages(PublishedParts, ABC):
    """28 x 28 grey images with pixels in [0, 1], from four ``.gz`` files. A subclass names the files.

    Pixels are scaled to mean 0 and deviation 1 over all training pixels of a party by default.

    Args:
        partitioner: who gets which pixels; None: four strips of seven rows.
        val_records: records drawn from the training file for validation; 0: no validation.
        cache_dir: folder in which the prepared records are stored. The next time a stage with the same settings is
            opened in milliseconds, and processes share the memory of its records; None: nothing is stored.
        settings: further settings of ``PublishedSet`` and ``VerticalDataModule``.

    Units: disk, with ``cache_dir``, 188 MB for training and validation and 32 MB for test (FashionMNIST), again for
        every combination of files, partitioner, normaliser, seed and ``val_records``; nothing is deleted.
    Guarantee: test and predict records are those of the test files, in their order; a record's id is its position in
        its file. Stored records are bit for bit those of the files; a file of another size or modification time, or
        another setting, is stored separately. A damaged or incomplete cache is not used.
    Not guaranteed: that files found in the folder are the published ones; only their form is checked. With
        ``cache_dir``, that changed code of your own partitioner or normaliser is noticed if its name and settings stay
        the same: use another folder when you change it.

    Raises:
        ConfigurationError: if a file cannot be found, is damaged, or declares more data than ``lightning_vfl.limits``
            allows for its size; no more is unzipped than it declares.
    """

    known_bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    usual_partitioner: ClassVar[Partitioner] = RowStrips(4)
    usual_normaliser: ClassVar[Normaliser] = StandardiseParty()
    layout = Layout((1, 28, 28))
    data_settings: ClassVar[tuple[str, ...]] = ("val_records",)
    remedy: ClassVar[str]
    """What to do about a damaged file."""
    transposed: ClassVar[bool] = False
    """Whether the files hold images column by column instead of row by row."""

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        val_records: int = 5000,
        cache_dir: str | Path | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, **settings)
        check_val_records(val_records)
        self.val_records = val_records
        self.cache_dir = None if cache_dir is None else Path(cache_dir)

    @property
    @abstractmethod
    def files(self) -> Sequence[str]:
        """Names of the four files: training images and labels, then test images and labels."""

    @property
    def first_label(self) -> int:
        """The number of the first class in the files."""
        return 0

    def _open(
        self, names: tuple[SplitName, ...], missing: Sequence[SplitName]
    ) -> tuple[Mapping[SplitName, Split], FeatureStore]:
        """With ``cache_dir`` records are opened from there, or stored there."""
        if self.cache_dir is None:
            return super()._open(names, missing)
        cache = RecordCache(self.cache_dir, type(self).__name__, self._key())  # before the files are read
        names = tuple(name for name in names if name != "val" or self.val_records)
        found = {name: cache.read(name) for name in names}
        kept = {name: own for name, own in found.items() if own is not None and self._agrees(own.parts)}
        if not kept or len(kept) < len(names):  # nothing is asked for without validation records
            splits, _ = super()._open(names, missing)
            return splits, LoadedFeatures(splits, self.layout, cache)
        self._parts = self._parts or kept[names[0]].parts
        return {name: Split(torch.empty(0), own.labels, own.ids) for name, own in kept.items()}, KeptFeatures(kept)

    def read(self, part: PublishedPart) -> Labelled:
        images, labels = self.files[:2] if part == "train" else self.files[2:]
        x, y = self._array(images, 3), self._array(labels, 1)
        if len(x) != len(y):
            raise self._damaged(labels, f"holds {len(y)} labels for the {len(x)} images of {images}")
        if len(y) and y.min() < self.first_label:
            raise self._damaged(labels, f"holds label {y.min()}, but its labels run from {self.first_label}")
        upright = x.transpose(0, 2, 1) if self.transposed else x
        return Labelled(upright[:, None], y.astype(np.int64) - self.first_label, np.arange(len(y)))

    def draw(self, train: Labelled) -> "Mapping[SplitName, NDArray[np.int64]]":
        return draw_validation(len(train), self.val_records, self.seed, type(self).__name__)

    # ---- inside

    @property
    def _sources(self) -> Sequence[Path]:
        """The files that decide about the records, whether they exist or not."""
        return [self.data_dir / file for file in self.files]

    def _key(self) -> Mapping[str, Any]:
        """Everything that decides about the prepared records."""
        settings = {name: getattr(self, name) for name in self.data_settings}
        return {
            "toolkit": __version__,
            "torch": torch.__version__,
            "data": f"{type(self).__module__}.{type(self).__qualname__}",
            "files": stat_files([*self._sources, *find_setting_files(self.partitioner)]),
            "partitioner": [describe(self.partitioner), contents(vars(self.partitioner))],
            "normaliser": [describe(self.normaliser), contents(vars(self.normaliser))],  # its repr shows no settings
            "seed": self.seed,
            "model": self.fitted.digest() if self.fitted is not None and self._of_model else None,
            **settings,
        }

    def _agrees(self, parts: Sequence[Part]) -> bool:
        """Whether these are the parts of the data; parts that depend on training records are taken as stored."""
        if self._parts is None and self._informed:
            return True
        return fingerprint(self.parts) == fingerprint(parts)

    def _array(self, file: str, dimensions: int) -> "NDArray[np.uint8]":
        try:
            with self._opened(file) as packed:
                return read_idx(packed, dimensions, lambda sizes: self._check_sizes(file, sizes))
        except FileNotFoundError:
            raise self._absent(file, "is not there") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise self._damaged(file, f"cannot be unzipped ({error})") from error
        except ConfigurationError:
            raise
        except ValueError as error:
            raise self._damaged(file, str(error)) from error

    def _check_sizes(self, file: str, sizes: Sequence[int]) -> None:
        """Check the sizes in the head of a file, before anything else is unzipped."""
        if len(sizes) == 3 and sizes[1:] != [28, 28]:
            raise self._damaged(file, f"holds images of {sizes[1]} x {sizes[2]} pixels instead of 28 x 28")
        refuse_growth(self.data_dir / file, prod(sizes), self._size(file))

    def _opened(self, file: str) -> AbstractContextManager[IO[bytes]]:
        """The gzipped file, opened for reading."""
        return (self.data_dir / file).open("rb")

    def _size(self, file: str) -> int:
        """Bytes of the gzipped file."""
        return (self.data_dir / file).stat().st_size

    def _damaged(self, file: str, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self.data_dir / file} {what}; {self.remedy}")

    def _absent(self, file: str, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{file} of {type(self).__name__} {what}; put {', '.join(self.files)} into {self.data_dir.absolute()}, "
            "or name another folder with data_dir or LIGHTNING_VFL_DATA"
        )
