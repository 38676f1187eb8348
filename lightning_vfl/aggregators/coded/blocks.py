"""How N records are stacked in coded rows of K, which are cheap to compute together, and the shares of these rows."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.streams import Name, permutation
from lightning_vfl.types import Parties, Widths

if TYPE_CHECKING:
    from numpy.typing import NDArray

PADDING = -1


@dataclass(frozen=True, eq=False)
class Blocks:
    """N records in K blocks of equal length: coded row r holds the r-th record of every block.

    The last coded row is padded if K does not divide N; a padded place belongs to no record.

    Args:
        records: N.
        count: K.
        order: (N,) the record at each place, coded row after coded row; public. None: records in order.

    Shapes: places are (row, block) with row < ⌈N/K⌉ and block < K.
    Guarantee: every record has exactly one place; all padding is in the last coded row.

    Examples:
        >>> blocks = Blocks(5, 2)
        >>> blocks.at(0, blocks.rows).tolist()  # (row, block)
        [[0, 1], [2, 3], [4, -1]]
        >>> [place.tolist() for place in blocks.place(torch.tensor([4, 1]))]
        [[2, 0], [0, 1]]
    """

    records: int
    count: int
    order: "NDArray[np.int64] | None" = None

    @classmethod
    @lru_cache(maxsize=8)  # parties, server and schedule ask for the same one in every round
    def shuffled(cls, records: int, count: int, seed: int, *names: Name) -> "Blocks":
        """In the public random order that belongs to these names."""
        return cls(records, count, permutation(records, seed, "blocks", *names))

    @cached_property
    def rows(self) -> int:
        """⌈N/K⌉ coded rows."""
        return -(-self.records // self.count)

    def at(self, start: int, stop: int) -> Tensor:
        """(rows, K) int64, the records of coded rows start to stop; ``PADDING`` where there is none."""
        return torch.from_numpy(self._table[start:stop])

    def place(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Coded row and block of each record, (B,) int64 each."""
        places = ids if self.order is None else self._places[ids.to(self._places.device)].to(ids.device)
        return places // self.count, places % self.count

    def coded_rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct coded rows of these records, ascending, and which of them each record is in, (B,)."""
        last = self.__dict__.get("_last")  # parties, server and books ask for the same batch
        if last is None or last[0] is not ids:
            last = (ids, *torch.unique(self.place(ids)[0], return_inverse=True))
            self.__dict__["_last"] = last
        return last[1], last[2]

    @cached_property
    def _table(self) -> "NDArray[np.int64]":
        table = np.full(self.rows * self.count, PADDING, dtype=np.int64)
        table[: self.records] = np.arange(self.records) if self.order is None else self.order
        return table.reshape(self.rows, self.count)

    @cached_property
    def _places(self) -> Tensor:
        places = np.empty(self.records, dtype=np.int64)
        places[self.order] = np.arange(self.records)
        return torch.from_numpy(places)


@dataclass(eq=False)
class Shares:
    """What P hosted parties hold after set-up: a share of everybody's data, columns of all parties side by side.

    Args:
        holders: the P parties.
        blocks: which record is where.
        widths: (M,) W of each party, how many columns it has.
        table: (P, coded rows, Σ W), int32 if the modulus fits.
        filled: coded rows that have arrived, by sender.
    """

    holders: Parties
    blocks: Blocks
    widths: Widths
    table: Tensor
    filled: dict[int, int]

    @property
    def nbytes(self) -> int:
        """Size of the table."""
        return self.table.nbytes

    def columns(self, party: int) -> slice:
        """The columns of a party in the table."""
        end = sum(self.widths[: party + 1])
        return slice(end - self.widths[party], end)
