"""The files of CIFAR-10: pickles of the Python version, of which nothing is executed, and the binary version."""

import gzip
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import Limited, allowed_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPE = (3, 32, 32)
_BYTES = 3 * 32 * 32
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def read_batch(path: Path, content: bytes | None = None) -> "tuple[NDArray[np.uint8], NDArray[np.int64]]":
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
