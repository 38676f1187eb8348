"""The base class of partitioners, and those that need only the layout of a record.

A partitioner divides the columns of a record between parties. It sees the layout of a record and no values; a
partitioner that depends on values sees training records, see ``informed.py``.

A record is flattened to F numbers. A part is a list of positions among them and the shape of the party's features.
Images are (channels, height, width), so a strip or a tile is a list of pixels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rebuildable import printed
from lightning_vfl.streams import permutation
from lightning_vfl.types import Parties, Roster

from ..records.layout import Layout, Part, flat_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..records.records import Split

    Shares = NDArray[np.int64]


class Partitioner(ABC):
    """Divides the columns of a record into parts, one for each party.

    ``covering`` True promises that every column goes to exactly one party. ``split`` checks this promise, and that no
    part is empty, for the result of ``parts``.
    """

    covering: ClassVar[bool] = True

    @abstractmethod
    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """One part for each party."""

    def split(self, layout: Layout) -> tuple[Part, ...]:
        """The parts, checked.

        Raises:
            ConfigurationError: for an empty part, positions and shapes that do not fit the layout, or if ``covering``
                does not hold.
        """
        parts = self.parts(layout)
        _refuse_other_parts(type(self).__name__, parts)
        empty = [m for m, part in enumerate(parts) if len(part.positions) == 0]
        if empty:
            raise ConfigurationError(
                f"{type(self).__name__} gives party {empty[0]} no column; use fewer parties than {len(parts)}"
            )
        _refuse_other_columns(type(self).__name__, parts, layout)
        taken = np.bincount(np.concatenate([part.positions for part in parts]), minlength=layout.size)
        if self.covering and not (taken == 1).all():
            raise ConfigurationError(
                f"{type(self).__name__} must give every column to exactly one party, but {int((taken == 0).sum())} "
                f"columns go to no party and {int((taken > 1).sum())} to several; correct parts or set covering = False"
            )
        return parts

    def groups(self, parties: int) -> tuple[Parties, ...]:
        """Party numbers, group by group: the parties of a group hold the same columns for different records.

        Default: every party is a group of its own.
        """
        return Roster.singles(parties).groups

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        """(N, M), whether party m holds record n of a split (train, val, test or predict).

        None, the default: every party holds every record.
        """
        return None

    def kept(self, split: str, records: int) -> "NDArray[np.int64] | None":
        """Sorted positions of the records of a split that are used, among its N records; None, the default: all.

        Each party fits its scaling to all records that it holds; the unused records are left out after that.
        """
        return None

    def only_held(self, split: str, held: "NDArray[np.bool_]") -> "NDArray[np.int64] | None":
        """Sorted positions of the records that are used, of those that are left after ``kept``; default: all.

        Args:
            split: the split.
            held: (N, M), the holders of each record, of the data and of this partitioner together.
        """
        return None

    def label_holders(self, labels: "NDArray[np.generic]", ids: "NDArray[np.generic]", parties: int) -> "Shares | None":
        """(N,) int64, the party that holds the label of each training record, -1: no party.

        None, the default: not specified.

        Args:
            labels: (N,) of the training records.
            ids: (N,) the user's own record ids.
            parties: M.
        """
        return None

    def with_default(self, usual: "Partitioner") -> "Partitioner":
        """This partitioner; if it needs another partitioner and has none, with the data set's default."""
        return self

    def informed_by(self, training: "Callable[[], Split]") -> "Partitioner":
        """This partitioner with access to the training records; default: it does not need them.

        Args:
            training: loads the training records; called when the columns are divided, if the partitioner needs them.
        """
        return self

    @property
    def public(self) -> bool:
        """Whether parts that depend on training records are declared public knowledge."""
        return False

    __repr__ = printed


def _refuse_other_parts(who: str, parts: object) -> None:
    """Accept one or more parts with an array of whole numbers each."""
    if not isinstance(parts, tuple | list) or not parts or not all(isinstance(part, Part) for part in parts):
        raise ConfigurationError(f"parts of {who} must be a tuple with a Part for each party; got {parts!r}")
    for party, part in enumerate(parts):
        given = part.positions
        if not (isinstance(given, np.ndarray) and given.ndim == 1 and (given.dtype.kind in "iu" or not len(given))):
            kind = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
            raise ConfigurationError(
                f"positions of party {party} that {who} gives are {kind}; give an int64 array, such as np.arange(3)"
            )


def _refuse_other_columns(who: str, parts: Sequence[Part], layout: Layout) -> None:
    """Accept positions of the layout, in shapes of as many numbers."""
    for party, part in enumerate(parts):
        low = int(part.positions.min())
        high = int(part.positions.max())
        held = len(part.positions)
        if low < 0 or high >= layout.size:
            raise ConfigurationError(
                f"{who} gives party {party} the columns {low} to {high}, but records have the columns 0 to "
                f"{layout.size - 1}; correct parts"
            )
        if prod(part.shape) != held:
            raise ConfigurationError(
                f"{who} gives party {party} {held} columns in the shape {part.shape} of {prod(part.shape)} numbers; "
                f"use ({held},) for a table"
            )


def _even(total: int, parties: int, what: str) -> list["NDArray[np.int64]"]:
    """``numpy.array_split`` of ``range(total)``: sizes differ by at most one, and the first parts are the larger."""
    if parties < 1 or parties > total:
        raise ConfigurationError(f"{parties} parties cannot share {total} {what}; use 1 to {total} parties")
    return np.array_split(np.arange(total, dtype=np.int64), parties)


class ContiguousColumns(Partitioner):
    """Columns in order, in runs of even length (``numpy.array_split``). Every column goes to exactly one party.

    Examples:
        >>> [part.positions.tolist() for part in ContiguousColumns(2).split(Layout((5,)))]
        [[0, 1, 2], [3, 4]]
    """

    def __init__(self, parties: int) -> None:
        self.parties = parties

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return flat_parts(_even(layout.size, self.parties, "columns"))


class RandomColumns(Partitioner):
    """Columns in a seeded random order, in runs of even length. Every column goes to exactly one party.

    Args:
        parties: M.
        seed: names the random order; the same seed gives the same parts on every machine.
    """

    def __init__(self, parties: int, seed: int = 0) -> None:
        self.parties = parties
        self.seed = seed

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        order = permutation(layout.size, self.seed, "partition", "random columns")
        return flat_parts(np.sort(order[run]) for run in _even(layout.size, self.parties, "columns"))


class NamedColumns(Partitioner):
    """Columns by name. Every column goes to exactly one party, unless ``drop_rest``.

    Args:
        columns: party name -> names of its columns. A name also stands for its one-hot columns (``job`` for
            ``job=clerk``, ``job=farmer``).
        drop_rest: leave out columns that are given to no party; False: refuse them.
    """

    covering: ClassVar[bool] = False  # parts() checks the names itself

    def __init__(self, columns: Mapping[str, Sequence[str]], drop_rest: bool = False) -> None:
        self.columns = columns
        self.drop_rest = drop_rest

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        if not layout.columns:
            raise ConfigurationError(
                "NamedColumns needs columns with names, and these data have none; use RowStrips or Grid for images"
            )
        owners = layout.positions_by_name()
        taken: dict[int, str] = {}
        parts = []
        for party, names in self.columns.items():
            positions: list[int] = []
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
            parts.append(np.array(positions, dtype=np.int64))
        rest = [column for position, column in enumerate(layout.columns) if position not in taken]
        if rest and not self.drop_rest:
            raise ConfigurationError(
                f"{len(rest)} columns are given to no party ({', '.join(rest[:5])}{', ...' if len(rest) > 5 else ''}); "
                "name them or set drop_rest: true"
            )
        return flat_parts(parts)


class RowStrips(Partitioner):
    """Horizontal strips of an image of even height, top to bottom. Every pixel goes to exactly one party.

    Party m sees (C, h_m, W).
    """

    def __init__(self, parties: int) -> None:
        self.parties = parties

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return _tiles(layout, self.parties, 1)


class Grid(Partitioner):
    """Tiles of an image, row by row; ``Grid(2, 2)`` gives quadrants. Every pixel goes to exactly one party.

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
            f"strips and grids need images (channels, height, width), but a record has shape {layout.shape}; "
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
    """The data set's own views, one for each party or evenly in order. Every column goes to exactly one party.

    The views of a party follow each other: k columns of a table, or (k, H, W) channels of images.

    Args:
        parties: M, between whom the views are divided (``numpy.array_split``); None: one party for each view.

    Examples:
        >>> [part.shape for part in Views(2).split(Layout((3, 4, 4), views=(16, 16, 16)))]
        [(2, 4, 4), (1, 4, 4)]
    """

    def __init__(self, parties: int | None = None) -> None:
        self.parties = parties

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        if not layout.views:
            raise ConfigurationError(
                "Views needs data with views, and these data have none; use ContiguousColumns or NamedColumns"
            )
        count = len(layout.views)
        ends = np.cumsum([0, *layout.views])
        inner = layout.shape[1:]  # (H, W) of an image; () of a table
        parts = []
        for run in _even(count, count if self.parties is None else self.parties, "views"):
            positions = np.arange(ends[run[0]], ends[run[-1] + 1], dtype=np.int64)
            alone = layout.view_shapes and len(run) == 1
            parts.append(
                Part(positions, layout.view_shapes[run[0]] if alone else (len(positions) // prod(inner), *inner))
            )
        return tuple(parts)

    def __repr__(self) -> str:
        return "Views()" if self.parties is None else super().__repr__()  # as in earlier checkpoints
