"""With how many others a party of a masked sum shares a mask."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import ceil
from typing import Any, Self

from lightning_vfl.checks import positive, within
from lightning_vfl.crypto import fewest_neighbours
from lightning_vfl.errors import ConfigurationError


@dataclass(frozen=True)
class Neighbours:
    """Masks between the neighbours of a random ring, so that work grows with n k and not with n² of a sum of n parties.

    Guarantee: to a server with at most the stated share of colluders in a sum, the other parties' uploads are
        indistinguishable from uniform words with the same sum, but with probability ``failure`` for each set of
        members in a key period.
        With ``recovery`` the same holds for a server that lies about who is lost, for each key period.
    Not guaranteed: with more colluders, that the others do not fall apart: the server then reads the sum of each part.

    Args:
        colluders: the share of a sum's parties that may collude with the server; rounded up to whole parties.
        failure: the probability that the others fall apart, for one set of members in one period of keys, and for
            colluders that were not chosen after the ring; 0: certainty, with more neighbours than colluders.
        smallest: the number of parties from which on the ring is used; smaller sums have a mask for every pair.
        dropouts: with ``recovery``, the share of all parties that may be lost in a round or absent from it, whichever
            they are; rounded up to whole parties.

    References:
        Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, section 3.

    Examples:
        >>> [Neighbours().of(n) for n in (31, 32, 64, 256, 784)]
        [None, 12, 22, 32, 36]
        >>> [Neighbours().sharing(n) for n in (31, 32, 64, 256)]
        [None, 16, 32, 86]
    """

    colluders: float = 1 / 3
    failure: float = 2.0**-40
    smallest: int = 32
    dropouts: float = 0.05

    def __post_init__(self) -> None:
        within("colluders of neighbours", self.colluders, 0, below=1)
        within("failure of neighbours", self.failure, 0, below=1)
        positive("smallest of neighbours", self.smallest, whole=True)
        within("dropouts of neighbours", self.dropouts, 0, below=1)

    @classmethod
    def read(cls, setting: "Self | Mapping[str, Any] | str") -> "Self | None":
        """The neighbours that a recipe gives as ``auto``, ``all`` (None: every pair has a mask) or settings.

        Raises:
            ConfigurationError: for anything else.
        """
        if isinstance(setting, cls):
            return setting
        if setting in ("auto", "all"):
            return cls() if setting == "auto" else None
        if isinstance(setting, Mapping) and set(setting) <= {field.name for field in fields(cls)}:
            return cls(**setting)
        raise ConfigurationError(f"neighbours must be auto, all or {{colluders: 0.25}}; got {setting!r}")

    def colluding(self, members: int) -> int:
        """How many of the members of a sum may collude with the server."""
        return ceil(self.colluders * members)

    def losing(self, parties: int) -> int:
        """How many of all parties may be lost or absent."""
        return ceil(self.dropouts * parties)

    def of(self, members: int, lost: int | None = None) -> int | None:
        """With how many others each of so many members shares a mask; None: with all of them.

        ``lost``: how many of them may be lost, where secrets are shared with neighbours too; None: they are not.
        """
        if members < self.smallest:
            return None
        neighbours = fewest_neighbours(members, self.colluding(members), self.failure, lost)
        return neighbours if neighbours < members - 1 else None

    def sharing(self, parties: int) -> int | None:
        """The same with recovery, of all parties."""
        return self.of(parties, self.losing(parties))
