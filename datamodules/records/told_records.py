"""What a process that reads one table was told about the records of the other tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .records import SplitName

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

ALL = "the federation"
"""Stands for the tables of all others: the records that are used."""


@dataclass(frozen=True)
class ToldRecords:
    """The ids of records in tables of other processes.

    Args:
        ids: name of a table -> its ids; ``ALL`` -> the ids of the records that are used, once they are known.
        order: the ids of each split; None: this process divides the records.
        labels: whether this process has the labels.
        classes: the classes, if it does not have them.
    """

    ids: "Mapping[str, NDArray[np.generic]]"
    order: "Mapping[SplitName, NDArray[np.generic]] | None"
    labels: bool
    classes: tuple[int | str, ...] = ()

    def tables(self) -> "dict[str, pd.DataFrame]":
        """The tables, without columns."""
        import pandas as pd  # 0.5 s, where it is used

        return {name: pd.DataFrame(index=pd.Index(ids)) for name, ids in self.ids.items()}

    def rows(self, ids: "NDArray[np.generic]") -> "Mapping[SplitName, NDArray[np.int64]] | None":
        """The positions of each split among the sorted ids of all records; None: they were not told."""
        if self.order is None:
            return None
        names: tuple[SplitName, ...] = ("train", "val", "test", "predict")
        return {name: np.searchsorted(ids, self.order.get(name, ids[:0])) for name in names}
