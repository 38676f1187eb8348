"""Which sums a masked round has, and whose embeddings are in each of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from lightning_vfl.types import Roster


@dataclass(frozen=True)
class Segments:
    """The sums of a round: a segment is one sum, and its members' masks cancel in it.

    Args:
        members: of each segment, in order of party numbers.
        of: for each party the segments that it has a part in.
        slots: all (party, segment), in order of parties and then of segments.
        first: for each party the number of its first slot.
    """

    members: tuple[tuple[int, ...], ...]
    of: tuple[tuple[int, ...], ...]
    slots: tuple[tuple[int, int], ...]
    first: tuple[int, ...]

    def part(self, h: Tensor, party: int, segment: int) -> Tensor:
        """(B, D), the columns of a party's embedding (B, segments · D) for one of its segments."""
        own = self.of[party]
        if len(own) == 1:
            return h
        width, place = h.shape[1] // len(own), own.index(segment)
        return h[:, place * width : (place + 1) * width]

    def whole(self, parts: Mapping[int, Tensor], party: int) -> Tensor:
        """(B, segments · D), a party's columns from those (B, D) of each of its segments; the inverse of ``part``."""
        own = self.of[party]
        return parts[own[0]] if len(own) == 1 else torch.cat([parts[segment] for segment in own], 1)


@lru_cache(maxsize=64)
def segments(layout: str, roster: Roster) -> Segments:
    """Layout ``sum``: one segment of all parties. ``segments``: one for each passive group and the active party C_0."""
    everybody = range(roster.parties)
    if layout == "sum":
        members: tuple[tuple[int, ...], ...] = (tuple(everybody),)
    else:
        first = () if roster.active is None else (roster.active,)
        members = tuple(tuple(sorted((*first, *group))) for group in roster.passive)
    of = tuple(tuple(number for number, others in enumerate(members) if m in others) for m in everybody)
    slots = tuple((m, number) for m in everybody for number in of[m])
    return Segments(members, of, slots, tuple(sum(len(own) for own in of[:m]) for m in everybody))
