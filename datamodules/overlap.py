"""Parties that have few records in common, and more of their own (DVFL, section 5.3)."""

from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

from .over import PartitionerOver
from .partition import Layout, Part, Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LimitedOverlap(PartitionerOver):
    """The parts of another partitioner, for parties that hold few training records in common.

    ``aligned`` training records are held by every party. The others are shuffled and shared out evenly, each to one
    party. Validation, test and prediction records are held by everybody.

    Args:
        partitioner: cuts the columns into M parts; None: the usual cut of the data, which the datamodule fills in.
        aligned: how many training records every party holds; the paper has 128 to 1024.
        seed: names the draw.
        only_aligned: leave the other records out of training: what is left to methods that learn from common records.

    Shapes: ``held`` (N, M).
    Guarantee: (seed, N) alone decides which records are aligned, and with M, who holds the others; the shares differ by
        one record at most, the first parties have the larger. The aligned records of a smaller number are among those
        of a larger one. With ``only_aligned`` they are the same, to the bit: parties scale their features with all
        records that they hold, and these are left out after that.
    Not guaranteed: that the aligned records are alike in their labels; the draw does not see them.

    Raises:
        ConfigurationError: for ``aligned`` below 1; in ``split``, if the parts are for groups of parties; in ``held``
            and ``kept``, if there are fewer training records; in ``held``, if the other partitioner shares out records
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

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        aligned: int = 128,
        seed: int = 0,
        only_aligned: bool = False,
    ) -> None:
        if aligned < 1:
            raise ConfigurationError(f"aligned {aligned} leaves the parties no record in common; use 1 or more")
        super().__init__(partitioner)
        self.aligned = aligned
        self.seed = seed
        self.only_aligned = only_aligned

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        inner = self.inner
        parts = inner.split(layout)
        if any(len(group) > 1 for group in inner.groups(len(parts))):
            raise ConfigurationError(
                f"{type(inner).__name__} cuts for groups of parties, which share out the records among themselves; "
                "give LimitedOverlap one that cuts columns alone"
            )
        return parts

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        inner = self.inner
        if inner.held(split, records, parties) is not None:
            raise ConfigurationError(
                f"{type(inner).__name__} says already who holds the {split} records; give LimitedOverlap one that cuts "
                "columns alone"
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
        """The training records in the order in which they are given out, aligned ones first."""
        if self.aligned > records:
            raise ConfigurationError(
                f"aligned {self.aligned} exceeds the {records} training records; lower it to at most {records}"
            )
        return permutation(records, self.seed, "overlap")
