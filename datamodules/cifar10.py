"""CIFAR-10: colour images from the authors' archive, its pickles, of which nothing is executed, or binary files."""

import gzip
import pickle
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import Limited, allowed_bytes

from .base import SplitName, VerticalDataModule, data_folder
from .cells import check_count
from .idx_images import image_split
from .normalise import Normaliser, StandardiseParty
from .partition import Grid, Layout, Partitioner
from .records import Split
from .split import check_val_records, held_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHAPE = (3, 32, 32)
_BYTES = 3 * 32 * 32
_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST = ("test_batch",)
_SOURCE = "https://www.cs.toronto.edu/~kriz/"
_ARCHIVE, _MD5 = "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"  # the authors publish no other hash
_PYTHON, _BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"


class CIFAR10(VerticalDataModule):
    """CIFAR-10: 50,000 training and 10,000 test images of 3 x 32 x 32, ten classes.

    The folder holds the files of the Python version (``data_batch_1`` to ``data_batch_5``, ``test_batch``) or of the
    binary version (the same with ``.bin``), each itself or in its folder as published (``cifar-10-batches-py``,
    ``cifar-10-batches-bin``), or the archive ``cifar-10-python.tar.gz``, which is fetched if there is nothing and read
    as it is: nothing is unpacked onto the disk. A party sees (3, h, w), red, green, blue, with pixels in [0, 1].

    PBM-VFL gives each of 4 parties a quadrant, as ``Grid(2, 2)`` does. It also shifts and mirrors training images at
    random, which is not done here.

    Args:
        partitioner: who gets which pixels; None: four quadrants.
        normaliser: how each party scales its pixels; None: mean 0, deviation 1 over all of a party's training pixels.
        batch_size: rows of a batch in each process.
        seed: names the validation records and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the files; None: ``$LIGHTNING_VFL_DATA/cifar10``, else ``data/cifar10``.
        val_records: records drawn from the training files for validation; 0: no validation.
        expected_records: records that each of the six files must hold, so that one cut short is noticed; None: any
            number.

    Guarantee: nothing that a file says is called or imported: a pickle that names anything but the parts of an array
        is refused before anything runs, and those are stood in for. An archive that is fetched has the published
        content (md5). Test and predict records are those of the test file, in their order; a record's id is its
        position in the training files, one after the other, or in the test file.
    Not guaranteed: that files found in the folder are the published ones; only their form and the numbers of their
        records are checked. That a pickle of many small objects takes little memory: 64 times its size at most.

    Raises:
        ConfigurationError: if the files can neither be found nor fetched, one is damaged, or the archive holds more
            than ``lightning_vfl.limits`` allows for its size.

    Examples:
        >>> CIFAR10().party_shapes
        ((3, 16, 16), (3, 16, 16), (3, 16, 16), (3, 16, 16))

    References:
        Krizhevsky, "Learning multiple layers of features from tiny images", 2009,
        https://www.cs.toronto.edu/~kriz/cifar.html. Parties: Tran, Castiglia, Patterson and Milanova, "PBM-VFL:
        Vertical Federated Learning with Feature and Sample Privacy", appendix B.
    """

    known_bounds = (0.0, 1.0)
    data_settings = ("val_records",)

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
        expected_records: int | None = 10_000,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_val_records(val_records)
        self.data_dir = data_folder(data_dir, "cifar10")
        self.val_records = val_records
        self.expected_records = expected_records

    @property
    def layout(self) -> Layout:
        return Layout(_SHAPE)

    @property
    def num_classes(self) -> int:
        return 10

    def default_partitioner(self) -> Partitioner:
        return Grid(2, 2)

    def default_normaliser(self) -> Normaliser:
        return StandardiseParty()

    def prepare_data(self) -> None:
        """Fetch the archive if the folder holds none of the files."""
        import pooch  # 0.2 s, where it is used

        if self._unpacked() is not None or (self.data_dir / _ARCHIVE).exists():
            return
        try:
            pooch.retrieve(_SOURCE + _ARCHIVE, f"md5:{_MD5}", _ARCHIVE, self.data_dir, progressbar=True)
        except (OSError, ValueError) as error:  # no network, no such address, a full disk; a wrong hash
            raise self._absent(f"could not be fetched from {_SOURCE} ({type(error).__name__})") from error

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        splits: dict[SplitName, Split] = {}
        if "train" in names or "val" in names:
            images, labels = self._read(_TRAIN)
            rows = held_out(len(images), self.val_records, self.seed, type(self).__name__)
            splits = {n: image_split(images[r], labels[r], r) for n, r in rows.items() if n in names and len(r)}
        if "test" in names or "predict" in names:
            images, labels = self._read(_TEST)
            tests = image_split(images, labels, np.arange(len(images)))
            splits |= {name: tests for name in names if name in ("test", "predict")}
        return splits

    # ---- inside

    def _unpacked(self) -> tuple[Path, str] | None:
        """The folder of the files and what their names end in; None: there are none."""
        for folder, ending in ((_PYTHON, ""), (_BINARY, ".bin"), (".", ""), (".", ".bin")):
            place = self.data_dir / folder
            if any((place / f"{file}{ending}").is_file() for file in (*_TRAIN, *_TEST)):
                return place, ending
        return None

    def _read(self, files: Sequence[str]) -> "tuple[NDArray[np.uint8], NDArray[np.int64]]":
        """Images (N, 3, 32, 32) and labels of these files, one after the other."""
        unpacked = self._unpacked()
        if unpacked is None:
            contents = self._from_archive([f"{_PYTHON}/{file}" for file in files])
        else:
            place, ending = unpacked
            contents = {path: _content(path) for path in (place / f"{file}{ending}" for file in files)}
        batches = []
        for path, content in contents.items():
            images, labels = (_binary if path.suffix == ".bin" else _pickled)(path, content)
            check_count(path, len(labels), self.expected_records, _SOURCE)
            batches.append((images, labels))
        images = np.concatenate([images for images, _ in batches]).reshape(-1, *_SHAPE)
        return images, np.concatenate([labels for _, labels in batches]).astype(np.int64)

    def _from_archive(self, members: Sequence[str]) -> dict[Path, bytes]:
        """The contents of these members, in their order; the archive is read once, from its beginning to its end."""
        archive = self.data_dir / _ARCHIVE
        found: dict[str, bytes] = {}
        try:
            with (
                gzip.open(archive) as content,
                BufferedReader(Limited(content, allowed_bytes(archive.stat().st_size), archive)) as limited,
                tarfile.open(fileobj=limited, mode="r|") as tar,
            ):
                for member in tar:
                    if member.name in members and (file := tar.extractfile(member)) is not None:
                        found[member.name] = file.read()
        except FileNotFoundError:
            raise self._absent("is not there") from None
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise _damaged(archive, f"cannot be unpacked ({error})") from error
        if missing := [member for member in members if member not in found]:
            raise _damaged(archive, f"has no {missing[0]}")
        return {archive / member: found[member] for member in members}

    def _absent(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{_ARCHIVE} of {type(self).__name__} {what}; put it, or the folder {_PYTHON} or {_BINARY}, into "
            f"{self.data_dir.absolute()}, or name another folder with data_dir or LIGHTNING_VFL_DATA"
        )


class _Kept:
    """What stands in for the parts of an array in a pickle: it keeps what it is given and does nothing."""

    given: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __setstate__(self, state: Any) -> None:
        self.state = state


_PARTS = {
    ("numpy.core.multiarray", "_reconstruct"): _Kept,
    ("numpy._core.multiarray", "_reconstruct"): _Kept,
    ("numpy", "ndarray"): _Kept,
    ("numpy", "dtype"): _Kept,
}


class _PlainUnpickler(pickle.Unpickler):
    """Reads a pickle of plain values and arrays; anything else that it names is refused, not imported."""

    def __init__(self, content: bytes) -> None:
        super().__init__(BytesIO(content), encoding="bytes")
        self._left = len(content)

    def _latin1(self, text: str, codec: str) -> bytes:
        """Bytes, as Python 3 puts them into a pickle of Python 2; in all no more than the file has."""
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError("it makes more bytes than it has")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self._latin1
        if (module, name) not in _PARTS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of an array")
        return _PARTS[module, name]


def _pickled(path: Path, content: bytes) -> "tuple[NDArray[np.uint8], NDArray[np.int64]]":
    """Images (N, 3072) and labels of a file of the Python version."""
    try:
        batch = _PlainUnpickler(content).load()
    except Exception as error:  # a damaged pickle ends in any of a dozen ways
        raise _damaged(path, f"is no pickle of plain values and arrays ({error})") from error
    match batch:
        case {
            b"data": _Kept(
                state=(_, (int(records), int(width)), _Kept(given=(b"u1" | "u1", *_)), by_column, bytes(data))
            ),
            b"labels": list(labels),
        } if width == _BYTES and records * width == len(data):
            pass
        case _:
            raise _damaged(path, f"holds no 'data' that are rows of {_BYTES} bytes, or no 'labels'")
    if len(labels) != records or not all(type(label) is int and label in range(10) for label in labels):
        raise _damaged(path, f"holds {len(labels)} labels for {records} images, or some that are not 0 to 9")
    images = np.frombuffer(data, np.uint8).reshape(records, width, order="F" if by_column else "C")
    return images, np.array(labels, dtype=np.int64)


def _binary(path: Path, content: bytes) -> "tuple[NDArray[np.uint8], NDArray[np.int64]]":
    """Images (N, 3072) and labels of a file of the binary version: a byte for the label, then the image."""
    if len(content) % (1 + _BYTES):
        raise _damaged(path, f"holds {len(content)} bytes, which are no records of {1 + _BYTES}")
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _BYTES)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error


def _damaged(path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(f"{path} {what}; replace it with the published one, from {_SOURCE}cifar.html")
