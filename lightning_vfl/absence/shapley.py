"""Shapley values of parties from the values of coalitions: exact, or over sampled orders."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

from lightning_vfl.absence.asked import EXACT, Subset
from lightning_vfl.streams import permutation

Numbers = NDArray[np.float64]

ORDERS = 32  # sampled orders, so that at most as many coalitions are measured as `--absent all` samples subsets


def orders_of(players: Sequence[int], seed: int) -> tuple[Subset, ...] | None:
    """The sampled orders in which parties join; None: there are at most 12 parties, and the values are exact."""
    if len(players) <= EXACT:
        return None
    draws = (permutation(len(players), seed, "shapley", number) for number in range(ORDERS))
    return tuple(tuple(players[i] for i in draw.tolist()) for draw in draws)


def coalitions_of(players: Sequence[int], orders: Sequence[Subset] | None) -> tuple[Subset, ...]:
    """Every coalition whose value is needed, each once, the largest first.

    Args:
        players: the parties that may join.
        orders: the sampled orders; None: all subsets are needed.
    """
    if orders is None:
        sizes = range(len(players), -1, -1)
        return tuple(coalition for size in sizes for coalition in combinations(sorted(players), size))
    prefixes = {tuple(sorted(order[:size])) for order in orders for size in range(len(order) + 1)}
    return tuple(sorted(prefixes, key=lambda coalition: (-len(coalition), coalition)))


def shapley(
    values: Mapping[Subset, Numbers], players: Sequence[int], orders: Sequence[Subset] | None
) -> tuple[Numbers, Numbers]:
    r"""The Shapley value of every party.

    With n players and the value v of a coalition, party m gets

    .. math:: \phi_m = \sum_{S \not\ni m} \frac{|S|! \, (n - |S| - 1)!}{n!} \, (v(S \cup m) - v(S)) ,

    the mean of what it adds over all orders in which the players can join. Sampled orders give the mean over these.

    Args:
        values: coalition (sorted numbers of players) -> its K values.
        players: the parties that may join.
        orders: sampled orders; None: exact.

    Shapes: both results (players, K).
    Guarantee: the values of all players sum to v(all) - v(nobody).

    Returns:
        The values, and their standard errors over the sampled orders; 0 if they are exact.

    Examples:
        >>> values = {(): np.array([0.0]), (0,): np.array([1.0]), (1,): np.array([2.0]), (0, 1): np.array([5.0])}
        >>> shapley(values, (0, 1), None)[0].ravel().tolist()
        [2.0, 3.0]

    References:
        Shapley, "A Value for n-Person Games", 1953; sampled orders: Castro, Gomez, Tejada, "Polynomial calculation of
        the Shapley value based on sampling", 2009.
    """
    if orders is None:
        exact = np.stack([sum(_weighted(values, players, party)) for party in players])
        return exact, np.zeros_like(exact)
    added = np.stack([_added(values, players, order) for order in orders])
    return added.mean(0), added.std(0, ddof=1) / sqrt(len(orders))


def _weighted(values: Mapping[Subset, Numbers], players: Sequence[int], party: int) -> Iterator[Numbers]:
    """What a party adds to each coalition of the others, times the share of orders in which it joins this one."""
    others = sorted(player for player in players if player != party)
    for size in range(len(players)):
        share = 1 / (len(players) * comb(len(others), size))
        for coalition in combinations(others, size):
            joined = tuple(sorted((*coalition, party)))
            yield share * (values[joined] - values[coalition])


def _added(values: Mapping[Subset, Numbers], players: Sequence[int], order: Subset) -> Numbers:
    """(players, K), what each party adds when the parties join in this order."""
    added = {}
    for place, party in enumerate(order):
        before = values[tuple(sorted(order[:place]))]
        after = values[tuple(sorted(order[: place + 1]))]
        added[party] = after - before
    return np.stack([added[party] for party in players])
