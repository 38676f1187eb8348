"""Records whose features are in a file of float32 numbers, which is mapped into memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .number_files import MappedFile
from .records import Records

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class MappedRecords(Records):
    """Records of which each batch reads the features from a file.

    Args:
        file: the features of all joined records, the columns of all parties side by side.
        places: (n,) int64, the places of these records in the file.
        shapes: per-record shape of each party.
        labels: (n,) or None.
        ids: (n,) the user's own record ids.
        present: (n, M) bool, whether party m holds record n; None: every party holds every record.
        label_holders: (n,) int64, the party that holds a record's label, -1: no party; None: not specified.
        weights: (n,) float32, the weights in the training loss, with mean 1; None: all weigh the same.

    Guarantee: batches are bit for bit those of the same records in memory.
    """

    def __init__(
        self,
        file: MappedFile,
        places: "NDArray[np.int64]",
        shapes: Sequence[tuple[int, ...]],
        labels: Tensor | None,
        ids: "NDArray[np.generic]",
        present: Tensor | None = None,
        label_holders: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__(shapes, labels, ids, present, label_holders, weights)
        self.file = file
        self.places = places

    def rows(self, ids: Tensor) -> tuple[Tensor, ...]:
        return self._cut(torch.from_numpy(self.file.rows(self.places[ids.numpy()])))

    def features_of(self, party: int, ids: Tensor) -> Tensor:
        return self.rows(ids)[party]

    def only(self, positions: "NDArray[np.int64]") -> "MappedRecords":
        return MappedRecords(self.file, self.places[positions], self.shapes, *self._about(positions))
