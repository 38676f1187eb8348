"""Partitioners that say something more about the parts that another one cuts."""

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .partition import Layout, Part, Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .records import Split


class PartitionerOver(Partitioner):
    """What another partitioner says, passed on; a subclass changes the part that it is about.

    Args:
        partitioner: cuts the columns; None: the usual cut of the data, which the datamodule fills in.
    """

    covering: ClassVar[bool] = False  # the other partitioner keeps its own promise

    def __init__(self, partitioner: Partitioner | None) -> None:
        self.partitioner = partitioner

    @property
    def inner(self) -> Partitioner:
        """The other partitioner.

        Raises:
            ConfigurationError: if there is none yet.
        """
        if self.partitioner is None:
            raise ConfigurationError(
                f"{type(self).__name__} has no cut of its own; give it a partitioner, or hand it to a datamodule, "
                "which fills in its usual one"
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
        """The same over another one."""
        if inner is self.partitioner:
            return self
        filled = copy(self)
        filled.partitioner = inner
        return filled

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return self.inner.split(layout)

    def groups(self, parties: int) -> tuple[tuple[int, ...], ...]:
        return self.inner.groups(parties)

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        return self.inner.held(split, records, parties)

    def kept(self, split: str, records: int) -> "NDArray[np.int64] | None":
        return self.inner.kept(split, records)

    def label_holders(
        self, labels: "NDArray[np.generic]", ids: "NDArray[np.generic]", parties: int
    ) -> "NDArray[np.int64] | None":
        return self.inner.label_holders(labels, ids, parties)
