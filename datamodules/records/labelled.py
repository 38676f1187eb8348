"""Records of one published file, before they are divided into splits."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .records import Split

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Labelled:
    """N records with their labels and ids.

    Args:
        features: (N, *shape), uint8 (a byte b stands for b / 255) or float.
        labels: (N,) whole numbers from 0.
        ids: (N,) record ids.
    """

    features: "NDArray[Any]"
    labels: "NDArray[np.integer[Any]]"
    ids: "NDArray[np.generic]"

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, rows: "NDArray[np.int64] | None" = None) -> Split:
        """The records at these positions; None: all records."""
        features, labels, ids = self.features, self.labels, self.ids
        if rows is not None:
            features, labels, ids = features[rows], labels[rows], ids[rows]
        own = np.require(features, requirements=("C", "W"))  # torch needs writable memory and a plain order
        return Split(torch.from_numpy(own), torch.from_numpy(labels.astype(np.int64)), ids)
