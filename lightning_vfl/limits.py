"""Limits for the memory of a file: the declared size is checked before the file is unpacked."""

import bz2
import gzip
import io
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BYTES, PIXELS = "LIGHTNING_VFL_MAX_BYTES", "LIGHTNING_VFL_MAX_PIXELS"
FREE_BYTES = 2**28  # bytes that any file may take in memory
MOST_TIMES = 100  # a larger file: this multiple of its size on the disk; deflate reaches 1,030, real data 2 to 20
MOST_PIXELS = 50_000_000  # pixels of an image; 200 MB decoded


def allowed_bytes(size: int) -> int:
    """The bytes that a file of ``size`` bytes may take in memory: the larger of a fixed number and 100 times its size.

    The fixed number is 2^28, or ``LIGHTNING_VFL_MAX_BYTES``.

    Raises:
        ConfigurationError: if this variable is not a whole number.
    """
    return max(_whole(BYTES, FREE_BYTES), MOST_TIMES * size)


def refuse_growth(path: Path, declared: int, size: int | None = None) -> None:
    """Refuse a file that declares to take more memory than its size allows.

    Args:
        path: the path of the file, for the message.
        declared: bytes of data that the header declares.
        size: the size of the file; None: read from the disk.

    Raises:
        ConfigurationError: naming the file, the declared size and the setting.
    """
    size = path.stat().st_size if size is None else size
    if declared > allowed_bytes(size):
        raise ConfigurationError(
            f"{path} has {size:,} bytes and declares {declared:,} bytes of data, more than {allowed_bytes(size):,}; "
            f"if the file is yours, set the environment variable {BYTES} to {declared} or more"
        )


def refuse_pixels(width: int, height: int) -> None:
    """Refuse an image with more pixels than ``LIGHTNING_VFL_MAX_PIXELS``, by default 50 million.

    Pillow refuses an image of more than 178 million pixels for any value of the variable.

    Raises:
        ConfigurationError: naming the size and the setting.
    """
    most = _whole(PIXELS, MOST_PIXELS)
    if width * height > most:
        raise ConfigurationError(
            f"the image declares {width} x {height} pixels, more than {most:,}; use a smaller image, or set the "
            f"environment variable {PIXELS} to {width * height} or more"
        )


def refuse_large_table(path: Path) -> None:
    """Refuse a Parquet file that declares more cells, at 8 bytes each, or more text than its size allows.

    Text is counted after decoding, because Parquet stores a repeated text once. Text inside lists is not counted.

    Raises:
        ConfigurationError: naming the file, the declared size and the setting.
    """
    import pyarrow as pa  # imported here, because the import takes 0.1 s
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as plain:
        rows = plain.metadata.num_rows
        columns = plain.metadata.num_columns
        schema = plain.schema_arrow
    declared = 8 * rows * columns
    refuse_growth(path, declared)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    texts = [field.name for field in schema if any(kind(field.type) for kind in kinds)]
    with pq.ParquetFile(path, read_dictionary=texts) as coded:
        for batch in coded.iter_batches(columns=texts) if texts else ():
            for column in batch.columns:
                lengths = pc.binary_length(column.dictionary).take(column.indices)
                declared += pc.sum(lengths).as_py() or 0
            refuse_growth(path, declared)


_UNPACK: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class TextFile:
    """A text file that is opened once, and read from its beginning as often as it is needed.

    Args:
        path: the file; the content of ``.gz``, ``.bz2`` or ``.xz`` is unpacked while it is read.

    Raises:
        ConfigurationError: for other packed files; while reading, if the content is larger than the file's size allows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ending = path.suffix.lower()
        if self._ending in (".zip", ".zst", ".tar", ".tgz"):
            raise ConfigurationError(
                f"{path} is packed in an unsupported format; unpack the file, or pack it with gzip"
            )
        self._file = path.open("rb")

    def __enter__(self) -> "TextFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def packed(self) -> bool:
        """Whether the content is unpacked anew each time it is read."""
        return self._ending in _UNPACK

    def content(self) -> io.BufferedReader:
        """The bytes of the text, from the first one; what was given before must not be used any more."""
        self._file.seek(0)
        if not self.packed:
            return self._file
        most = allowed_bytes(os.fstat(self._file.fileno()).st_size)
        return io.BufferedReader(Limited(_UNPACK[self._ending](self._file), most, self.path))


class Limited(io.RawIOBase):
    """A stream with a limit: reading more bytes raises an error.

    Args:
        stream: the stream to read, by its ``read(n)``.
        most: the limit in bytes.
        path: the path of the file, for the message.
    """

    def __init__(self, stream: Any, most: int, path: Path) -> None:
        self._stream = stream
        self._left = most
        self._path = path
        self._most = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")
        piece = self._stream.read(min(len(view), 2**20))
        self._left -= len(piece)
        if self._left < 0:
            raise ConfigurationError(
                f"{self._path} has more than {self._most:,} bytes after unpacking; if the file is yours, set the "
                f"environment variable {BYTES} to its unpacked size or more"
            )
        view[: len(piece)] = piece
        return len(piece)


def _whole(name: str, usual: int) -> int:
    """The value of an environment variable, which must be a whole number."""
    text = os.environ.get(name, "")
    try:
        return int(text) if text else usual
    except ValueError:
        raise ConfigurationError(f"{name} must be a whole number; got {text!r}") from None
