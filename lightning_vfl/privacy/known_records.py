"""The records of a privacy account, known again by their ids: in another stage, another process and another fit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.trained.id_hashes import hashed_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.int64]


class KnownRecords:
    """Keyed hashes of the ids of an account's records, in the order of their positions in the account.

    Guarantee: an id has the same position as long as the account exists, whether it is a number or its text.
    Not guaranteed: secrecy of the ids, see ``TrainedIds``. Two ids with the same hash of 64 bits are one record, which
        is then charged for both; among a million ids this has a chance of 3e-8.

    Args:
        key: 32 hexadecimal digits.
        hashes: (N,) int64, each once.

    Examples:
        >>> known = KnownRecords("00" * 16)
        >>> known.add(known.hashed(["a7", "b3"]))
        >>> known.positions(known.hashed(["b3", "c1"])).tolist()
        [1, -1]
    """

    def __init__(self, key: str, hashes: "Hashes | None" = None) -> None:
        self.key = key
        self.hashes: Hashes = np.zeros(0, np.int64) if hashes is None else hashes
        self._order: Hashes | None = None  # positions by rising hash; None: not computed since the last ``add``

    def __len__(self) -> int:
        return len(self.hashes)

    def hashed(self, ids: "Sequence[object] | NDArray[np.generic]") -> "Hashes":
        """(n,) the hashes of these ids; a million take a second."""
        return hashed_ids(self.key, ids)

    def positions(self, hashes: "Hashes") -> "Hashes":
        """(n,) the positions of these records in the account; -1: the record is not known."""
        if not len(self.hashes):
            return np.full(len(hashes), -1, np.int64)
        if self._order is None:
            self._order = np.argsort(self.hashes, kind="stable")
        places = np.searchsorted(self.hashes, hashes, sorter=self._order)
        candidates = self._order[np.minimum(places, len(self.hashes) - 1)]
        return np.where(self.hashes[candidates] == hashes, candidates, -1)

    def unknown(self, hashes: "Hashes") -> "Hashes":
        """The hashes that are not known, each once, in their order."""
        new = hashes[self.positions(hashes) < 0]
        return new[np.sort(np.unique(new, return_index=True)[1])]

    def add(self, hashes: "Hashes") -> None:
        """Give further records the next positions."""
        self.hashes = np.concatenate([self.hashes, hashes])
        self._order = None
