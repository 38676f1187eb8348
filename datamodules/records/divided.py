"""The records of one table of two classes, and which of them are in which split: what such data sets hand out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_vfl.errors import ConfigurationError

from ..base import SplitName
from .records import Split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Divided:
    """All N records.

    Args:
        ids: (N,) of the records, the user's own.
        features: (N, F).
        labels: (N,), 0 or 1.
        rows: positions of the records of each split.
    """

    ids: "NDArray[np.int64]"
    features: Tensor
    labels: Tensor
    rows: "Mapping[SplitName, NDArray[np.int64]]"

    def splits(self, names: Iterable[SplitName]) -> dict[SplitName, Split]:
        """Those of these splits that have records."""
        rows = {name: self.rows[name] for name in names if len(self.rows[name])}
        return {name: Split(self.features[r], self.labels[r], self.ids[r]) for name, r in rows.items()}

    def pos_weight(self, data: str, positive: str, remedy: str = "lower test_share and val_share") -> float:
        """Training records of class 0 for each one of class 1.

        Raises:
            ConfigurationError: if there is none of class 1; ``positive`` says what such a record is or has.
        """
        labels = self.labels[self.rows["train"]]
        positives = int(labels.sum())
        if not positives:
            raise ConfigurationError(f"none of the {len(labels)} training records of {data} {positive}; {remedy}")
        return (len(labels) - positives) / positives
