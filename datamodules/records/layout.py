"""What one record looks like, and which of its numbers a party holds."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Layout:
    """The form of one record before its columns are divided between the parties.

    Args:
        shape: per-record shape: (F,) for a table, (C, H, W) for an image.
        columns: the F names of a table's columns; empty for images.
        views: widths of the data's own views, which follow each other in the flattened record; empty if the data have
            no views. Views of images are whole channels.
        view_names: the names of those views.
        view_shapes: per-record shape of each view; empty: (width,), or whole channels of an image.
        view_dtypes: of each view the dtype, such as ``int64``, in which bottoms get its values; "": float32.
    """

    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    views: tuple[int, ...] = ()
    view_names: tuple[str, ...] = ()
    view_shapes: tuple[tuple[int, ...], ...] = ()
    view_dtypes: tuple[str, ...] = ()

    def dtype_of(self, positions: "NDArray[np.int64]") -> str:
        """The dtype in which a bottom gets the values at these positions; those of several dtypes are float32."""
        if not any(self.view_dtypes):
            return ""
        ends = list(accumulate(self.views))
        found = {self.view_dtypes[bisect_right(ends, position)] for position in positions.tolist()}
        return found.pop() if len(found) == 1 else ""

    @property
    def size(self) -> int:
        """F, the number of values in one record."""
        return prod(self.shape)

    def positions_by_name(self) -> dict[str, list[int]]:
        """Name of a column -> its position; the name before ``=`` -> the positions of all its one-hot columns."""
        found: dict[str, list[int]] = {}
        for position, column in enumerate(self.columns):
            for name in dict.fromkeys((column, column.split("=", 1)[0])):
                found.setdefault(name, []).append(position)
        return found

    def names_of(self, part: "Part") -> tuple[str, ...]:
        """The names of a part's columns; empty if columns have no names."""
        return tuple(self.columns[position] for position in part.positions.tolist()) if self.columns else ()

    def name_of(self, position: int) -> str:
        """A column's name in error messages: ``column 'age'``, or ``position 17`` if columns have no names."""
        return f"column '{self.columns[position]}'" if self.columns else f"position {position}"


@dataclass(frozen=True)
class Part:
    """The columns of one party.

    Args:
        positions: (F_m,) int64 positions in the flattened record.
        shape: per-record shape of the party's features.
    """

    positions: "NDArray[np.int64]"
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """F_m, the number of columns."""
        return len(self.positions)


def positions_of(parts: "Iterable[Part]") -> "NDArray[np.int64]":
    """(Σ F_m,) int64, the positions of all parts one after the other."""
    return np.concatenate([part.positions for part in parts])


def flat_parts(positions: "Iterable[NDArray[np.int64]]") -> tuple[Part, ...]:
    """Parts of columns that are not images: (F_m,) positions of each party."""
    return tuple(Part(own, (len(own),)) for own in positions)
