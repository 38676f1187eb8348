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


@lru_cache(maxsize=1024)
def fewest_neighbours(parties: int, colluders: int, failure: float) -> int:
    """The smallest even k for which ``parted`` is at most ``failure``; parties - 1 if that is not more.

    Examples:
        >>> fewest_neighbours(32, 11, 2**-40), fewest_neighbours(256, 86, 2**-40), fewest_neighbours(8, 8, 0.0)
        (12, 32, 7)
    """
    allowed = Fraction(failure)
    return next(
        (k for k in range(2, parties - 1, 2) if parted(parties, colluders, k) <= allowed),
        parties - 1,
    )


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
