"""The server's half of the Secure Layer: which sums a round has, who is in them, and how lost masks are removed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.messages import common
from lightning_vfl.aggregators.secure.recovery import WORD, Sharing, round_masks, seeds_of, unmask
from lightning_vfl.crypto.keys import SIZE
from lightning_vfl.errors import MalformedMessage
from lightning_vfl.types import Parties, Roll, Roster
from lightning_vfl.wire import Message, ServerView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    UInts = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Segments:
    """The sums of a round: a segment is one sum, and its members' masks cancel in it.

    Args:
        whole: a sum without one of its members is absent.
        members: of each segment, in order of party numbers.
        of: for each party the segments that it has a part in.
        slots: all (party, segment), in order of parties and then of segments.
    """

    whole: bool
    members: tuple[Parties, ...]
    of: tuple[Parties, ...]
    slots: tuple[tuple[int, int], ...]

    @property
    def largest(self) -> int:
        """The most members that a sum has; 1: there is no sum."""
        return max(map(len, self.members), default=1)

    def counted(self, roll: Roll) -> list[Parties]:
        """For each segment, the members whose uploads are in their sum; nobody if the segment is absent."""
        included = {*roll.included_parties}
        counted = []
        for members in self.members:
            there = tuple([m for m in members if m in included])
            counted.append(() if self.whole and there != members else there)
        return counted

    def columns(self, width: int, roll: Roll) -> Tensor:
        """(D_out,) bool, False in the segments that are absent; ``width`` is that of one segment."""
        return torch.tensor([bool(members) for members in self.counted(roll)]).repeat_interleave(width)

    def part(self, h: Tensor, party: int, segment: int) -> Tensor:
        """(B, D), the columns of a party's embedding (B, segments · D) for one of its segments."""
        own = self.of[party]
        if len(own) == 1:
            return h
        width = h.shape[1] // len(own)
        place = own.index(segment)
        return h[:, place * width : (place + 1) * width]


@lru_cache(maxsize=64)
def segments(layout: str, roster: Roster) -> Segments:
    """Layout ``sum``: one segment of all parties. ``segments``: one for each passive group and the active party C_0."""
    everybody = range(roster.parties)
    if layout == "sum":
        members: tuple[Parties, ...] = (tuple(everybody),)
    else:
        first = () if roster.active is None else (roster.active,)
        members = tuple(tuple(sorted((*first, *group))) for group in roster.passive)
    of = tuple(tuple(number for number, others in enumerate(members) if m in others) for m in everybody)
    slots = tuple((m, number) for m in everybody for number in of[m])
    return Segments(layout == "segments", members, of, slots)


@dataclass(frozen=True)
class RingSums:
    r"""Sums in Z_{2^bits} over sets of parties. Everything here is public: the server has no key.

    Args:
        layout: which sums there are.
        bits: of the ring, at most 32.
        sharing: how the masks of lost parties are removed; None: they are not.
    """

    layout: Literal["sum", "segments"]
    bits: int
    sharing: Sharing | None

    def needed(self, parties: int) -> int:
        """How many parties have to answer in the last leg."""
        return 1 if self.sharing is None else self.sharing.answers(parties)

    def add(self, pieces: "Sequence[UInts]") -> "UInts":
        """The sum of at least one piece, in the ring."""
        total = pieces[0].copy()
        for piece in pieces[1:]:
            total += piece
        if self.bits < 8 * total.itemsize:
            total &= WORD(2**self.bits - 1)
        return total

    def recover(self, total: "UInts", keys: Message, revealed: Message, view: ServerView) -> None:
        """Remove the masks that did not cancel from the sum of the included parties' uploads, in place."""
        if self.sharing is None:
            return
        parties = view.roster.parties
        told = {m: piece.numpy().tobytes() for m, piece in keys.by_sender.items()}
        session = common(content[SIZE:] for content in told.values()) or b""
        if others := [m for m, content in told.items() if content[SIZE:] != session]:
            raise MalformedMessage(f"party {others[0]} names another order of the ring than most; send the keys again")
        circles = self.sharing.circles(parties, session)
        seeds = seeds_of(revealed.pieces, revealed.senders, circles, self.sharing.threshold(parties))
        included = view.roll.included_parties
        survivors = {m: seeds[m] for m in included}
        # in a ring, parties that are not called may have keys, and the others have masked with them
        lost = {m: seed for m, seed in seeds.items() if m not in survivors and any(seed)}
        publics = {m: content[:SIZE] for m, content in told.items()}
        names = round_masks(view.names, view.rows)
        unmask(total, survivors, lost, publics, self.bits, names, view.names.round, circles, session)
