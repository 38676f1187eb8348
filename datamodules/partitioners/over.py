"""Partitioners that change one decision of another partitioner."""

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Parties

from ..records.layout import Layout, Part
from .partition import Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..records.records import Split


class PartitionerOver(Partitioner):
    """Passes on all decisions of another partitioner. A subclass changes some of them.

    Args:
        partitioner: divides the columns; None: the data set's default partitioner, which the datamodule fills in.
    """

    covering: ClassVar[bool] = False  # the other partitioner checks its own promise
    of_groups: ClassVar[bool] = True
    """Whether the other partitioner may make groups of parties."""

    def __init__(self, partitioner: Partitioner | None) -> None:
        self.partitioner = partitioner

    @property
    def inner(self) -> Partitioner:
        """The other partitioner.

        Raises:
            ConfigurationError: if it is None.
        """
        if self.partitioner is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs another partitioner; give it one, or pass {type(self).__name__} to a "
                "datamodule, which fills in its default partitioner"
            )
        return self.partitioner

    def with_default(self, usual: Partitioner) -> Self:
        return self._over(usual if self.partitioner is None else self.partitioner.with_default(usual))

    def informed_by(self, training: "Callable[[], Split]") -> Self:
        return self._over(self.inner.informed_by(training))

    @property
    def public(self) -> bool:
        return self.inner.public

    def _over(self, inner: Partitioner) -> Self:
        """A copy with this inner partitioner."""
        if inner is self.partitioner:
            return self
        filled = copy(self)
        filled.partitioner = inner
        return filled

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        parts = self.inner.split(layout)
        if not self.of_groups and any(len(group) > 1 for group in self.inner.groups(len(parts))):
            raise ConfigurationError(
                f"{type(self.inner).__name__} makes groups of parties, and {type(self).__name__} needs parties of "
                "their own columns; give it a partitioner without groups"
            )
        return parts

    def groups(self, parties: int) -> tuple[Parties, ...]:
        return self.inner.groups(parties)

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        return self.inner.held(split, records, parties)

    def kept(self, split: str, records: int) -> "NDArray[np.int64] | None":
        return self.inner.kept(split, records)

    def only_held(self, split: str, held: "NDArray[np.bool_]") -> "NDArray[np.int64] | None":
        return self.inner.only_held(split, held)

    def label_holders(
        self, labels: "NDArray[np.generic]", ids: "NDArray[np.generic]", parties: int
    ) -> "NDArray[np.int64] | None":
        return self.inner.label_holders(labels, ids, parties)
