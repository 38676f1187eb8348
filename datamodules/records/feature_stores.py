"""Where the features of tables are kept while they are prepared column by column, and afterwards: memory or a disk."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .mapped_records import MappedRecords
from .normalise import Normaliser
from .number_files import ColumnFile, MappedFile, WorkFolder
from .records import Records, VerticalRecords

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NumberColumns(ABC):
    """The columns of one party as float64 numbers (N,), between encoding and scaling."""

    @abstractmethod
    def put(self, column: "NDArray[np.float64]") -> None:
        """Keep one more column."""

    @abstractmethod
    def take(self) -> "Iterator[NDArray[np.float64]]":
        """The columns in their order; each is forgotten after it."""

    @abstractmethod
    def fit(self, normaliser: Normaliser, rows: "NDArray[np.int64]") -> tuple[Tensor, Tensor]:
        """Shift and scale, each (F,), fitted to these rows."""


class FeatureStore(ABC):
    """The scaled features of all joined records, stored column by column and read as records."""

    @abstractmethod
    def numbers(self) -> NumberColumns:
        """Place for the columns of one party before they are scaled."""

    @abstractmethod
    def put(self, column: Tensor) -> None:
        """Keep one more scaled column (N,) float32."""

    @abstractmethod
    def records(self, rows: "NDArray[np.int64]", shapes: Sequence[tuple[int, ...]], *about: Any) -> Records:
        """The records at these rows, after all columns are stored.

        Args:
            rows: (n,) positions among the N joined records.
            shapes: per-record shape of each party.
            about: labels, ids, presence, label holders and weights of the n records.
        """


class MemoryNumbers(NumberColumns):
    """Columns in memory."""

    def __init__(self) -> None:
        self._columns: list[NDArray[np.float64]] = []

    def put(self, column: "NDArray[np.float64]") -> None:
        self._columns.append(column)

    def take(self) -> "Iterator[NDArray[np.float64]]":
        while self._columns:
            yield self._columns.pop(0)

    def fit(self, normaliser: Normaliser, rows: "NDArray[np.int64]") -> tuple[Tensor, Tensor]:
        training = torch.empty(len(rows), len(self._columns), dtype=torch.float64)
        for f, column in enumerate(self._columns):
            training[:, f] = torch.from_numpy(column[rows])
        return normaliser.fit(training)


class MemoryStore(FeatureStore):
    """Features in memory."""

    def __init__(self) -> None:
        self._columns: list[Tensor] = []

    def numbers(self) -> MemoryNumbers:
        return MemoryNumbers()

    def put(self, column: Tensor) -> None:
        self._columns.append(column)

    def records(self, rows: "NDArray[np.int64]", shapes: Sequence[tuple[int, ...]], *about: Any) -> VerticalRecords:
        features, positions = torch.empty(len(rows), len(self._columns)), torch.from_numpy(rows)
        for f, column in enumerate(self._columns):
            features[:, f] = column.index_select(0, positions)
        return VerticalRecords(features, shapes, *about)


class StoredNumbers(NumberColumns):
    """Columns in a file, which is removed when the last is taken.

    Args:
        file: the file.
    """

    def __init__(self, file: ColumnFile) -> None:
        self._file = file

    def put(self, column: "NDArray[np.float64]") -> None:
        self._file.put(column)

    def take(self) -> "Iterator[NDArray[np.float64]]":
        yield from self._file.columns()
        self._file.remove()

    def fit(self, normaliser: Normaliser, rows: "NDArray[np.int64]") -> tuple[Tensor, Tensor]:
        return normaliser.fit_columns(torch.from_numpy(column[rows]) for column in self._file.columns())


class StoredFeatures(FeatureStore):
    """Features in a file from which each batch reads its records.

    Args:
        work: where the files are written; it is removed when no records use it any more.
        records: N.

    Units: disk, 4 bytes a feature; while columns are prepared 4 bytes a feature more, and 8 bytes a number of a party.
        Memory, one column.
    """

    def __init__(self, work: WorkFolder, records: int) -> None:
        self._work = work
        self._records = records
        self._columns = ColumnFile(work, "features", np.float32, records)
        self._features: MappedFile | None = None

    def numbers(self) -> StoredNumbers:
        return StoredNumbers(ColumnFile(self._work, "party", np.float64, self._records))

    def put(self, column: Tensor) -> None:
        self._columns.put(column.numpy())

    def records(self, rows: "NDArray[np.int64]", shapes: Sequence[tuple[int, ...]], *about: Any) -> MappedRecords:
        if self._features is None:
            self._features = self._columns.turned()
        return MappedRecords(self._features, rows, shapes, *about)
