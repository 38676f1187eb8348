"""Columns of numbers in a file, and the same numbers record by record, of which only what is read is in memory."""

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .work_folders import WorkFolder

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_ROWS = 1 << 16  # rows that are turned together: 23 MB of 90 float32 columns
_AT_MOST = 1 << 12  # records read before a file is mapped anew, where they may be anywhere in it


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
            self._mapped = np.memmap(self.path, self.dtype, "r", shape=self.shape)
            self._read = 0
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
