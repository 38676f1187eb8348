"""Records of published files, before they are divided into splits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .layout import Layout
from .records import Split, SplitName

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Labelled:
    """N records with their labels and ids.

    Args:
        features: (N, *shape), uint8 (a byte b stands for b / 255) or float.
        labels: (N,) whole numbers from 0.
        ids: (N,) record ids.
        columns: the names of the columns of a table; empty for images.
        views: the names and widths of the views, in the order of the parties; empty if the data have no views.
        rows: the positions of the records of each split, if the files decide them; None: they are drawn.
    """

    features: "NDArray[Any]"
    labels: "NDArray[np.integer[Any]]"
    ids: "NDArray[np.generic]"
    columns: tuple[str, ...] = ()
    views: Mapping[str, int] = field(default_factory=dict)
    rows: "Mapping[SplitName, NDArray[np.int64]] | None" = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def layout(self) -> Layout:
        """The form of a record."""
        return Layout(self.features.shape[1:], self.columns, tuple(self.views.values()), tuple(self.views))

    def split(self, rows: "NDArray[np.int64] | None" = None) -> Split:
        """The records at these positions; None: all records."""
        features = self.features
        labels = self.labels
        ids = self.ids
        if rows is not None:
            features = features[rows]
            labels = labels[rows]
            ids = ids[rows]
        own = np.require(features, requirements=("C", "W"))  # torch needs writable memory and a plain order
        return Split(torch.from_numpy(own), torch.from_numpy(labels.astype(np.int64)), ids)


def of_views(views: "Mapping[str, NDArray[np.float64]]", labels: "NDArray[np.int64]") -> Labelled:
    """N records of matrices (N, width), the views, side by side; column i of a view is called ``view.i``."""
    widths = {name: matrix.shape[1] for name, matrix in views.items()}
    columns = tuple(f"{name}.{i}" for name, width in widths.items() for i in range(width))
    return Labelled(np.hstack([*views.values()]), labels, np.arange(len(labels)), columns, widths)
