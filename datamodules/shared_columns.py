"""Columns that several parties hold: each bank knows a customer's age."""

from collections.abc import Sequence

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

from .over import PartitionerOver
from .partition import Layout, Part, Partitioner


class OverlappingColumns(PartitionerOver):
    """The parts of another partitioner, some of whose columns further parties hold too.

    A part's own columns come first, in their order; those that it shares follow in the order of the data.

    Args:
        partitioner: cuts the columns into M parts; None: the usual cut of the data, which the datamodule fills in.
        shared: which columns: a share in (0, 1] of those that somebody holds, at least one, drawn at random; or their
            names, where a name also stands for its one-hot columns.
        holders: how many parties hold each of them: whose it is, and others drawn at random; None: all M.
        seed: names the draws.

    Guarantee: what several parties hold of a record are the same values, as far as each of them holds the record and
        scales column by column (``Standardise``). The columns of a smaller share are among those of a larger one, the
        holders of a column among those when there are more. The seed decides alone, with the settings and F, M.
    Not guaranteed: the same values where a party scales all its columns together (``StandardiseParty``).

    Raises:
        ConfigurationError: for a share outside (0, 1], no names, fewer than two holders; in ``split``, for more holders
            than parties, names that nobody holds, parties who see images, and parts that are for groups of parties.

    Examples:
        >>> from lightning_vfl.datamodules import ContiguousColumns
        >>> cut = OverlappingColumns(ContiguousColumns(2), shared=["age"])
        >>> [part.positions.tolist() for part in cut.split(Layout((4,), ("income", "age", "visits", "spent")))]
        [[0, 1], [2, 3, 1]]
    """

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        shared: float | Sequence[str] = 0.2,
        holders: int | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(shared, int | float) and not 0 < shared <= 1:
            raise ConfigurationError(f"shared {shared} is no share of the columns; use a number above 0 and up to 1")
        if isinstance(shared, Sequence) and not shared:
            raise ConfigurationError("shared names no column; name some, or leave OverlappingColumns out")
        if holders is not None and holders < 2:
            raise ConfigurationError(f"holders {holders} shares a column with nobody; use 2 or more")
        super().__init__(partitioner)
        self.shared = float(shared) if isinstance(shared, int | float) else tuple(shared)
        self.holders = holders
        self.seed = seed

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        inner = self.inner
        parts = inner.split(layout)
        parties = len(parts)
        holders = parties if self.holders is None else self.holders
        if not 2 <= holders <= parties:
            raise ConfigurationError(
                f"columns cannot be shared by {holders} of {parties} parties; use at least two parties, and no more "
                "holders than parties"
            )
        if any(len(group) > 1 for group in inner.groups(parties)):
            raise ConfigurationError(
                f"{type(inner).__name__} cuts for groups of parties, who hold the same columns already; put Groups "
                "over OverlappingColumns instead"
            )
        if images := [part.shape for part in parts if len(part.shape) > 1]:
            raise ConfigurationError(
                f"a party that sees an image of shape {images[0]} has no place for single pixels of another; use "
                "ContiguousColumns or RandomColumns, or leave OverlappingColumns out"
            )
        own = [part.positions for part in parts]
        held = [set(positions.tolist()) for positions in own]
        more: list[list[int]] = [[] for _ in parts]
        for position in self._chosen(layout, set().union(*held)):
            order = permutation(parties, self.seed, "shared column", position).tolist()
            lacking = [party for party in order if position not in held[party]]
            for party in lacking[: max(0, holders - (parties - len(lacking)))]:
                more[party].append(position)
        wider = [
            np.append(positions, np.array(extra, dtype=np.int64)) for positions, extra in zip(own, more, strict=True)
        ]
        return tuple(Part(positions, (len(positions),)) for positions in wider)

    def _chosen(self, layout: Layout, held: set[int]) -> list[int]:
        """Sorted positions of the columns to share, of those that somebody holds."""
        if isinstance(self.shared, float):
            order = [
                position
                for position in permutation(layout.size, self.seed, "shared columns").tolist()
                if position in held
            ]
            return sorted(order[: max(1, round(self.shared * len(order)))])
        of_name: dict[str, list[int]] = {}
        for position in sorted(held):
            column = layout.columns[position] if layout.columns else ""
            for name in {column, column.split("=", 1)[0]}:
                of_name.setdefault(name, []).append(position)
        if unknown := [name for name in self.shared if name not in of_name]:
            raise ConfigurationError(
                f"shared names column '{unknown[0]}', which no party holds; use names of columns that are cut, or a "
                "share of them"
            )
        return sorted({position for name in self.shared for position in of_name[name]})
