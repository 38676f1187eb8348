"""The records of a split, and the records of a stage from which batches are gathered."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Event, Joint, RecordBlocks, VerticalBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .number_files import MappedFile

SplitName = Literal["train", "val", "test", "predict"]
DIVIDED: tuple[SplitName, ...] = ("train", "val", "test")  # each labelled record is in one of them
SPLITS: tuple[SplitName, ...] = (*DIVIDED, "predict")


@dataclass
class Split:
    """N records of one split, as a data set loads them: before columns are divided between parties and scaled.

    Args:
        features: (N, *shape of the layout) float32; float64 if scaling needs the precision; or uint8 for the bytes of
            images, where a byte b stands for b / 255.
        labels: (N,) int64 classes or float32 values; None for records without labels.
        ids: (N,) the user's own record ids, any dtype.
        present: (N, M) bool, whether party m holds record n; None: every party holds every record.
        weights: (N,) float32, the weights of training records in the loss, with mean 1; None: all weigh the same.
    """

    features: Tensor
    labels: Tensor | None
    ids: "NDArray[np.generic]"
    present: Tensor | None = None
    weights: Tensor | None = None

    def in_floats(self) -> "Split":
        """The same split with bytes converted to float32 numbers in [0, 1]; unchanged if it holds no bytes."""
        if self.features.dtype != torch.uint8:
            return self
        return replace(self, features=self.features.float().div_(255))


_AT_ONCE = 256  # records scaled together: the block stays in the processor's cache through all operations


def take_columns(numbers: Tensor, positions: Tensor) -> Tensor:
    """(N, ΣF) the columns at these positions of (N, F). The result is a copy, except for bytes in their own order."""
    if numbers.dtype != torch.uint8:
        return numbers.index_select(1, positions)
    if torch.equal(positions, torch.arange(numbers.shape[1])):
        return numbers
    return torch.from_numpy(np.take(numbers.numpy(), positions.numpy(), axis=1))  # four times as fast as torch


def scale_columns(columns: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """(N, ΣF) columns scaled by (ΣF,): floats in place; bytes are converted to new float32 numbers in [0, 1] first.

    Guarantee: bytes give bit for bit the result that their float32 numbers would give.
    """
    if columns.dtype != torch.uint8:
        return columns.sub_(shift).div_(scale)
    numbers = torch.empty(columns.shape, dtype=torch.float32)
    for block, own in zip(torch.split(numbers, _AT_ONCE), torch.split(columns, _AT_ONCE), strict=True):
        block.copy_(own).div_(255).sub_(shift).div_(scale)
    return numbers


class Request(NamedTuple):
    """The records of one batch that one process asks for.

    Args:
        ids: (B,) positions; or (B, M + 1), one column of positions for each participant.
        event: the schedule's event of this batch, if the schedule has events.
        joint: the place of these rows in the joint batch of all processes; None for a single process.
    """

    ids: Tensor
    event: Event | None
    joint: Joint | None


class Records(Dataset[VerticalBatch], ABC):
    """The N records of a stage. A subclass stores or reads the features.

    Args:
        shapes: per-record shape of each party.
        labels: (N,) or None.
        ids: (N,) the user's own record ids.
        present: (N, M) bool, whether party m holds record n; None: every party holds every record.
        label_holders: (N,) int64, the party that holds a record's label, -1: no party; None: not specified.
        weights: (N,) float32, the weights in the training loss, with mean 1; None: all weigh the same.
    """

    blocks: RecordBlocks | None = None
    """The blocks in which records are read; None: all records are equally fast to read."""
    scope: str | None = None
    """The file in which the ids are places; None: an id names the same record wherever it stands."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        labels: Tensor | None,
        ids: "NDArray[np.generic]",
        present: Tensor | None = None,
        label_holders: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> None:
        self.shapes = tuple(shapes)
        self.widths = tuple(prod(shape) for shape in shapes)
        self._widths, self._alike = list(self.widths), len(set(self.shapes)) == 1
        self._labels = labels
        self.ids = ids
        self.present = present
        self.label_holders = label_holders
        self.weights = weights

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> Tensor | None:
        """(N,) the labels of all records; None: there are none."""
        return self._labels

    @property
    def known(self) -> "NDArray[np.generic]":
        """The ids without stand-ins for records that the party of this process does not hold."""
        return self.ids

    def labels_at(self, ids: Tensor) -> Tensor | None:
        """(B,) the labels of the records at these positions; None: there are none."""
        return None if self._labels is None else self._labels.index_select(0, ids)

    @abstractmethod
    def rows(self, ids: Tensor) -> tuple[Tensor, ...]:
        """The features at these positions, (B, *S_m) for each party: views of one tensor."""

    @abstractmethod
    def features_of(self, party: int, ids: Tensor) -> Tensor:
        """The features of one party at these positions, (B, *S_m)."""

    @abstractmethod
    def only(self, positions: "NDArray[np.int64]") -> "Records":
        """Only the records at these positions; ``present`` becomes None if every party holds all of them."""

    def __getitem__(self, request: Request) -> VerticalBatch:
        """The batch. If ids have a column for each participant, party m's features are those of column m."""
        if not isinstance(request, Request):
            raise ConfigurationError(
                f"records are gathered in batches, but one was asked for by {request!r}; use the loaders of the "
                "datamodule, or records.rows(positions)"
            )
        ids = request.ids
        if ids.ndim == 2:
            own = tuple(self.features_of(party, ids[:, party]) for party in range(len(self.shapes)))
            return VerticalBatch(own, None, ids, None, request.event, request.joint)
        return VerticalBatch(
            self.rows(ids),
            self.labels_at(ids),
            ids,
            None if self.present is None else self.present.index_select(0, ids),
            request.event,
            request.joint,
            None if self.weights is None else self.weights.index_select(0, ids),
        )

    def _cut(self, columns: Tensor) -> tuple[Tensor, ...]:
        """(B, Σ_m F_m) as (B, *S_m) for each party, without a copy."""
        rows = columns.shape[0]
        if self._alike:  # a quarter of the time at 28 parties
            return columns.view(rows, len(self.shapes), *self.shapes[0]).unbind(1)
        parts = torch.split(columns, self._widths, dim=1)
        return tuple(part.view(rows, *shape) for part, shape in zip(parts, self.shapes, strict=True))

    def _about(self, positions: "NDArray[np.int64]") -> tuple[Any, ...]:
        """Labels, ids, presence, label holders and weights of the records at these positions."""
        rows = torch.from_numpy(positions)
        present = None if self.present is None else self.present.index_select(0, rows)
        return (
            self.labels_at(rows),
            self.ids[positions],
            None if present is None or present.all() else present,
            None if self.label_holders is None else self.label_holders.index_select(0, rows),
            None if self.weights is None else self.weights.index_select(0, rows),
        )


class VerticalRecords(Records):
    """Records of a table (K, Σ_m F_m): a batch is one gather, and a party's features are a view of it.

    The table is in memory, or in a file that is mapped into memory: batches are the same to the bit.

    Args:
        table: (K, Σ F_m) float32, the columns of all parties side by side.
        shapes: per-record shape of each party.
        labels: (N,) or None.
        ids: (N,) the user's own record ids.
        present: (N, M) bool, whether party m holds record n; None: every party holds every record.
        label_holders: (N,) int64, the party that holds a record's label, -1: no party; None: not specified.
        weights: (N,) float32, the weights in the training loss, with mean 1; None: all weigh the same.
        dtypes: of each party the dtype in which its bottom gets its features, such as ``int64``; "": float32. Whole
            numbers up to 2^24 are exact in float32.
        places: (N,) int64, the rows of the table that are these records; None: all, in their order.
    """

    def __init__(
        self,
        table: "Tensor | MappedFile",
        shapes: Sequence[tuple[int, ...]],
        labels: Tensor | None,
        ids: "NDArray[np.generic]",
        present: Tensor | None = None,
        label_holders: Tensor | None = None,
        weights: Tensor | None = None,
        *,
        dtypes: Sequence[str] = (),
        places: Tensor | None = None,
    ) -> None:
        super().__init__(shapes, labels, ids, present, label_holders, weights)
        self.table = table.contiguous() if isinstance(table, Tensor) else table
        self.places = places
        self.dtypes = tuple(dtypes)
        self._other = {party: getattr(torch, dtype) for party, dtype in enumerate(dtypes) if dtype}

    @property
    def features(self) -> Tensor:
        """(N, Σ F_m) the features of all records; a copy, unless they are a table in memory."""
        if self.places is None and isinstance(self.table, Tensor):
            return self.table
        return self.numbers(torch.arange(len(self)))

    def rows(self, ids: Tensor) -> tuple[Tensor, ...]:
        found = self._cut(self.numbers(ids))
        if not self._other:
            return found
        return tuple(x.to(self._other[m]) if m in self._other else x for m, x in enumerate(found))

    def features_of(self, party: int, ids: Tensor) -> Tensor:
        begin = sum(self.widths[:party])
        found = self.numbers(ids, slice(begin, begin + self.widths[party])).view(len(ids), *self.shapes[party])
        return found.to(self._other.get(party, found.dtype))

    def numbers(self, ids: Tensor, columns: slice = slice(None)) -> Tensor:
        """(B, F) float32, these columns of the table at these positions; the default is all columns."""
        places = ids if self.places is None else self.places.index_select(0, ids)
        if isinstance(self.table, Tensor):
            return self.table[:, columns].index_select(0, places)
        return torch.from_numpy(self.table.rows(places.numpy(), columns))

    def only(self, positions: "NDArray[np.int64]") -> "VerticalRecords":
        about = self._about(positions)
        places = torch.from_numpy(positions)
        if isinstance(self.table, Tensor):  # a copy, so that the memory of the other records is free again
            return VerticalRecords(self.numbers(places), self.shapes, *about, dtypes=self.dtypes)
        places = places if self.places is None else self.places.index_select(0, places)
        return VerticalRecords(self.table, self.shapes, *about, dtypes=self.dtypes, places=places)
