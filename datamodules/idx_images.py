"""Images in the IDX format of MNIST: four gzipped files, read in place or fetched once."""

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

from lightning_vfl._version import __version__
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import refuse_growth

from .base import SplitName, VerticalDataModule, data_folder
from .cache import RecordCache, described, files_named, state_of
from .informed import fingerprint
from .normalise import Normaliser, StandardiseParty
from .partition import Layout, Part, Partitioner, RowStrips
from .records import Split, VerticalRecords
from .split import check_val_records, held_out

if TYPE_CHECKING:
    from numpy.typing import NDArray


class IDXImages(VerticalDataModule, ABC):
    """28 x 28 grey images with pixels in [0, 1]; a subclass says what the files are.

    Args:
        partitioner: who gets which pixels; None: four strips of seven rows.
        normaliser: how each party scales its pixels; None: mean 0, deviation 1 over all of a party's training pixels.
        batch_size: rows of a batch in each process.
        seed: names the validation records and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the four ``.gz`` files; None: ``$LIGHTNING_VFL_DATA/NAME``, else ``data/NAME``.
        val_records: records drawn from the training file for validation; 0: no validation.
        cache_dir: folder in which the prepared records are kept and looked for: the second time, a stage is opened in
            milliseconds, and processes share its memory; None: nothing is kept.

    Units: disk, with ``cache_dir``, 188 MB for training and validation and 32 MB for test, for every combination of
        files, cut, scaling, seed and ``val_records`` anew (FashionMNIST); nothing is deleted.
    Guarantee: test and predict records are those of the test files, in their order; a record's id is its position in
        its file. Kept records are bit for bit those of the files; a file of another size or time of change, or another
        setting, makes others. A cache that is damaged, or whose writer was killed, is not used.
    Not guaranteed: that files found in the folder are the published ones; only their form is checked. With
        ``cache_dir``, that a partitioner or normaliser of your own is told from one of the same name and settings
        whose code was different: name another folder when you change it.

    Raises:
        ConfigurationError: if a file cannot be found, is damaged, or declares more data than ``lightning_vfl.limits``
            allows for its size; no more is unzipped than it declares.
    """

    data_settings: ClassVar[tuple[str, ...]] = ("val_records",)
    known_bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    folder: ClassVar[str]
    """Subfolder of the data folder."""
    remedy: ClassVar[str]
    """What to do about a damaged file."""
    transposed: ClassVar[bool] = False
    """Whether the files hold images column by column instead of row by row."""

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
        val_records: int = 5000,
        cache_dir: str | Path | None = None,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_val_records(val_records)
        self.data_dir = data_folder(data_dir, self.folder)
        self.val_records = val_records
        self.cache_dir = None if cache_dir is None else Path(cache_dir)

    @property
    @abstractmethod
    def files(self) -> Sequence[str]:
        """Names of the four files: training images and labels, then test images and labels."""

    @property
    def first_label(self) -> int:
        """What the files call the first class."""
        return 0

    @property
    def layout(self) -> Layout:
        return Layout((1, 28, 28))

    def default_partitioner(self) -> Partitioner:
        return RowStrips(4)

    def default_normaliser(self) -> Normaliser:
        return StandardiseParty()

    def setup(self, stage: str) -> None:
        """As everywhere, but records that are in ``cache_dir`` are opened, and others are put there."""
        if self.cache_dir is None:
            return super().setup(stage)
        cache = RecordCache(self.cache_dir, type(self).__name__, self._key())  # before the files are read
        missing = self._missing(stage)
        kept = {name: cache.read(name) for name in missing}
        if any(own is None or not self._agrees(own.parts) for own in kept.values()):
            super().setup(stage)
            for name in missing:
                records = self._records.get(name)
                if records is None or isinstance(records, VerticalRecords):
                    cache.write(name, records, self.parts)
            return None
        for name, own in kept.items():
            if own is not None:
                self._parts = self._parts or own.parts
                if own.records is not None:
                    self._records[name] = own.records
        return None

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        train_images, train_labels, test_images, test_labels = self.files
        splits: dict[SplitName, Split] = {}
        if "train" in names or "val" in names:
            images, labels = self._pair(train_images, train_labels)
            rows = held_out(len(images), self.val_records, self.seed, type(self).__name__)
            splits = {n: image_split(images[r], labels[r], r) for n, r in rows.items() if n in names and len(r)}
        if "test" in names or "predict" in names:
            images, labels = self._pair(test_images, test_labels)
            tests = image_split(images, labels, np.arange(len(images)))
            splits |= {name: tests for name in names if name in ("test", "predict")}
        return splits

    @property
    def _sources(self) -> Sequence[Path]:
        """The files that decide about the records, there or not."""
        return [self.data_dir / file for file in self.files]

    def _key(self) -> Mapping[str, Any]:
        settings = {name: getattr(self, name) for name in self.data_settings}
        return {
            "toolkit": __version__,
            "torch": torch.__version__,
            "data": f"{type(self).__module__}.{type(self).__qualname__}",
            "files": state_of([*self._sources, *files_named(self.partitioner)]),
            "partitioner": described(self.partitioner),
            "normaliser": [described(self.normaliser), repr(vars(self.normaliser))],  # it names no settings itself
            "seed": self.seed,
            **settings,
        }

    def _agrees(self, parts: Sequence[Part]) -> bool:
        """Whether the data would be cut into these parts; a cut that goes by the records is taken as it was kept."""
        if self._parts is None and self._informed:
            return True
        return fingerprint(self.parts) == fingerprint(parts)

    def _pair(self, images: str, labels: str) -> tuple["NDArray[np.uint8]", "NDArray[np.int64]"]:
        x, y = self._read(images, 3), self._read(labels, 1)
        if len(x) != len(y):
            raise self._damaged(labels, f"holds {len(y)} labels for the {len(x)} images of {images}")
        if len(y) and y.min() < self.first_label:
            raise self._damaged(labels, f"holds label {y.min()}, but its labels run from {self.first_label}")
        upright = x.transpose(0, 2, 1) if self.transposed else x
        return upright[:, None], y.astype(np.int64) - self.first_label

    def _read(self, file: str, dimensions: int) -> "NDArray[np.uint8]":
        # IDX: 0, 0, 8 (unsigned byte), number of dimensions, each size as a big-endian int32, then the bytes
        start = 4 + 4 * dimensions
        try:
            with self._opened(file) as packed, gzip.GzipFile(fileobj=packed) as content:
                head = content.read(start)
                if head[:4] != bytes((0, 0, 8, dimensions)) or len(head) < start:
                    raise self._damaged(file, f"does not begin like an IDX file of bytes in {dimensions} dimension(s)")
                sizes = np.frombuffer(head[4:], dtype=">u4").tolist()
                self._check_sizes(file, sizes)
                numbers = np.empty(prod(sizes), np.uint8)
                held = _filled(numbers, content)
                more = content.read(1)  # also compares the check sum at the end
        except FileNotFoundError:
            raise self._absent(file, "is not there") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise self._damaged(file, f"cannot be unzipped ({error})") from error
        if more or held < len(numbers):
            many = f"at least {held + 1}" if more else held
            raise self._damaged(file, f"holds {many} bytes after its head instead of {len(numbers)}")
        return numbers.reshape(sizes)

    def _check_sizes(self, file: str, sizes: Sequence[int]) -> None:
        """Look at what the head declares, before anything else is unzipped."""
        if len(sizes) == 3 and sizes[1:] != [28, 28]:
            raise self._damaged(file, f"holds images of {sizes[1]} x {sizes[2]} pixels instead of 28 x 28")
        refuse_growth(self.data_dir / file, prod(sizes), self._size(file))

    def _opened(self, file: str) -> AbstractContextManager[IO[bytes]]:
        return (self.data_dir / file).open("rb")

    def _size(self, file: str) -> int:
        """Bytes of the compressed file."""
        return (self.data_dir / file).stat().st_size

    def _damaged(self, file: str, what: str) -> ConfigurationError:
        return ConfigurationError(f"{self.data_dir / file} {what}; {self.remedy}")

    def _absent(self, file: str, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{file} of {type(self).__name__} {what}; put {', '.join(self.files)} into {self.data_dir.absolute()}, "
            "or name another folder with data_dir or LIGHTNING_VFL_DATA"
        )


def _filled(numbers: "NDArray[np.uint8]", content: gzip.GzipFile) -> int:
    """Read into this array; how many bytes of it were there."""
    view, held = numbers.data, 0
    while held < len(view) and (piece := content.read(min(len(view) - held, 2**20))):
        view[held : held + len(piece)] = piece
        held += len(piece)
    return held


def image_split(images: "NDArray[np.uint8]", labels: "NDArray[np.integer[Any]]", ids: "NDArray[np.generic]") -> Split:
    """Images (N, C, H, W) of bytes, which stand for numbers in [0, 1], with their labels and ids."""
    own = np.require(images, requirements=("C", "W"))  # torch wants to be able to write, and has no odd orders
    return Split(torch.from_numpy(own), torch.from_numpy(labels.astype(np.int64)), ids)


class FetchedImages(IDXImages, ABC):
    """``IDXImages`` whose files are fetched if they are not in the folder; a subclass says from where.

    Guarantee: files that are fetched have the published content (sha256).

    Raises:
        ConfigurationError: also if a file can neither be found nor fetched.
    """

    remedy = "delete the file to have it fetched again, or replace it"
    source: ClassVar[str]
    """Address in front of the files' names."""
    sha256: ClassVar[Mapping[str, str]]
    """The four files."""

    @property
    def files(self) -> Sequence[str]:
        return tuple(self.sha256)

    def prepare_data(self) -> None:
        """Fetch the files that are not in the folder."""
        import pooch  # 0.2 s, where it is used

        for file, digest in self.sha256.items():
            if (self.data_dir / file).exists():
                continue
            try:
                pooch.retrieve(self.source + file, f"sha256:{digest}", file, self.data_dir, progressbar=True)
            except (OSError, ValueError) as error:  # no network, no such address, a full disk; a wrong hash
                raise self._absent(file, f"could not be fetched from {self.source} ({type(error).__name__})") from error


class MNIST(FetchedImages):
    """Handwritten digits: 60,000 training and 10,000 test images, ten classes. Arguments are ``IDXImages``'s."""

    folder = "mnist"
    source = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    sha256 = {  # noqa: RUF012  # read only
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }

    @property
    def num_classes(self) -> int:
        return 10


class FashionMNIST(FetchedImages):
    """Clothes: 60,000 training and 10,000 test images, ten classes. Arguments are ``IDXImages``'s."""

    folder = "fashion_mnist"
    source = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    sha256 = {  # noqa: RUF012  # read only
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    }

    @property
    def num_classes(self) -> int:
        return 10
