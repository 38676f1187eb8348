"""Which parties of a sum share a mask, if not every two of them: those that are near each other in a random ring."""

from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from math import comb
from typing import TYPE_CHECKING

from lightning_vfl.crypto.keys import encoded

if TYPE_CHECKING:
    from collections.abc import Mapping


def parted(parties: int, colluders: int, neighbours: int) -> Fraction:
    r"""An upper bound on the probability that the honest parties of a ``ring`` fall apart, 0 to any number.

    The order of the ring is random, so the colluders stand at random places. The others fall apart only if two disjoint
    runs of k / 2 places are all colluders'. There are fewer than n (n - 1) / 2 pairs of runs, and each is theirs with
    probability

    .. math:: \binom{n - k}{c - k} \Big/ \binom{n}{c}.

    Args:
        parties: n, in the ring.
        colluders: c of them.
        neighbours: k, an even number.

    References:
        Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, section 3: a Harary
        graph of parties in random order.

    Examples:
        >>> parted(9, 3, 4), parted(9, 4, 4)
        (Fraction(0, 1), Fraction(2, 7))
    """
    if colluders < neighbours:
        return Fraction(0)
    runs = parties * (parties - 1) // 2
    return Fraction(runs * comb(parties - neighbours, colluders - neighbours), comb(parties, colluders))


def opened(parties: int, colluders: int, neighbours: int, lost: int) -> Fraction:
    r"""An upper bound on the probability that a server that lies about who is lost reads more than one sum, or a party.

    Every party shares the secrets of a round with its k neighbours and itself, and any t = k + 1 - L of these give them
    back, so that any L parties may be lost. A party reveals a share of one secret of each other party, once t parties
    among its neighbours and itself have signed who is lost.

    With fewer than a = 2t - (k + 1) colluders among a party's neighbours, never both of its secrets are revealed. The
    masks between parties that have revealed shares then stay unknown, because their mask secrets stay hidden. So a sum
    that is read contains the neighbours of its members that have revealed shares. It can end at a place of the ring
    only if colluders have t - 1 - k / 2 of the next k / 2 places, and a second sum needs two such ends:

    .. math:: n P[H(n - 1, c, k) \ge a] + \binom{n}{2} P[H(n, c, k) \ge a - 1]

    with the hypergeometric number H of colluders at k places.

    Args:
        parties: n, in the ring.
        colluders: c of them.
        neighbours: k, an even number.
        lost: L.

    References:
        Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, sections 3 and 4.

    Examples:
        >>> opened(8, 1, 4, 1), opened(8, 2, 4, 1)
        (Fraction(0, 1), Fraction(6, 1))
    """
    least = neighbours + 1 - 2 * lost  # a
    beside_one = _tail(parties - 1, colluders, neighbours, least)
    in_two_runs = _tail(parties, colluders, neighbours, least - 1)
    return parties * beside_one + parties * (parties - 1) // 2 * in_two_runs


def _tail(places: int, marked: int, drawn: int, least: int) -> Fraction:
    """P[at least so many of the drawn places are marked], exactly."""
    if least <= 0:
        return Fraction(1)
    ways = sum(comb(marked, i) * comb(places - marked, drawn - i) for i in range(least, min(marked, drawn) + 1))
    return Fraction(ways, comb(places, drawn))


@lru_cache(maxsize=1024)
def fewest_neighbours(parties: int, colluders: int, failure: float, lost: int | None = None) -> int:
    """The smallest even k for which ``parted`` is at most ``failure``; parties - 1 if that is not more.

    With ``lost``, the number of parties that may be lost while neighbours share secrets: for which ``opened`` is.

    Examples:
        >>> fewest_neighbours(32, 11, 2**-40), fewest_neighbours(256, 86, 2**-40), fewest_neighbours(8, 8, 0.0)
        (12, 32, 7)
        >>> fewest_neighbours(32, 11, 2**-40, lost=2), fewest_neighbours(256, 86, 2**-40, lost=13)
        (16, 86)
    """
    allowed = Fraction(failure)

    def fails(neighbours: int) -> bool:
        if lost is None:
            return parted(parties, colluders, neighbours) > allowed
        # where colluders are expected to reach the bound, no sum of tails is needed to see that it is too large
        usual = (neighbours + 1 - 2 * lost) * parties <= colluders * neighbours
        return usual or opened(parties, colluders, neighbours, lost) > allowed

    return next((k for k in range(2, parties - 1, 2) if not fails(k)), parties - 1)


@lru_cache(maxsize=64)
def ring(members: tuple[int, ...], neighbours: int, session: bytes) -> "Mapping[int, tuple[int, ...]]":
    """For each member the k others that stand next to it in a ring, half of them on each side.

    Guarantee: a function of its arguments; symmetric. For a session that nobody knew before the parties were chosen,
        every order of the ring is equally likely, and so is every order that is left without some members. It stays
        connected without any k - 1 members.

    Args:
        members: their numbers, each once, in any order.
        neighbours: k, even, below the number of members.
        session: public bytes that nobody has chosen.

    Examples:
        >>> graph = ring((0, 1, 2, 3, 4), 2, b"session")
        >>> [len(others) for others in graph.values()], all(m in graph[other] for m in graph for other in graph[m])
        ([2, 2, 2, 2, 2], True)
    """
    order = sorted(members, key=lambda member: sha256(encoded(("mask ring", session, member))).digest())
    steps = [step for step in range(-(neighbours // 2), neighbours // 2 + 1) if step]
    return {member: tuple(order[(place + step) % len(order)] for step in steps) for place, member in enumerate(order)}
