"""Where the scaled features of tables are kept: memory or a disk."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .mapped_records import MappedRecords
from .number_files import ColumnFile, MappedFile, WorkFolder
from .records import Records, VerticalRecords

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS = 1 << 11  # records turned together: columns and records of 80 features are in the processor's cache


class FeatureStore(ABC):
    """The scaled features of all joined records, stored column by column and read as records."""

    @abstractmethod
    def put(self, column: "NDArray[np.float64]") -> None:
        """Keep one more scaled column (N,), rounded to float32."""

    @abstractmethod
    def records(self, rows: "NDArray[np.int64]", shapes: Sequence[tuple[int, ...]], *about: Any) -> Records:
        """The records at these rows, after all columns are stored.

        Args:
            rows: (n,) positions among the N joined records.
            shapes: per-record shape of each party.
            about: labels, ids, presence, label holders and weights of the n records.
        """


class MemoryStore(FeatureStore):
    """Features in memory; each column takes the place that the column of its table has left."""

    def __init__(self) -> None:
        self._columns: list[NDArray[np.float32]] = []

    def put(self, column: "NDArray[np.float64]") -> None:
        self._columns.append(column.astype(np.float32))

    def records(self, rows: "NDArray[np.int64]", shapes: Sequence[tuple[int, ...]], *about: Any) -> VerticalRecords:
        features = np.empty((len(rows), len(self._columns)), np.float32)
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS]
            features[start : start + _ROWS] = np.stack([column[some] for column in self._columns]).T
        return VerticalRecords(torch.from_numpy(features), shapes, *about)


class StoredFeatures(FeatureStore):
    """Features in a file from which each batch reads its records.

    Args:
        work: where the files are written; it is removed when no records use it any more.
        records: N.

    Units: disk, 4 bytes a feature, and while the columns are turned 4 bytes a feature more. Memory, one column.
    """

    def __init__(self, work: WorkFolder, records: int) -> None:
        self._columns = ColumnFile(work, "features", np.float32, records)
        self._features: MappedFile | None = None

    def put(self, column: "NDArray[np.float64]") -> None:
        self._columns.put(column)

    def records(self, rows: "NDArray[np.int64]", shapes: Sequence[tuple[int, ...]], *about: Any) -> MappedRecords:
        if self._features is None:
            self._features = self._columns.turned()
        return MappedRecords(self._features, rows, shapes, *about)
