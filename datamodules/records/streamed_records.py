"""Records that stay on the disk: their features are read for each batch and not kept."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .records import Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_ONCE = 32  # records read together for the scaling: as much memory as a small batch


class Source(Protocol):
    """The store from which the features of records are read."""

    def __len__(self) -> int:
        """The number of records."""
        ...

    def read(self, places: Tensor) -> Tensor:
        """(B, F) uint8: the whole records at these places, flattened in the order of the layout."""
        ...


class Columns(NamedTuple):
    """The columns of all parties, side by side, and the scaling of each.

    Args:
        positions: (Σ F_m,) int64 positions in the flattened record.
        shift: (Σ F_m,) float32, subtracted from numbers in [0, 1].
        scale: (Σ F_m,) float32, by which the difference is divided.
    """

    positions: Tensor
    shift: Tensor
    scale: Tensor


class StreamedRecords(Records):
    """Bytes of a source as numbers in [0, 1], divided between parties, scaled, and read for each batch.

    Args:
        source: the bytes; it must be picklable for worker processes that are not forked.
        places: (N,) int64, the place in the source of each record.
        columns: the columns of the parties, and their scaling.
        shapes: per-record shape of each party.
        labels: (N,) or None.
        ids: (N,) the user's own record ids.
        present: (N, M) bool, whether party m holds record n; None: every party holds every record.
        label_holders: (N,) int64, the party that holds a record's label, -1: no party; None: not specified.
        weights: (N,) float32, the weights in the training loss, with mean 1; None: all weigh the same.

    Units: memory, none for features between two calls; during a call 6 F bytes a record.
    Guarantee: features are bit for bit those of the same records in memory, in any order and batches. Features that a
        party does not hold are zero.
    Not guaranteed: speed: ``features_of`` reads whole records again for every party.
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
        weights: Tensor | None = None,
    ) -> None:
        super().__init__(shapes, labels, ids, present, label_holders, weights)
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
    """(B, ΣF) uint8: the columns at these positions; numpy is four times as fast as torch for bytes."""
    return torch.from_numpy(np.take(numbers.numpy(), positions.numpy(), axis=1))


def match_moments(source: Source, places: Tensor, positions: Tensor, owners: Tensor, held: Tensor) -> Tensor:
    """(2, ΣF) float64 in [0, 1]: two records with the same mean and deviation in every column as many records.

    A scaling that depends on means and deviations of columns, or of several columns together, is the same for the two
    records as for all; so it can be fitted to more records than fit into memory.

    Args:
        source: the bytes of whole records.
        places: (n,) int64, the places of the many records; they are read once, a few at a time.
        positions: (ΣF,) int64, the positions of the columns in a flattened record.
        owners: (ΣF,) int64, the party of each column.
        held: (n, M) bool, whether record n is used for party m; at least one record for each party.

    Guarantee: exact up to the last rounding: sums are of whole numbers, so they do not depend on the order, and a
        constant column has deviation 0.
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
