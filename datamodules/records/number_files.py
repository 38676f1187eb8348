"""Columns of numbers in a file, and the same numbers record by record, of which only what is read is in memory."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_LARGE = 1 << 29  # bytes of files from which on tables stay on the disk; in memory they take about three times as much
_ROWS = 1 << 16  # rows that are turned together: 23 MB of 90 float32 columns
_AT_MOST = 1 << 12  # records read before a file is mapped anew


class WorkFolder:
    """A new folder with an unused name, removed when nothing refers to this object any more, or at the end.

    Args:
        inside: the folder in which it is made; None: that of the system for temporary files.
    """

    def __init__(self, inside: str | Path | None) -> None:
        if inside is not None:
            Path(inside).mkdir(parents=True, exist_ok=True)
        self.path = Path(mkdtemp(prefix="lightning-vfl-", dir=inside))
        finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a worker process, which has been forked
        rmtree(path, ignore_errors=True)


def work_folder(files: Iterable[Path], work_dir: str | Path | None) -> WorkFolder | None:
    """A folder in which tables are prepared; None: they fit into memory.

    Args:
        files: the tables.
        work_dir: the folder in which to make it; None: that of the system for temporary files, if the files have more
            than 512 MB together.
    """
    small = sum(path.stat().st_size for path in files if path.is_file()) <= _LARGE
    return None if work_dir is None and small else WorkFolder(work_dir)


def refuse_stored(work: WorkFolder | None, partitioner: object) -> None:
    """Refuse to divide the joined columns of tables that are prepared in a folder.

    Raises:
        ConfigurationError: naming the partitioner.
    """
    if work is not None:
        raise ConfigurationError(
            f"{type(partitioner).__name__} divides the joined columns in memory, but these tables are prepared on the "
            "disk; leave the partitioner out, or use smaller files without work_dir"
        )


class MappedFile:
    """(N, F) numbers in a file.

    Args:
        path: the file.
        dtype: of the numbers.
        shape: N and F.
        folder: the folder of the file, which must live as long.

    Units: memory, the pages that were read last, if records are read in their order: the file is mapped anew after some
        thousand records. Records in another order are on pages of the whole file. The system counts these pages as the
        memory of the process as long as other processes do not need it, and drops them then.
    """

    def __init__(self, path: Path, dtype: "DTypeLike", shape: tuple[int, int], folder: WorkFolder) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self._folder = folder
        self._read = 0
        self._mapped: NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the mapping, which is made anew in another process, and without the duty to remove the folder."""
        return {**self.__dict__, "_mapped": None, "_read": 0, "_folder": None}

    def rows(self, places: "NDArray[np.int64]") -> "NDArray[Any]":
        """(B, F) the numbers at these places."""
        if self._mapped is None or self._read > _AT_MOST:
            self._mapped, self._read = np.memmap(self.path, self.dtype, "r", shape=self.shape), 0
        self._read += len(places)
        return np.take(self._mapped, places, axis=0)


class ColumnFile:
    """Columns of N numbers, one after the other.

    Args:
        work: the folder of the file.
        name: the name of the file.
        dtype: of the numbers.
        records: N.
    """

    def __init__(self, work: WorkFolder, name: str, dtype: "DTypeLike", records: int) -> None:
        self._work = work
        self._path = work.path / name
        self._dtype = np.dtype(dtype)
        self._records = records
        self._width = 0
        self._path.write_bytes(b"")

    def put(self, column: "NDArray[Any]") -> None:
        """Append a column (N,)."""
        with self._path.open("ab") as file:
            column.astype(self._dtype, copy=False).tofile(file)
        self._width += 1

    def columns(self) -> "Iterator[NDArray[Any]]":
        """The columns in their order."""
        with self._path.open("rb") as file:
            for _ in range(self._width):
                yield np.fromfile(file, self._dtype, self._records)

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink()

    def turned(self) -> MappedFile:
        """The same numbers record by record (N, F), in a file that replaces this one."""
        path, size = self._path.with_suffix(".rows"), self._dtype.itemsize
        with self._path.open("rb") as columns, path.open("wb") as file:
            for start in range(0, self._records, _ROWS):
                count = min(_ROWS, self._records - start)
                block = np.empty((count, self._width), self._dtype)
                for f in range(self._width):
                    columns.seek(size * (f * self._records + start))
                    block[:, f] = np.fromfile(columns, self._dtype, count)
                block.tofile(file)
        self.remove()
        return MappedFile(path, self._dtype, (self._records, self._width), self._work)
