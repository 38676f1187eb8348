"""Some of the parties alone, as if the others did not exist."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Parties

from ..records.layout import Layout, Part
from .over import PartitionerOver
from .partition import Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class OnlyParties(PartitionerOver):
    """The parts of some parties of another partitioner. The others do not exist, in training and later.

    The parties that stay are numbered anew, in their order; the setting ``active`` of the model is the new number.

    Args:
        partitioner: divides the columns into M parts; None: the data set's default partitioner.
        there: for each of the M parties, whether it stays.

    Raises:
        ConfigurationError: if no party stays; in ``split``, for another number of parties, and for groups of parties.

    Examples:
        >>> from lightning_vfl.datamodules import ContiguousColumns
        >>> cut = OnlyParties(ContiguousColumns(3), there=[True, False, True])
        >>> [part.positions.tolist() for part in cut.split(Layout((3,)))]
        [[0], [2]]
    """

    of_groups = False

    def __init__(self, partitioner: Partitioner | None, there: Sequence[bool]) -> None:
        if not any(there):
            raise ConfigurationError("there of OnlyParties must keep at least one party; set one of its values to true")
        super().__init__(partitioner)
        self.there = tuple(bool(stays) for stays in there)

    @property
    def _kept(self) -> list[int]:
        return [party for party, stays in enumerate(self.there) if stays]

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        parts = super().parts(layout)
        if len(parts) != len(self.there):
            raise ConfigurationError(
                f"there of OnlyParties has {len(self.there)} values for {len(parts)} parties; give one for each party"
            )
        return tuple(parts[party] for party in self._kept)

    def groups(self, parties: int) -> tuple[Parties, ...]:
        return tuple((party,) for party in range(parties))

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        held = self.inner.held(split, records, len(self.there))
        return None if held is None else held[:, self._kept]

    def label_holders(
        self, labels: "NDArray[np.generic]", ids: "NDArray[np.generic]", parties: int
    ) -> "NDArray[np.int64] | None":
        holders = self.inner.label_holders(labels, ids, len(self.there))
        if holders is None:
            return None
        renumbered = np.full(len(self.there) + 1, -1, dtype=np.int64)  # the last: of records without a holder
        renumbered[self._kept] = np.arange(len(self._kept))
        return renumbered[holders]
