"""Masks over a random ring: what a coalition reads is what the graph without it says, by enumeration."""

import itertools
from collections import Counter
from fractions import Fraction
from hashlib import sha256
from math import comb

import numpy as np
import pytest
from scipy.stats import chisquare

from lightning_vfl.crypto import KeyPair, MaskNames, PairKeys, PairKeystream, PairMasks
from lightning_vfl.crypto.mask_graph import fewest_neighbours, parted, ring

NAMES = MaskNames("embeddings", "fit", 0, 0, 0)


def parts(graph, rest):
    """The connected parts of the graph on ``rest``, by growing each from one member."""
    left, found = set(rest), []
    while left:
        part, edge = set(), {left.pop()}
        while edge:
            part |= edge
            edge = {other for m in edge for other in graph[m] if other in left} - part
            left -= edge
        found.append(frozenset(part))
    return found


def subsets(who):
    return [some for size in range(1, len(who) + 1) for some in itertools.combinations(sorted(who), size)]


@pytest.mark.parametrize(("parties", "neighbours"), [(6, 2), (7, 4), pytest.param(8, 4, marks=pytest.mark.slow)])
def test_a_coalition_reads_the_sums_of_the_parts_that_it_leaves_and_no_other(parties, neighbours):
    """Every coalition against every set of others: does what they hide each other with cancel in the set's sum?"""
    members = tuple(range(parties))
    graph = ring(members, neighbours, b"session")
    pairs = [KeyPair() for _ in members]
    publics = {m: pair.public for m, pair in enumerate(pairs)}
    keys = [PairKeys(m, pair, publics, b"session") for m, pair in enumerate(pairs)]
    sent = [PairMasks(own).mask_of(members, NAMES, 3, 4, graph).astype(object) for own in keys]
    assert not (sum(sent) % 2**32).any()

    def shared(m, other):
        """What a colluder knows of the mask of m: the words of their pair, with the sign that m uses."""
        words = PairKeystream(keys[other].key(m, "mask", 32, *NAMES)).words(3, 4).astype(object)
        return words if m < other else -words

    for colluders in [(), *subsets(members)]:
        rest = set(members) - set(colluders)
        hidden = {m: sent[m] - sum(shared(m, other) for other in graph[m] if other in colluders) for m in rest}
        whole = parts(graph, rest)
        for some in subsets(rest):
            read = not (sum(hidden[m] for m in some) % 2**32).any()
            assert read == all(part <= set(some) or not part & set(some) for part in whole), (colluders, some)


@pytest.mark.parametrize("parties", [5, 8, 11])
def test_the_bound_is_never_below_the_share_of_coalitions_that_part_the_others(parties):
    for neighbours in range(2, parties - 1, 2):
        graph = ring(tuple(range(parties)), neighbours, b"any")
        for count in range(parties - 1):
            coalitions = itertools.combinations(range(parties), count)
            parting = sum(len(parts(graph, set(range(parties)) - set(who))) > 1 for who in coalitions)
            share = Fraction(parting, comb(parties, count))
            assert share <= parted(parties, count, neighbours)
            assert parting == 0 or count >= neighbours


def test_the_fewest_neighbours_are_the_first_that_keep_the_bound():
    for parties in (4, 9, 32, 64, 100):
        for colluders in {0, 1, parties // 5, parties // 3, parties - 2}:
            for failure in (0.0, 1e-3, 2**-40):
                fewest = fewest_neighbours(parties, colluders, failure)
                allowed = [
                    k
                    for k in range(2, parties - 1, 2)
                    if colluders < k
                    or comb(parties, 2) * comb(parties - k, colluders - k)
                    <= Fraction(failure) * comb(parties, colluders)
                ]
                assert fewest == (allowed[0] if allowed else parties - 1)


def test_a_ring_is_regular_symmetric_and_of_its_members_alone():
    for members, neighbours in (((0, 1, 2), 2), ((9, 3, 5, 1, 7), 4), (tuple(range(40)), 12)):
        graph = ring(members, neighbours, b"one")
        assert set(graph) == set(members)
        for m, others in graph.items():
            assert len(set(others)) == len(others) == neighbours
            assert m not in others
            assert all(m in graph[other] for other in others)
        assert graph == ring(tuple(reversed(members)), neighbours, b"one")


def test_every_party_is_next_to_every_other_equally_often():
    counts = Counter()
    for number in range(1500):
        for m, others in ring(tuple(range(6)), 2, sha256(bytes([number % 256, number // 256])).digest()).items():
            counts.update((m, other) for other in others if m < other)
    assert len(counts) == 15
    assert chisquare(list(counts.values())).pvalue > 1e-6


def test_members_without_a_place_in_the_ring_are_refused():
    pairs = [KeyPair() for _ in range(5)]
    keys = PairKeys(0, pairs[0], {m: pair.public for m, pair in enumerate(pairs)}, b"")
    graph = ring((0, 1, 2, 3), 2, b"")
    with pytest.raises(ValueError, match="are not those of the ring"):
        PairMasks(keys).mask_of((0, 1, 2, 3, 4), NAMES, 0, 3, graph)
    assert np.any(PairMasks(keys).mask_of((0, 1, 2, 3), NAMES, 0, 3, graph))
