"""Records that stay on the disk: their numbers are read when a batch asks for them, and forgotten after it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .records import Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_ONCE = 32  # records of a pass for the scaling: as much memory as a small batch


class Source(Protocol):
    """Where the numbers of records are."""

    def __len__(self) -> int:
        """How many records there are."""
        ...

    def read(self, places: Tensor) -> Tensor:
        """(B, F) uint8: the whole records at these places, flattened as the layout says."""
        ...


class Columns(NamedTuple):
    """Which numbers of a record the parties have, side by side, and how each is scaled.

    Args:
        positions: (Σ F_m,) int64 among the F numbers of the layout.
        shift: (Σ F_m,) float32, in units of the numbers in [0, 1].
        scale: (Σ F_m,) float32, likewise.
    """

    positions: Tensor
    shift: Tensor
    scale: Tensor


class StreamedRecords(Records):
    """Bytes of a source as numbers in [0, 1], cut and scaled, read whenever they are asked for.

    Args:
        source: the bytes; to be pickled where worker processes do not fork.
        places: (N,) int64, the place in the source of each record.
        columns: which numbers the parties have, and how they are scaled.
        shapes: per-record shape of each party.
        labels: (N,) or None.
        ids: (N,) the user's own record ids.
        present: (N, M) bool or None.
        label_holders: (N,) int64, the party that holds a record's label, -1: nobody; None: it is not said.

    Units: memory, nothing for features between two calls; in a call 6 F bytes a record.
    Guarantee: what is read is bit for bit what the same records held in memory would give, in whatever order and
        batches. What a party does not hold is zero.
    Not guaranteed: speed: ``features_of`` reads whole records, once for every party that asks.
    """

    def __init__(
        self,
        source: Source,
        places: Tensor,
        columns: Columns,
        shapes: Sequence[tuple[int, ...]],
        labels: Tensor | None,
        ids: "NDArray[np.generic]",
        present: Tensor | None = None,
        label_holders: Tensor | None = None,
    ) -> None:
        super().__init__(shapes, labels, ids, present, label_holders)
        self.source = source
        self.places = places
        self.columns = columns

    def rows(self, ids: Tensor) -> tuple[Tensor, ...]:
        parts = self._cut(self._read(ids, self.columns))
        if self.present is not None:
            held = self.present.index_select(0, ids)
            for party, part in enumerate(parts):
                part[~held[:, party]] = 0.0
        return parts

    def features_of(self, party: int, ids: Tensor) -> Tensor:
        begin = sum(self.widths[:party])
        own = slice(begin, begin + self.widths[party])
        part = self._read(ids, Columns(*(column[own] for column in self.columns)))
        if self.present is not None:
            part[~self.present.index_select(0, ids)[:, party]] = 0.0
        return part.view(len(ids), *self.shapes[party])

    def only(self, positions: "NDArray[np.int64]") -> "StreamedRecords":
        places = self.places.index_select(0, torch.from_numpy(positions))
        return StreamedRecords(self.source, places, self.columns, self.shapes, *self._about(positions))

    def _read(self, ids: Tensor, columns: Columns) -> Tensor:
        numbers = _taken(self.source.read(self.places.index_select(0, ids)), columns.positions)
        return numbers.float().div_(255).sub_(columns.shift).div_(columns.scale)


def _taken(numbers: Tensor, positions: Tensor) -> Tensor:
    """(B, ΣF) uint8: these columns; by numpy, which is four times as fast as torch at bytes."""
    return torch.from_numpy(np.take(numbers.numpy(), positions.numpy(), axis=1))


def two_alike(source: Source, places: Tensor, positions: Tensor, owners: Tensor, held: Tensor) -> Tensor:
    """(2, ΣF) float64 in [0, 1]: two records with the mean and the deviation, column by column, of many.

    A scaling that is fitted to means and deviations of columns, or of several columns together, is the same for the two
    as for all of them; so it can be fitted to more records than memory holds.

    Args:
        source: the bytes of whole records.
        places: (n,) int64, the places of the many; they are read once, a few at a time.
        positions: (ΣF,) int64, which numbers of a record are columns.
        owners: (ΣF,) int64, the party of each column.
        held: (n, M) bool, which record counts for which party; for each party one or more.

    Guarantee: exact up to the last rounding: sums are of whole numbers, so neither order nor blocks matter, and what
        never varies has deviation 0.
    """
    total, squares = torch.zeros(2, len(positions), dtype=torch.int64)
    for block, counted in zip(torch.split(places, _AT_ONCE), torch.split(held, _AT_ONCE), strict=True):
        numbers = _taken(source.read(block), positions).int().mul_(counted.index_select(1, owners))
        total += numbers.sum(0)
        squares += numbers.square_().sum(0)
    count = held.sum(0).index_select(0, owners)
    mean = total.double() / count
    deviation = (count * squares - total**2).double().sqrt() / count
    return torch.stack([mean - deviation, mean + deviation]) / 255
