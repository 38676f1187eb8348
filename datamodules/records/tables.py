"""The records of one table with labels of two classes, and the records of each split."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_vfl.errors import ConfigurationError

from .records import Split, SplitName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Table:
    """N records.

    Args:
        columns: the F names of the columns.
        ids: (N,) record ids.
        features: (N, F).
        labels: (N,), 0 or 1.
        rows: positions of the records of each split.
    """

    columns: tuple[str, ...]
    ids: "NDArray[np.int64]"
    features: Tensor
    labels: Tensor
    rows: "Mapping[SplitName, NDArray[np.int64]]"

    def splits(self, names: Iterable[SplitName]) -> dict[SplitName, Split]:
        """The records of these splits; a split without records is left out."""
        rows = {name: self.rows[name] for name in names if len(self.rows[name])}
        return {name: Split(self.features[r], self.labels[r], self.ids[r]) for name, r in rows.items()}

    def pos_weight(self, data: str, positive: str) -> float:
        """The number of training records of class 0 for each training record of class 1.

        Args:
            data: name of the data set, for the error.
            positive: what a record of class 1 is, for the error: ``with a default``.

        Raises:
            ConfigurationError: if no training record is of class 1.
        """
        labels = self.labels[self.rows["train"]]
        positives = int(labels.sum())
        if not positives:
            raise ConfigurationError(
                f"{data} has {len(labels)} training records, none of them {positive}; keep more records for training"
            )
        return (len(labels) - positives) / positives
