from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.simulation import draws
from lightning_vfl.simulation.draws import BLOCK, uniforms
from lightning_vfl.streams import stream

requests = st.integers(0, 10**12)


@given(requests, st.integers(0, 2**63 - 1), st.integers(1, 9))
def test_a_draw_is_the_top_53_bits_of_its_word(request, seed, entities):
    """Entity m owns words [64 m, 64 m + 64) of the stream of its block."""
    words = stream(seed, "delay", request // BLOCK).random_raw(entities * BLOCK)
    expected = [(int(words[m * BLOCK + request % BLOCK]) >> 11) / 2**53 for m in range(entities)]
    drawn = uniforms(seed, request, entities, "delay")
    assert drawn.dtype == np.float64
    assert drawn.tolist() == expected


@given(requests, st.integers(1, 9), st.integers(0, 9))
def test_more_entities_change_nobodys_draw(request, entities, more):
    few, many = uniforms(1, request, entities, "x"), uniforms(1, request, entities + more, "x")
    assert few.tolist() == many[:entities].tolist()


@given(st.lists(requests, min_size=1, max_size=20), st.randoms())
def test_the_order_of_calls_does_not_matter(asked, random):
    forwards = {request: uniforms(2, request, 3, "x").tolist() for request in asked}
    draws.uniform_block.cache_clear()
    random.shuffle(asked)
    assert {request: uniforms(2, request, 3, "x").tolist() for request in asked} == forwards


def test_names_and_seeds_are_apart():
    drawn = [uniforms(seed, 0, 4, *names).tolist() for seed in (0, 1) for names in (("a",), ("b",), ("a", 0))]
    assert len({number for numbers in drawn for number in numbers}) == 6 * 4


def test_what_is_remembered_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        uniforms(0, 0, 3, "x")[0] = 0.5


def test_draws_are_uniform():
    """Over entities and requests alike: mean, variance and neighbours' correlation within five standard errors."""
    drawn = np.array([uniforms(0, request, 20, "x") for request in range(2000)])
    n = drawn.size
    assert 0.0 <= drawn.min() < drawn.max() < 1.0
    assert abs(drawn.mean() - 1 / 2) < 5 / sqrt(12 * n)
    assert abs(drawn.var() - 1 / 12) < 5 / sqrt(180 * n)
    for shifted in (drawn[1:] - 0.5, drawn[:, 1:] - 0.5):
        other = (drawn[:-1] if len(shifted) < len(drawn) else drawn[:, :-1]) - 0.5
        assert abs((shifted * other).mean()) < 5 / (12 * sqrt(shifted.size))
