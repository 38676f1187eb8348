"""Parties with few records in common, and more of their own (DVFL, section 5.3)."""

from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

from .over import PartitionerOver
from .partition import Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LimitedOverlap(PartitionerOver):
    """The parts of another partitioner, with few training records that all parties hold.

    Every party holds the ``aligned`` training records. The others are shuffled and divided evenly, each to one party.
    Every party holds all validation, test and prediction records.

    Args:
        partitioner: divides the columns into M parts; None: the data set's default partitioner.
        aligned: the number of training records that every party holds; the paper has 128 to 1024.
        seed: names the draw.
        only_aligned: leave the other records out of training, as methods that learn from common records have to.

    Shapes: ``held`` (N, M).
    Guarantee: the aligned records depend on (seed, N) only, the holders of the others also on M. Shares differ by at
        most one record, and the first parties have the larger. The aligned records of a smaller number are among those
        of a larger number. With ``only_aligned`` the features of aligned records are bit for bit the same: each party
        fits its scaling to all records that it holds, and the others are left out after that.
    Not guaranteed: that the labels of the aligned records are distributed like all labels; the draw does not use them.

    Raises:
        ConfigurationError: for ``aligned`` below 1; in ``split``, if the parts are for groups of parties; in ``held``
            and ``kept``, if there are fewer training records; in ``held``, if the other partitioner divides records
            too.

    Examples:
        >>> from lightning_vfl.datamodules import ContiguousColumns
        >>> cut = LimitedOverlap(ContiguousColumns(2), aligned=3)
        >>> cut.held("train", 8, 2).sum(0).tolist(), cut.held("test", 8, 2)
        ([6, 5], None)

    References:
        DVFL, section 5.3: "We first fix a small labelled and aligned intersection size. The remaining sample space is
        shuffled and distributed evenly across all four guests."
    """

    of_groups = False

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        aligned: int = 128,
        seed: int = 0,
        only_aligned: bool = False,
    ) -> None:
        if aligned < 1:
            raise ConfigurationError(f"aligned must be at least 1; got {aligned}")
        super().__init__(partitioner)
        self.aligned = aligned
        self.seed = seed
        self.only_aligned = only_aligned

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        inner = self.inner
        if inner.held(split, records, parties) is not None:
            raise ConfigurationError(
                f"{type(inner).__name__} decides already who holds the {split} records; give LimitedOverlap a "
                f"partitioner "
                "that divides only columns"
            )
        if split != "train":
            return None
        order = self._order(records)
        held = np.zeros((records, parties), dtype=np.bool_)
        held[order[: self.aligned]] = True
        for party, share in enumerate(np.array_split(order[self.aligned :], parties)):
            held[share, party] = True
        return None if held.all() else held

    def kept(self, split: str, records: int) -> "NDArray[np.int64] | None":
        if split != "train" or not self.only_aligned:
            return None
        return np.sort(self._order(records)[: self.aligned])

    def _order(self, records: int) -> "NDArray[np.int64]":
        """The training records in the order in which they are assigned to parties, aligned ones first."""
        if self.aligned > records:
            raise ConfigurationError(
                f"aligned {self.aligned} exceeds the {records} training records; lower it to at most {records}"
            )
        return permutation(records, self.seed, "overlap")
