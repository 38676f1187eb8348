"""Columns of numbers in a file, and the same numbers record by record, of which only what is read is in memory."""

import os
from collections.abc import Iterable
from math import prod
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
_AT_MOST = 1 << 12  # records read before a file is mapped anew, where they may be anywhere in it


class WorkFolder:
    """A new folder with an unused name, removed when nothing refers to this object any more, or at the end.

    Args:
        inside: the folder in which it is made; None: that of the system for temporary files.
    """

    def __init__(self, inside: str | Path | None) -> None:
        if inside is not None:
            Path(inside).mkdir(parents=True, exist_ok=True)
        self.path = Path(mkdtemp(prefix="lightning-vfl-", dir=inside)).absolute()
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
        at_most: the file is mapped anew after so many records have been read.

    Units: memory, the pages of the records that were read since the file was mapped. The system counts these pages as
        the memory of the process as long as other processes do not need it, and drops them then.
    """

    def __init__(
        self, path: Path, dtype: "DTypeLike", shape: tuple[int, ...], folder: WorkFolder, at_most: int = _AT_MOST
    ) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.at_most = at_most
        self._folder = folder
        self._read = 0
        self._mapped: NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the mapping, which is made anew in another process, and without the duty to remove the folder."""
        return {**self.__dict__, "_mapped": None, "_read": 0, "_folder": None}

    def rows(self, places: "NDArray[np.int64]", columns: slice = slice(None)) -> "NDArray[Any]":
        """(B, F) these columns of the numbers at these places; the default is all columns."""
        if self._mapped is None or self._read > self.at_most:
            self._mapped, self._read = np.memmap(self.path, self.dtype, "r", shape=self.shape), 0
        self._read += len(places)
        return np.take(self._mapped[:, columns], places, axis=0)


class NumberFile:
    """A new file of records, or of columns, one after the other.

    Args:
        work: the folder of the file.
        name: the name of the file.
        dtype: of the numbers.
        shape: of a record; (N,) of a column.
    """

    def __init__(self, work: WorkFolder, name: str, dtype: "DTypeLike", shape: tuple[int, ...]) -> None:
        self._work = work
        self._path = work.path / name
        self._dtype = np.dtype(dtype)
        self._shape = shape
        self._path.unlink(missing_ok=True)  # arrays may be mapped from an earlier file of this name
        self._path.touch()

    def __len__(self) -> int:
        return self._path.stat().st_size // (self._dtype.itemsize * prod(self._shape))

    def put(self, numbers: "NDArray[Any]") -> None:
        """Append one, or several (k, *shape)."""
        with self._path.open("ab") as file:
            numbers.astype(self._dtype, copy=False).tofile(file)

    def array(self) -> "NDArray[Any]":
        """What was put so far, (k, *shape), mapped into memory; writing to it changes a private copy."""
        return np.memmap(self._path, self._dtype, "c", shape=(len(self), *self._shape))

    def mapped(self, at_most: int = _AT_MOST) -> MappedFile:
        """What was put so far, mapped into memory; ``at_most`` is that of ``MappedFile``."""
        return MappedFile(self._path, self._dtype, (len(self), *self._shape), self._work, at_most)

    def turned(self) -> MappedFile:
        """The numbers of F columns (N,) record by record (N, F), in a file that replaces this one."""
        (records,), width = self._shape, len(self)
        turned = NumberFile(self._work, f"{self._path.name}.rows", self._dtype, (width,))
        with self._path.open("rb") as columns:
            for start in range(0, records, _ROWS):
                block = np.empty((min(_ROWS, records - start), width), self._dtype)
                for f in range(width):
                    columns.seek(self._dtype.itemsize * (f * records + start))
                    block[:, f] = np.fromfile(columns, self._dtype, len(block))
                turned.put(block)
        self._path.unlink()
        return turned.mapped()
