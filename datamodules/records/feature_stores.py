"""What a data set has loaded: its features are divided between parties, scaled, and become records."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.trained.fitted import Fitted

from .checks import check_features
from .layout import Layout, Part, positions_of
from .normalise import Normaliser
from .records import Records, Split, SplitName, VerticalRecords, scale_columns, take_columns
from .scaling import fit_scaling

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROWS = 1 << 11  # records turned together: columns and records of 80 features are in the processor's cache
_COLUMNS = 16  # columns turned together: a line of the processor's cache for each record


class FeatureStore(ABC):
    """The features of the splits that a stage needs; ``VerticalDataModule`` calls the methods in their order."""

    def divide(self, parts: Sequence[Part], present: Mapping[SplitName, Tensor | None]) -> None:  # noqa: B027
        """Divide the columns between the parties; ``present`` says of each split who holds its records.

        The default is for stores whose columns belong to a party each, which check values when they scale them.

        Raises:
            ConfigurationError: for values with which a network cannot be trained.
        """

    @abstractmethod
    def fit(self, normaliser: Normaliser, parts: Sequence[Part], held: Tensor | None) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (Σ F_m,), that the parties fit to the training records which they hold (N, M)."""

    def trained_ids(self, splits: Mapping[SplitName, Split]) -> "NDArray[np.generic]":
        """The ids of the training records, of which a trained model keeps hashes."""
        return splits["train"].ids

    @abstractmethod
    def records(self, name: SplitName, fitted: Fitted, *about: Any) -> Records:
        """The scaled records of a split; ``about``: labels, ids, presence, label holders and weights."""


class LoadedFeatures(FeatureStore):
    """Features in memory.

    Args:
        splits: as they are loaded.
        layout: of a record.
    """

    def __init__(self, splits: Mapping[SplitName, Split], layout: Layout) -> None:
        self._splits = splits
        self._layout = layout
        self._columns: dict[SplitName, Tensor] = {}
        self._lacking: dict[SplitName, Tensor] = {}

    def divide(self, parts: Sequence[Part], present: Mapping[SplitName, Tensor | None]) -> None:
        positions = torch.from_numpy(positions_of(parts))
        widths = torch.tensor([part.width for part in parts])
        for name, split in self._splits.items():
            self._columns[name] = columns = take_columns(split.features.flatten(1), positions)
            if (held := present[name]) is not None:
                # features that a party does not hold are zero before and after scaling
                self._lacking[name] = ~held.repeat_interleave(widths, dim=1)
                if columns.is_floating_point():  # bytes may be the data set's own memory, and are always finite
                    columns.masked_fill_(self._lacking[name], 0.0)
            check_features(name, columns, split, parts, self._layout)

    def fit(self, normaliser: Normaliser, parts: Sequence[Part], held: Tensor | None) -> tuple[Tensor, Tensor]:
        names = [name for part in parts for name in self._layout.names_of(part)]
        return fit_scaling(normaliser, self._columns["train"], held, [part.width for part in parts], names)

    def records(self, name: SplitName, fitted: Fitted, *about: Any) -> VerticalRecords:
        features = scale_columns(self._columns.pop(name), fitted.shift, fitted.scale).float()
        if name in self._lacking:
            features.masked_fill_(self._lacking[name], 0.0)
        shapes, dtypes = zip(*((party.shape, party.dtype) for party in fitted.parties), strict=True)
        return VerticalRecords(features, shapes, *about, dtypes=dtypes)


class ColumnsInMemory:
    """Columns (N,) of float32 numbers that are put side by side into one tensor.

    Args:
        shape: N and the number of columns.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self._features = np.empty(shape, np.float32)
        self._width = 0
        self._waiting: list[NDArray[np.float32]] = []

    def put(self, column: "NDArray[np.float64]") -> None:
        """Put one more column, rounded to float32."""
        self._waiting.append(column.astype(np.float32))
        if len(self._waiting) == _COLUMNS:
            self._write()

    def turned(self) -> Tensor:
        """(N, F) the columns record by record, after all are put."""
        self._write()
        return torch.from_numpy(self._features)

    def _write(self) -> None:
        columns = slice(self._width, self._width + len(self._waiting))
        for start in range(0, len(self._features) if self._waiting else 0, _ROWS):
            rows = slice(start, start + _ROWS)
            self._features[rows, columns] = np.stack([column[rows] for column in self._waiting]).T
        self._width = columns.stop
        self._waiting = []
