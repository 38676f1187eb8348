"""What uploads tell of the columns behind them because they drift, in words for a user.

The upload of a record changes between two visits by gradients that whoever joins the embeddings has sent. Linear
bottoms then tell the columns up to rotation, if at least as many numbers are read as there are columns behind them.
``lightning_vfl.audit.attacks.drift`` computes them.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import prod
from typing import NamedTuple

from torch import nn

from lightning_vfl.networks.depth import linear_columns
from lightning_vfl.types import Parties

MANY = 1000  # epochs of a fit without a limit


class Noise(StrEnum):
    """The noise on what is read."""

    NONE = "no noise"
    CHARGED = "noise with an ε"
    UNCHARGED = "noise without an ε"


class Columns(NamedTuple):
    """The columns of a party, as its bottom reads them.

    Args:
        number: how many there are.
        linear: whether the bottom is linear in its weights.
    """

    number: int
    linear: bool


class Read(NamedTuple):
    """Numbers that are read in a round.

    Args:
        width: how many numbers a record has.
        parties: whose embeddings are added in each of them.
    """

    width: int
    parties: Parties


class Told(NamedTuple):
    """What one ``Read`` tells of the columns behind it.

    Args:
        read: the numbers.
        columns: how many columns are behind them.
        uploads: of a record.
        blurs: what keeps the columns from following exactly, in words.
        name: of the party, where one alone is read.
    """

    read: Read
    columns: int
    uploads: int
    blurs: tuple[str, ...]
    name: str

    @property
    def wide(self) -> bool:
        """Whether the numbers are at least as many as the columns."""
        return self.read.width >= self.columns

    @property
    def exact(self) -> bool:
        """Whether the columns follow up to rotation."""
        return self.uploads > 1 and not self.blurs

    @property
    def numbers(self) -> str:
        """The numbers and the columns, in words."""
        parties = self.read.parties
        if len(parties) == 1:
            return f"{self.read.width} numbers for the {self.columns} columns of party {self.name}"
        return f"sums of {self.read.width} numbers for the {self.columns} columns of {len(parties)} parties"

    def line(self, who: str) -> str | None:
        """One line before training; None: fewer numbers are read than there are columns."""
        if not self.wide:
            return None
        if self.blurs:
            follows = f"every column approximately: {' and '.join(self.blurs)} makes this harder, not safe"
        else:
            follows = (
                "every column up to rotation, and columns of two to five values exactly unless others with many values "
                "stand beside them"
            )
        follows = f"from the second epoch on {who} can compute {follows}"
        if self.uploads == 1:
            follows = f"one epoch tells {who} which records are alike; {follows}"
        advice = f"use a width well below {self.columns}, or noise with its ε"
        return f"{follows} ({self.numbers}); {advice}"

    def claim(self, who: str) -> str:
        """What the summary says where single uploads are hidden."""
        if self.uploads == 1:
            follows = f"{who} can compute which records are alike"
        elif self.exact:
            follows = f"{who} can compute them up to rotation"
        else:
            follows = f"{who} can compute them approximately; {' and '.join(self.blurs)} makes this harder, not safe"
        return f"the columns behind the sums are not hidden: {follows} ({self.numbers})"


def columns_of(bottom: nn.Module, shape: Sequence[int]) -> Columns:
    """The columns of a party: those that its bottom is linear in, such as powers, else its features."""
    linear = linear_columns(bottom)
    return Columns(prod(shape), False) if linear is None else Columns(linear, True)


def columns_told(
    reads: Sequence[Read],
    columns: Sequence[Columns],
    uploads: int,
    learns: bool = True,
    noise: Noise = Noise.NONE,
    names: Sequence[str] = (),
) -> Told | None:
    """What is told most by these numbers; None: there is nothing to tell, or noise with an ε bounds it.

    Args:
        reads: what is read in a round.
        columns: (M,) of each party; parties of a group hold the same columns, and one of them is named in ``reads``.
        uploads: of a record, which are its epochs.
        learns: whether the parties learn from gradients of whoever reads.
        noise: on what is read.
        names: of the parties; empty: their numbers.
    """
    if not learns or noise == Noise.CHARGED or uploads < 1:
        return None
    names = names or [str(party) for party in range(len(columns))]
    told = [_told(read, columns, uploads, noise, names[read.parties[0]]) for read in reads]
    return max(told, key=lambda one: (one.wide, one.exact, one.read.width / max(one.columns, 1)), default=None)


def _told(read: Read, columns: Sequence[Columns], uploads: int, noise: Noise, name: str) -> Told:
    count = sum(columns[party].number for party in read.parties)
    blurs = []
    if read.width < count:
        blurs.append("a width below the number of columns")
    if not all(columns[party].linear for party in read.parties):
        blurs.append("a hidden layer")
    if noise == Noise.UNCHARGED:
        blurs.append(str(noise))
    return Told(read, count, uploads, tuple(blurs), name)
