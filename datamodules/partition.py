"""Who gets which columns, and which records of them. A partitioner sees the layout of a record, never a value.

Whose cut depends on values says so, and is shown training records: see ``informed.py``.

A record is flattened to F numbers; a part is a list of positions among them and the shape in which its party sees them.
Images are (channels, height, width), so a strip or a tile is a list of pixels like any other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation
from lightning_vfl.types import Roster

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .records import Split

    Shares = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """What one record looks like before it is cut.

    Args:
        shape: per-record shape: (F,) for a table, (C, H, W) for an image.
        columns: the F names of a table's columns; empty for images.
        views: widths of ready-made views that follow each other in the flattened record, in order; empty if there are
            none. Views of images are whole channels.
        view_names: the names of those views.
    """

    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    views: tuple[int, ...] = ()
    view_names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """F, numbers in one record."""
        return prod(self.shape)

    def name_of(self, position: int) -> str:
        """What errors call a column: ``column 'age'``, or ``position 17`` where columns have no names."""
        return f"column '{self.columns[position]}'" if self.columns else f"position {position}"


@dataclass(frozen=True)
class Part:
    """One party's columns: positions in the flattened record, and the per-record shape they are seen in."""

    positions: "NDArray[np.int64]"
    shape: tuple[int, ...]


class Partitioner(ABC):
    """Cuts a record's columns into parts, one a party.

    ``covering`` says what is promised: every column goes to exactly one party. ``split`` checks the promise, and every
    part for emptiness, on whatever ``parts`` returns.
    """

    covering: ClassVar[bool] = True

    @abstractmethod
    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """One part a party."""

    def split(self, layout: Layout) -> tuple[Part, ...]:
        """The parts, checked.

        Raises:
            ConfigurationError: for an empty part, or a cover that is not what the class promises.
        """
        parts = self.parts(layout)
        empty = [m for m, part in enumerate(parts) if len(part.positions) == 0]
        if empty:
            raise ConfigurationError(
                f"{type(self).__name__} leaves party {empty[0]} without a column; use fewer parties than {len(parts)}"
            )
        taken = np.bincount(np.concatenate([part.positions for part in parts]), minlength=layout.size)
        if self.covering and not (taken == 1).all():
            raise ConfigurationError(
                f"{type(self).__name__} promises every column to one party but {int((taken == 0).sum())} columns go to "
                f"nobody and {int((taken > 1).sum())} to several; set covering = False if that is meant"
            )
        return parts

    def groups(self, parties: int) -> tuple[tuple[int, ...], ...]:
        """Party numbers, group by group: the parties of a group hold the same columns for different records.

        Default: every party is a group of its own.
        """
        return Roster.singles(parties).groups

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        """(N, M), which party holds which of the N records of a split: train, val, test or predict; None: all do."""
        return None

    def kept(self, split: str, records: int) -> "NDArray[np.int64] | None":
        """Sorted positions of those of the N records of a split that are used at all; None: all are.

        The others are left out when parties have scaled their features with whatever they hold.
        """
        return None

    def label_holders(self, labels: "NDArray[np.generic]", ids: "NDArray[np.generic]", parties: int) -> "Shares | None":
        """(N,) int64, the party that holds the label of each training record, -1: nobody; None: nobody has said.

        Args:
            labels: (N,) of the training records; nothing else of a record is shown.
            ids: (N,) the user's own record ids.
            parties: M.
        """
        return None

    def with_default(self, usual: "Partitioner") -> "Partitioner":
        """This partitioner, with the usual cut of the data where it was left without one."""
        return self

    def informed_by(self, training: "Callable[[], Split]") -> "Partitioner":
        """This partitioner, able to see the training records where its cut depends on them; default: it does not.

        Args:
            training: loads them; called when the columns are cut, and only by who needs them.
        """
        return self

    @property
    def public(self) -> bool:
        """Whether a cut that depends on training records is declared to be known to everybody already."""
        return False

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"{type(self).__name__}({settings})"


def _even(total: int, parties: int, what: str) -> list["NDArray[np.int64]"]:
    """``numpy.array_split`` of ``range(total)``: sizes differ by one at most, the first parts are the larger."""
    if parties < 1 or parties > total:
        raise ConfigurationError(f"{parties} parties cannot share {total} {what}; use 1 to {total} parties")
    return np.array_split(np.arange(total, dtype=np.int64), parties)


class ContiguousColumns(Partitioner):
    """Columns in order, cut into even runs (``numpy.array_split``). Covers every column exactly once.

    Examples:
        >>> [part.positions.tolist() for part in ContiguousColumns(2).split(Layout((5,)))]
        [[0, 1, 2], [3, 4]]
    """

    def __init__(self, parties: int) -> None:
        self.parties = parties

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        runs = _even(layout.size, self.parties, "columns")
        return tuple(Part(run, (len(run),)) for run in runs)


class RandomColumns(Partitioner):
    """Columns in a seeded random order, cut into even runs. Covers every column exactly once.

    Args:
        parties: M.
        seed: names the order; the same seed gives the same parts on every machine.
    """

    def __init__(self, parties: int, seed: int = 0) -> None:
        self.parties = parties
        self.seed = seed

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        order = permutation(layout.size, self.seed, "partition", "random columns")
        runs = _even(layout.size, self.parties, "columns")
        return tuple(Part(np.sort(order[run]), (len(run),)) for run in runs)


class NamedColumns(Partitioner):
    """Columns by name, party by party. Covers every column exactly once, unless ``drop_rest``.

    Args:
        columns: party name -> names of its columns. A name also stands for its one-hot columns (``job`` for
            ``job=clerk``, ``job=farmer``).
        drop_rest: columns that no party names are left out instead of refused.
    """

    covering: ClassVar[bool] = False  # the names decide; parts() checks them itself

    def __init__(self, columns: Mapping[str, Sequence[str]], drop_rest: bool = False) -> None:
        self.columns = columns
        self.drop_rest = drop_rest

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        if not layout.columns:
            raise ConfigurationError("NamedColumns needs data whose columns have names; images take RowStrips or Grid")
        owners: dict[str, list[int]] = {}
        for position, column in enumerate(layout.columns):
            owners.setdefault(column, []).append(position)
            if "=" in column:
                owners.setdefault(column.split("=", 1)[0], []).append(position)
        taken: dict[int, str] = {}
        parts = []
        for party, names in self.columns.items():
            positions = []
            for name in names:
                if name not in owners:
                    raise ConfigurationError(
                        f"party '{party}' is given column '{name}', which the data do not have; "
                        f"they have {', '.join(layout.columns[:12])}{', ...' if len(layout.columns) > 12 else ''}"
                    )
                for position in owners[name]:
                    if position in taken:
                        raise ConfigurationError(
                            f"column '{layout.columns[position]}' is given to both '{taken[position]}' and '{party}'; "
                            "give it to one"
                        )
                    taken[position] = party
                    positions.append(position)
            parts.append(Part(np.array(positions, dtype=np.int64), (len(positions),)))
        rest = [column for position, column in enumerate(layout.columns) if position not in taken]
        if rest and not self.drop_rest:
            raise ConfigurationError(
                f"{len(rest)} columns are given to nobody ({', '.join(rest[:5])}{', ...' if len(rest) > 5 else ''}); "
                "name them or set drop_rest: true"
            )
        return tuple(parts)


class RowStrips(Partitioner):
    """Horizontal strips of an image, top to bottom, even in height. Covers every pixel exactly once.

    Party m sees (C, h_m, W).
    """

    def __init__(self, parties: int) -> None:
        self.parties = parties

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return _tiles(layout, self.parties, 1)


class Grid(Partitioner):
    """Tiles of an image, row by row; ``Grid(2, 2)`` are the quadrants. Covers every pixel exactly once.

    Party m sees (C, h_m, w_m).
    """

    def __init__(self, rows: int = 2, columns: int = 2) -> None:
        self.rows = rows
        self.columns = columns

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return _tiles(layout, self.rows, self.columns)


def _tiles(layout: Layout, down: int, across: int) -> tuple[Part, ...]:
    if len(layout.shape) != 3:
        raise ConfigurationError(
            f"strips and grids cut images (channels, height, width), but a record has shape {layout.shape}; "
            "use ContiguousColumns, RandomColumns or NamedColumns"
        )
    pixels = np.arange(layout.size, dtype=np.int64).reshape(layout.shape)
    parts = []
    for rows in _even(layout.shape[1], down, "rows of pixels"):
        for columns in _even(layout.shape[2], across, "columns of pixels"):
            tile = pixels[:, rows][:, :, columns]
            parts.append(Part(tile.reshape(-1), tile.shape))
    return tuple(parts)


class Views(Partitioner):
    """The ready-made views of the data, one a party or evenly in order. Covers every column exactly once.

    A party sees its views one after the other: k columns of a table, (k, H, W) of channels of images.

    Args:
        parties: M, who share the views (``numpy.array_split``); None: as many as there are views.

    Examples:
        >>> [part.shape for part in Views(2).split(Layout((3, 4, 4), views=(16, 16, 16)))]
        [(2, 4, 4), (1, 4, 4)]
    """

    def __init__(self, parties: int | None = None) -> None:
        self.parties = parties

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        if not layout.views:
            raise ConfigurationError("Views needs data that come in views; use ContiguousColumns or NamedColumns")
        count = len(layout.views)
        ends = np.cumsum([0, *layout.views])
        inner = layout.shape[1:]  # of an image; nothing of a table
        parts = []
        for run in _even(count, count if self.parties is None else self.parties, "views"):
            positions = np.arange(ends[run[0]], ends[run[-1] + 1], dtype=np.int64)
            parts.append(Part(positions, (len(positions) // prod(inner), *inner)))
        return tuple(parts)

    def __repr__(self) -> str:
        return "Views()" if self.parties is None else super().__repr__()  # the former is in earlier checkpoints
