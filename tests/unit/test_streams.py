from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.streams import permutation, seed_of, seed_torch, stream

names = st.lists(st.one_of(st.text(max_size=8), st.integers(0, 2**40)), max_size=4).map(tuple)


@given(st.integers(0, 2**63), names, names)
def test_streams_are_equal_exactly_when_their_names_are(seed, one, other):
    same = stream(seed, *one).random_raw(4).tolist() == stream(seed, *other).random_raw(4).tolist()
    assert same == (repr(one) == repr(other))


def test_text_and_number_are_different_names():
    assert stream(0, "1").random_raw() != stream(0, 1).random_raw()
    assert stream(0, "a", "b").random_raw() != stream(0, "ab").random_raw()


def test_a_stream_never_changes_between_versions():
    """Committed figures: a change of these breaks the resumption of every run there is."""
    assert stream(0, "order", "fit", 0).random_raw(2).tolist() == [11734860537045124984, 2018495346873016172]
    assert permutation(8, 0, "order", "fit", 0).tolist() == [4, 6, 3, 1, 5, 0, 7, 2]


@given(st.integers(0, 200), st.integers(0, 5))
def test_permutation_holds_every_number_once(n, seed):
    assert sorted(permutation(n, seed, "x").tolist()) == list(range(n))


def test_permutations_of_three_are_uniform():
    """All 6 orders, chi-square with 5 degrees of freedom at 1e-6: 35.9."""
    draws = 6000
    orders = [tuple(permutation(3, seed, "uniform").tolist()) for seed in range(draws)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert sum((c - draws / 6) ** 2 / (draws / 6) for c in counts) < 35.9


def test_seed_torch_puts_the_generator_into_a_state_of_its_name():
    seed_torch(torch.device("cpu"), 0, "networks", 1)
    first = torch.rand(5)
    torch.rand(100)
    seed_torch(torch.device("cpu"), 0, "networks", 1)
    assert torch.equal(first, torch.rand(5))
    seed_torch(torch.device("cpu"), 0, "networks", 2)
    assert not torch.equal(first, torch.rand(5))


def test_a_stream_leaves_numpys_global_generator_alone():
    before = np.random.get_state()[1].copy()
    stream(0, "x").random_raw(10)
    assert (np.random.get_state()[1] == before).all()


@pytest.mark.parametrize("bits", [63])
def test_seed_of_fits_what_libraries_take(bits):
    seeds = [seed_of(s, "split") for s in range(100)]
    assert all(0 <= seed < 2**bits for seed in seeds)
    assert all(a != b for a, b in pairwise(sorted(seeds)))
