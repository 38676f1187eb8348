"""Mini-batches of each holder's own records, in the holder's own order."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from lightning_vfl.streams import permutation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class OwnOrders:
    """Whole mini-batches of each holder's records, shuffled again after every pass.

    Args:
        held: for each holder, the positions of its records, at least one.
        batch_size: B; a holder with fewer records has all of them in a batch.
        seed: seeds the orders.

    Examples:
        >>> import numpy as np
        >>> orders = OwnOrders([np.arange(5), np.arange(5, 7)], 2, seed=0)
        >>> orders.batches, sorted(orders.batch(1, 0).tolist())
        ((2, 1), [5, 6])
    """

    def __init__(self, held: "Sequence[NDArray[np.int64]]", batch_size: int, seed: int) -> None:
        self._held = held
        self._sizes = [min(batch_size, len(own)) for own in held]
        self.batches = tuple(len(own) // size for own, size in zip(held, self._sizes, strict=True))
        self.pass_batches = sum(len(own) / size for own, size in zip(held, self._sizes, strict=True)) / len(held)
        self._seed = seed
        self._order = lru_cache(maxsize=2 * len(held))(self._shuffled)

    def batch(self, holder: int, number: int) -> "NDArray[np.int64]":
        """Mini-batch ``number`` of a holder, counted from 0 over all its passes."""
        turn, place = divmod(number, self.batches[holder])
        size = self._sizes[holder]
        return self._order(holder, turn)[place * size : (place + 1) * size]

    def rows(self, holder: int) -> int:
        """The number of records in each mini-batch of a holder."""
        return self._sizes[holder]

    def _shuffled(self, holder: int, turn: int) -> "NDArray[np.int64]":
        own = self._held[holder]
        return own[permutation(len(own), self._seed, "order", "fit", "party", holder, turn)]
