"""Quantisation for hidden sums against fractions: clip, shift, scale, round stochastically; and back."""

from fractions import Fraction
from math import floor, inf, nan, nextafter, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.aggregators.secure.codec import Shift, shift_for, uniform_words
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Roster

MOST = 2**27
WORDS = np.array([0, 1, 2**15 - 1, 2**15, 2**16 - 2, 2**16 - 1], np.uint16)
powers = st.sampled_from([Fraction(1, 8), Fraction(1), Fraction(4), Fraction(32)])
levels_of = st.sampled_from([2, 6, 256, 2**16, 10**6, MOST])


def exact(x, t, levels, word):
    """Section 3.5 with fractions; a uniform number is rounded down to 16 bits."""
    clipped = min(max(Fraction(x), -Fraction(t)), Fraction(t))
    scaled = (clipped + Fraction(t)) / (2 * Fraction(t)) * levels
    return min(floor(scaled + Fraction(int(word), 2**16)), levels - 1)


def quantised(codec, h, words):
    return np.asarray(codec.to_int(torch.as_tensor(h), np.asarray(words, np.uint16))[0])


def real(codec, total, n):
    return codec.to_real(np.array([total]), n)


@given(powers, levels_of, st.data())
def test_quantising_is_exact_in_fractions(t, levels, data):
    """For values on a grid that float64 holds beside 27 bits: beyond it, a value counts as its nearest neighbour."""
    grid = st.integers(-(2**34), 2**34).map(lambda k: float(k * t / 2**33))  # up to twice the range
    x = data.draw(st.lists(grid, min_size=1, max_size=20))
    words = data.draw(st.lists(st.integers(0, 2**16 - 1), min_size=len(x), max_size=len(x)))
    codec = Shift(float(t), levels)
    expected = [exact(value, t, levels, word) for value, word in zip(x, words, strict=True)]
    assert quantised(codec, torch.tensor(x, dtype=torch.float64), words).tolist() == expected


@given(powers, st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_float32_ends_within_a_step_of_its_clipped_value(t, x):
    codec = Shift(float(t), MOST)
    for words in (WORDS[:1], WORDS[-1:]):
        q = quantised(codec, torch.tensor(x, dtype=torch.float32), np.repeat(words, len(x)))
        assert q.dtype == np.int32
        for value, integer in zip(x, q.tolist(), strict=True):
            assert 0 <= integer <= MOST - 1
            clipped = min(max(Fraction(value), -t), t)
            assert abs(Fraction(integer) * 2 * t / MOST - t - clipped) <= Fraction(codec.step)


@pytest.mark.parametrize("levels", [2, 10, 2**16, MOST])
@pytest.mark.parametrize("t", [0.1, 1.0, 3.0, 4.0, 1e-30, 1e30])
def test_zero_is_half_of_the_levels_for_every_word(t, levels):
    words = np.arange(2**16, dtype=np.uint16)
    for zero in (0.0, -0.0):
        assert (quantised(Shift(t, levels), torch.full((2**16,), zero), words) == levels // 2).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("t", [0.5, 4.0])
def test_the_ends_of_the_range_and_what_lies_beyond(t, dtype):
    """-t is 0 for every word that does not round up; t, and everything above it, is R - 1."""
    codec = Shift(t, MOST)
    for word in WORDS:
        at = [-t, t, 1.5 * t, -1.5 * t, 3e4, -3e4]
        assert quantised(codec, torch.tensor(at, dtype=dtype), [word] * 6).tolist() == [
            0,
            MOST - 1,
            MOST - 1,
            0,
            MOST - 1,
            0,
        ]
    just_below = torch.tensor([nextafter(t, 0.0)], dtype=torch.float64)
    assert quantised(codec, just_below, [2**16 - 1]).item() == MOST - 1  # never R, which is the next range


def test_the_largest_floats_are_clipped_and_not_wrapped():
    top = torch.finfo(torch.float32).max
    assert quantised(Shift(), torch.tensor([top, -top]), [0, 0]).tolist() == [MOST - 1, 0]
    assert quantised(Shift(), torch.tensor([1e300, -1e300], dtype=torch.float64), [9, 9]).tolist() == [MOST - 1, 0]


def test_thirty_two_at_the_top_of_the_range_do_not_wrap():
    codec, n = Shift(4.0, MOST), 32
    integers = quantised(codec, torch.full((n,), 4.0), [2**16 - 1] * n)
    total = sum(int(q) for q in integers)
    assert total == n * (MOST - 1) < 2**32
    assert int(np.sum(integers.astype(np.uint32), dtype=np.uint32)) == total
    assert abs(real(codec, total, n).item() - n * 4.0) <= n * 8 / MOST


@given(powers, levels_of, st.integers(1, 200), st.data())
def test_a_sum_is_given_back_by_its_formula(t, levels, n, data):
    s = data.draw(st.integers(0, n * (levels - 1)))
    decoded = real(Shift(float(t), levels), s, n)
    assert decoded.dtype == np.float64
    expected = 2 * t / levels * s - n * t
    assert abs(Fraction(decoded.item()) - expected) <= abs(n * t) * Fraction(1, 2**50)


def test_a_sum_of_zeros_is_exactly_zero_whatever_the_range():
    for t in (4.0, 1.0, 0.7, 3.3):
        for n in range(1, 40):
            codec = Shift(t, 2**20)
            assert abs(real(codec, n * 2**19, n).item()) <= (0 if t in (4.0, 1.0) else 1e-14)
    codec = Shift(4.0, MOST)
    assert all(real(codec, n * MOST // 2, n).item() == 0.0 for n in range(1, 33))


def test_a_number_of_any_words_is_kept_within_one_step_and_right_on_average():
    """All 2^16 words: the mean of q is x to 2^-16 of a step."""
    codec = Shift(4.0, 256)
    for x in (0.1, -3.7, 2.98437, -1e-3, 3.9):
        q = quantised(codec, torch.full((2**16,), x, dtype=torch.float64), np.arange(2**16, dtype=np.uint16))
        scaled = (Fraction(x) + 4) / 8 * 256
        assert set(q.tolist()) <= {floor(scaled), floor(scaled) + 1}
        assert abs(Fraction(int(q.sum()), 2**16) - scaled) < Fraction(1, 2**16)


def test_rounding_is_unbiased_under_the_named_words():
    n, codec = 200_000, Shift(4.0, 1000)
    x = 0.6031
    q = quantised(codec, torch.full((n,), x, dtype=torch.float64), uniform_words((n,), 3, "a test"))
    scaled = (x + 4) / 8 * 1000
    up = scaled - floor(scaled)
    assert set(q.tolist()) == {floor(scaled), floor(scaled) + 1}
    z = (float((q > scaled).sum()) - n * up) / sqrt(n * up * (1 - up))
    assert abs(z) < 5


def test_words_are_uniform_and_functions_of_their_names():
    words = uniform_words((300, 700), 0, "rounding", "fit", 3)
    assert (words.shape, words.dtype) == ((300, 700), np.dtype("uint16"))
    for byte in (words & 255, words >> 8):
        assert chisquare(np.bincount(byte.ravel(), minlength=256)).pvalue > 1e-6
    neighbours = (words[:, :-1] & 15) * 16 + (words[:, 1:] & 15)
    assert chisquare(np.bincount(neighbours.ravel(), minlength=256)).pvalue > 1e-6
    assert (words == uniform_words((300, 700), 0, "rounding", "fit", 3)).all()
    others = [(1, "rounding", "fit", 3), (0, "rounding", "fit", 4), (0, "rounding", "validation", 3)]
    assert all((words != uniform_words((300, 700), *names)).mean() > 0.99 for names in others)


@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (2, 5), (4, 0, 3), (131_073,)])
def test_there_are_as_many_words_as_are_asked_for(shape):
    words = uniform_words(shape, 0, "few")
    assert words.shape == shape
    assert (words.ravel() == uniform_words((262_144,), 0, "few")[: words.size]).all()


def test_auto_is_the_largest_power_of_two_that_fits_up_to_2_27():
    for n in range(1, 201):
        fits = [2**k for k in range(1, 28) if n * 2**k <= 2**32]
        assert shift_for(4.0, "auto", n, 32).levels == fits[-1], n
        if n > 1:
            assert MaskedSum().codec(Roster.singles(n)).levels == fits[-1], n


def test_what_the_ring_cannot_hold_is_refused_with_the_levels_that_fit():
    assert MaskedSum(levels=2**27).codec(Roster.singles(32)).levels == 2**27
    with pytest.raises(ConfigurationError, match=r"33 parties.*use levels: 67108864, or auto"):
        MaskedSum(levels=2**27).among(Roster.singles(33))
    assert MaskedSum(levels=2**26).codec(Roster.singles(33)).levels == 2**26
    # in segments, a sum has the members of a group and the active party
    groups = Roster(((0,), tuple(range(1, 33)), (33,)), active=0)
    with pytest.raises(ConfigurationError, match="33 parties"):
        MaskedSum(layout="segments", levels=2**27).among(groups)
    assert MaskedSum(layout="segments", levels=2**27).codec(Roster.singles(200, active=5)).levels == 2**27
    assert [shift_for(4.0, "auto", n, 3).levels for n in (1, 2, 3, 4)] == [8, 4, 2, 2]


@pytest.mark.parametrize("levels", [0, 1, 3, -2, 2**27 + 2, 2**28, 4.0, True, "many"])
def test_levels_that_cannot_be_are_refused(levels):
    with pytest.raises(ConfigurationError, match="levels"):
        MaskedSum(levels=levels)


@pytest.mark.parametrize("clip", [0.0, -1.0, inf, nan])
def test_ranges_that_cannot_be_are_refused(clip):
    with pytest.raises(ConfigurationError, match="clip"):
        MaskedSum(clip=clip)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("place", [0, 5, 11])
def test_what_is_no_number_is_refused(value, place, dtype):
    h = torch.zeros(3, 4, dtype=dtype)
    h.view(-1)[place] = value
    with pytest.raises(ConfigurationError, match="NaN or infinity cannot be quantised"):
        Shift().to_int(h, np.zeros((3, 4), np.uint16))


@given(st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=40))
def test_the_clipped_share_is_exact(x):
    _, share = Shift(4.0).to_int(torch.tensor(x, dtype=torch.float32), np.zeros(len(x), np.uint16))
    assert share == pytest.approx(sum(abs(value) > 4.0 for value in x) / len(x), abs=1e-15)


def test_the_ends_of_the_range_are_not_clipped_and_nothing_is_no_share():
    above = nextafter(4.0, inf)
    x = torch.tensor([4.0, -4.0, above, -above], dtype=torch.float64)
    assert Shift(4.0).to_int(x, np.zeros(4, np.uint16))[1] == 0.5
    assert Shift(4.0).to_int(torch.zeros(0, 3), np.zeros((0, 3), np.uint16))[1] == 0.0


def test_quantising_leaves_its_argument_alone_and_takes_any_stride():
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    before, words = x.clone(), np.arange(48, dtype=np.uint16).reshape(8, 6) * 1000
    q = quantised(Shift(), x.T, words)
    assert torch.equal(x, before)
    assert q.tolist() == [[exact(x[c, r].item(), 4, MOST, words[r, c]) for c in range(6)] for r in range(8)]
