"""The shares of everybody's data that parties hold after the set-up."""

from dataclasses import dataclass

from torch import Tensor

from lightning_vfl.aggregators.coded.blocks import Blocks
from lightning_vfl.types import Parties


@dataclass(eq=False)
class Shares:
    """What P hosted parties hold after set-up: a share of everybody's data, columns of all parties side by side.

    Args:
        holders: the P parties.
        blocks: which record is where.
        offsets: (M + 1,) where each party's columns begin.
        table: (P, coded rows, Σ W), int32 if the modulus fits.
        filled: coded rows that have arrived, by sender.
    """

    holders: Parties
    blocks: Blocks
    offsets: tuple[int, ...]
    table: Tensor
    filled: dict[int, int]

    @property
    def nbytes(self) -> int:
        """Size of the table."""
        return self.table.nbytes

    def columns(self, party: int) -> slice:
        """The columns of a party in the table."""
        return slice(self.offsets[party], self.offsets[party + 1])

    def width(self, party: int) -> int:
        """W of a party."""
        return self.offsets[party + 1] - self.offsets[party]
