"""CIFAR-10: colour images from the authors' archive or from its files."""

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

from ..partitioners.partition import Grid, Partitioner
from ..records.cells import check_count
from ..records.folders import fetch
from ..records.labelled import Labelled
from ..records.layout import Layout
from .published import PublishedImages, PublishedPart

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_SOURCE = "https://www.cs.toronto.edu/~kriz/"
_ARCHIVE, _MD5 = "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"  # the authors publish no other hash
_PYTHON, _BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"
SHAPE = (3, 32, 32)
_BYTES = 3 * 32 * 32
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


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


def read_batch(path: Path, content: bytes | None) -> "tuple[NDArray[np.uint8], NDArray[np.int64]]":
    """Images (N, 3072) and labels of one file.

    Args:
        path: its name; it ends in ``.bin`` in the binary version.
        content: its bytes; None: they are read from the file.

    Raises:
        ConfigurationError: if the file cannot be read or is damaged.
    """
    if content is None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _damaged(path, f"cannot be read ({error.strerror})") from error
    return (_binary if path.suffix == ".bin" else _pickled)(path, content)


def read_members(archive: Path, members: Sequence[str]) -> dict[Path, bytes]:
    """The contents of these members of a ``.tar.gz`` file, in their order; the archive is read once, start to end.

    Raises:
        FileNotFoundError: if there is no archive.
        ConfigurationError: if it is damaged, a member is missing, or it holds more than ``lightning_vfl.limits`` allows
            for its size.
    """
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
        raise
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise _damaged(archive, f"cannot be unpacked ({error})") from error
    if missing := [member for member in members if member not in found]:
        raise _damaged(archive, f"has no {missing[0]}")
    return {archive / member: found[member] for member in members}


class _Kept:
    """A stand-in for the parts of an array in a pickle: it stores its arguments and does nothing."""

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
    """Reads a pickle of plain values and arrays; it refuses any other name and imports nothing."""

    def __init__(self, content: bytes) -> None:
        super().__init__(BytesIO(content), encoding="bytes")
        self._left = len(content)

    def _latin1(self, text: str, codec: str) -> bytes:
        """Bytes, in the form in which Python 3 writes them into a pickle of Python 2.

        Raises:
            UnpicklingError: if these are more bytes in all than the file has.
        """
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError("it makes more bytes than it has")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self._latin1
        if (module, name) not in _PARTS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not a part of an array")
        return _PARTS[module, name]


def _pickled(path: Path, content: bytes) -> "tuple[NDArray[np.uint8], NDArray[np.int64]]":
    """Images (N, 3072) and labels of a file of the Python version."""
    try:
        batch = _PlainUnpickler(content).load()
    except Exception as error:  # the errors for damaged pickles have no common class
        raise _damaged(path, f"is not a pickle of plain values and arrays ({error})") from error
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
        raise _damaged(path, f"holds {len(content)} bytes, not a multiple of {1 + _BYTES}, the bytes of a record")
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + _BYTES)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _damaged(path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(f"{path} {what}; replace it with the published one, from {_PAGE}")
