"""Which embeddings the server can compute together with colluding parties, by linear algebra over masked sums."""

from collections.abc import Collection, Iterator
from fractions import Fraction
from itertools import combinations

from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.types import Roster

Slot = tuple[int, int]  # a party and a segment: one of the embeddings, or the part of one, that enter a sum
Vector = list[Fraction]


def fallen(
    layer: SecureLayer, roster: Roster, colluders: Collection[int], lies: bool = False, unchanged: bool = False
) -> frozenset[Slot]:
    """The (party, segment) whose embedding a coalition reads exactly, to rounding, for records that it holds itself.

    The unknowns of a record are the parts of the embedding of each group. The coalition knows those of the groups that
    it has a member in, and one sum, of the groups that the server chooses. An embedding falls if it is in the span of
    what the coalition knows. With recovery, all embeddings fall to a coalition that can put both secrets of a party
    together.

    Guarantee: exact for one round of sums and shares; with ``unchanged``, for as many rounds as the server likes.
    Not guaranteed: anything about gradients, and about what a sum of several tells. Of ``PoissonBinomial`` it is the
        draws that fall, not the embeddings.

    Args:
        layer: the sums, and who can undo masks.
        roster: the parties.
        colluders: the parties of the coalition; the server is in it.
        lies: the server says what it likes about who is called and who is lost, instead of calling everybody and losing
            nobody. Keys are those of the parties: it does not replace them.
        unchanged: the coalition knows the sums of one record over every set of groups that parties accept, of
            embeddings that do not change in between: the server leaves out whom it likes, or parties are absent, and
            no party refuses a set because of an earlier one (``subtractable_records`` of ``seat.yaml``). False: each
            record is in one sum, or in sums of one set.
    """
    sums, coalition = layer.segments(roster), set(colluders)
    honest = [(m, segment) for m, segment in sums.slots if m not in coalition]
    if layer.recovery is not None:
        n, c = roster.parties, len(coalition)
        if c >= layer.recovery.needed(n) or (lies and c >= 2 * layer.recovery.needed(n) - n):
            return frozenset(honest)
    group_of = {m: number for number, group in enumerate(roster.groups) for m in group}
    known = {group_of[m] for m in coalition}
    read = set()
    for m, segment in honest:
        inside = sorted({group_of[other] for other in sums.members[segment]})
        choices = list(_choices(layer, roster, inside, lies or unchanged))
        for together in [choices] if unchanged else [[summed] for summed in choices]:
            if not any(group_of[m] in summed for summed in together):
                continue
            rows = [_vector(summed, inside) for summed in together]
            # of a record that an honest member of a group holds, the others of the group hold nothing
            rows += [_vector((group,), inside) for group in known - {group_of[m]} if group in inside]
            if _in_span(_vector((group_of[m],), inside), rows):
                read.add((m, segment))
                break
    return frozenset(read)


def tolerated(layer: SecureLayer, roster: Roster, lies: bool = False, unchanged: bool = False) -> int:
    """The largest c so that no coalition of c parties with the server reads an embedding; -1: it needs no party."""
    for count in range(roster.parties):
        if any(fallen(layer, roster, who, lies, unchanged) for who in combinations(range(roster.parties), count)):
            return count - 1
    return roster.parties


def _choices(layer: SecureLayer, roster: Roster, inside: list[int], lies: bool) -> Iterator[tuple[int, ...]]:
    """The groups that may be summed: all, or what parties let a lying server choose."""
    if not lies or layer.layout == "segments":
        yield tuple(inside)
        return
    least = 1 if layer.recovery is None else layer.recovery.needed(roster.parties)
    for count in range(1 if layer.allow_single else 2, len(inside) + 1):
        for some in combinations(inside, count):
            if sum(len(roster.groups[group]) for group in some) >= least:
                yield some


def _vector(groups: Collection[int], inside: list[int]) -> Vector:
    return [Fraction(int(group in groups)) for group in inside]


def _in_span(target: Vector, rows: list[Vector]) -> bool:
    """Whether a vector is a linear combination of others, by elimination over the rationals."""
    return _rank([*rows, target]) == _rank(rows)


def _rank(rows: list[Vector]) -> int:
    left, rank = [list(row) for row in rows], 0
    for column in range(len(rows[0])):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        rank += 1
        left = [[a - row[column] / pivot[column] * b for a, b in zip(row, pivot, strict=True)] for row in left]
    return rank
