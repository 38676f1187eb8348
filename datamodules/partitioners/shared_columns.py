"""Columns that several parties hold, such as a customer's age that every bank knows."""

from collections.abc import Sequence

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

from ..records.layout import Layout, Part, flat_parts
from .over import PartitionerOver
from .partition import Partitioner


class OverlappingColumns(PartitionerOver):
    """The parts of another partitioner, some of whose columns other parties hold too.

    The columns of the other partitioner come first in a part; the added columns follow in the order of the data.

    Args:
        partitioner: divides the columns into M parts; None: the data set's default partitioner.
        shared: which columns: a share in (0, 1] of the columns that a party holds, at least one column, drawn at
            random; or names of columns, where a name also stands for its one-hot columns.
        holders: the number of parties that hold each of them: its owner, and others drawn at random; None: all M.
        seed: names the draws.

    Guarantee: the holders of a column have the same values, if they hold the same records and scale column by column
        (``Standardise``). The columns of a smaller share are among those of a larger share; the holders of a column
        are among those with a larger ``holders``. Everything depends on the seed, the settings, F and M only.
    Not guaranteed: the same values if a party scales all its columns together (``StandardiseParty``).

    Raises:
        ConfigurationError: for a share outside (0, 1], no names, fewer than two holders; in ``split``, for more holders
            than parties, names that no party holds, parties with images, and parts for groups of parties.

    Examples:
        >>> from lightning_vfl.datamodules import ContiguousColumns
        >>> cut = OverlappingColumns(ContiguousColumns(2), shared=["age"])
        >>> [part.positions.tolist() for part in cut.split(Layout((4,), ("income", "age", "visits", "spent")))]
        [[0, 1], [2, 3, 1]]
    """

    of_groups = False

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        shared: float | Sequence[str] = 0.2,
        holders: int | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(shared, int | float) and not 0 < shared <= 1:
            raise ConfigurationError(f"shared must be a share above 0 and up to 1, or names of columns; got {shared}")
        if isinstance(shared, Sequence) and not shared:
            raise ConfigurationError("shared must name at least one column; got none")
        if holders is not None and holders < 2:
            raise ConfigurationError(f"holders must be at least 2; got {holders}")
        super().__init__(partitioner)
        self.shared = float(shared) if isinstance(shared, int | float) else tuple(shared)
        self.holders = holders
        self.seed = seed

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        parts = super().parts(layout)
        parties = len(parts)
        holders = parties if self.holders is None else self.holders
        if not 2 <= holders <= parties:
            raise ConfigurationError(
                f"holders must be from 2 to the number of parties, which is {parties}; got {holders}"
            )
        if images := [part.shape for part in parts if len(part.shape) > 1]:
            raise ConfigurationError(
                f"pixels cannot be added to a party with images of shape {images[0]}; use ContiguousColumns or "
                "RandomColumns, or leave OverlappingColumns out"
            )
        own = [part.positions for part in parts]
        held = [set(positions.tolist()) for positions in own]
        more: list[list[int]] = [[] for _ in parts]
        for position in self._chosen(layout, set().union(*held)):
            order = permutation(parties, self.seed, "shared column", position).tolist()
            lacking = [party for party in order if position not in held[party]]
            for party in lacking[: max(0, holders - (parties - len(lacking)))]:
                more[party].append(position)
        added = [np.array(extra, dtype=np.int64) for extra in more]
        return flat_parts(np.append(positions, extra) for positions, extra in zip(own, added, strict=True))

    def _chosen(self, layout: Layout, held: set[int]) -> list[int]:
        """Sorted positions of the columns to share, among the columns that a party holds."""
        if isinstance(self.shared, float):
            order = [
                position
                for position in permutation(layout.size, self.seed, "shared columns").tolist()
                if position in held
            ]
            return sorted(order[: max(1, round(self.shared * len(order)))])
        of_name = {name: held.intersection(positions) for name, positions in layout.positions_by_name().items()}
        if unknown := [name for name in self.shared if not of_name.get(name)]:
            raise ConfigurationError(
                f"shared names column '{unknown[0]}', which no party holds; use names of columns that a party "
                "holds, or a share of them"
            )
        return sorted({position for name in self.shared for position in of_name[name]})
