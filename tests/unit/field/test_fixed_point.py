from fractions import Fraction
from math import floor, inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint, PrimeField, auto_weight_bits
from lightning_vfl.streams import stream

FIELDS = [PrimeField(), PrimeField(2**61 - 1)]
some_field = st.sampled_from(FIELDS)
reals = st.floats(-100, 100)


def words(*names):
    return stream(0, "weights", *names).random_raw


@given(st.lists(reals, min_size=1, max_size=5), st.integers(0, 20))
def test_data_are_rounded_to_the_nearest_halves_upwards(x, l_x):
    """The definition in fractions."""
    got = FixedPoint(PrimeField(), l_x, 0).quantise_data(torch.tensor(x, dtype=torch.float64))
    assert got.tolist() == [floor(Fraction(v) * 2**l_x + Fraction(1, 2)) for v in x]


def test_where_adding_a_half_would_round():
    x = torch.tensor([0.49999999999999994, 0.5, -0.5, -0.5000000000000001, 2.0**52 + 1, -1.5], dtype=torch.float64)
    assert FixedPoint(FIELDS[1], 0, 0).quantise_data(x).tolist() == [0, 1, 0, -1, 2**52 + 1, -1]


@given(st.lists(reals, min_size=1, max_size=5), st.integers(0, 20), st.integers(0, 2**20))
def test_weights_are_rounded_to_a_neighbour(w, l_w, name):
    got = FixedPoint(PrimeField(), 0, l_w).quantise_weights(torch.tensor(w, dtype=torch.float64), words(name))
    for v, integer in zip(w, got.tolist(), strict=True):
        exact = Fraction(v) * 2**l_w
        assert floor(exact) <= integer <= floor(exact) + 1
        assert abs(integer - exact) < 1 or exact == integer


@pytest.mark.parametrize("w", [0.3, -0.3, 0.5, -1.75, 1e-3, 2.9999])
def test_weights_are_rounded_without_bias(w):
    """The mean of 200,000 draws, within five standard errors; a variance of a Bernoulli."""
    n = 200_000
    got = FixedPoint(PrimeField(), 0, 0).quantise_weights(torch.full((n,), w, dtype=torch.float64), words(w.hex()))
    fraction = w - floor(w)
    assert abs(got.double().mean().item() - w) < 5 * (fraction * (1 - fraction) / n) ** 0.5


def test_the_draw_is_compared_with_the_fraction():
    """Words made for it: u = 0, just below 1/4, 1/4 and the largest, for a fraction of 1/4."""
    made = np.array([0, 2**62 - 2**11, 2**62, 2**64 - 1], np.uint64)
    for w, expected in ((2.25, [3, 3, 2, 2]), (-0.75, [0, 0, -1, -1]), (3.0, [3, 3, 3, 3])):
        weights = torch.full((4,), w, requires_grad=True)
        assert FixedPoint(PrimeField(), 0, 0).quantise_weights(weights, lambda n: made[:n]).tolist() == expected


@given(
    some_field, st.lists(st.integers(-(2**29), 2**29), min_size=1, max_size=5), st.integers(0, 20), st.integers(0, 20)
)
def test_integers_come_back_in_units(field, x, l_x, l_w):
    back = FixedPoint(field, l_x, l_w).dequantise(field.embed(torch.tensor(x)))
    assert back.dtype == torch.float64
    assert back.tolist() == [float(Fraction(v, 2 ** (l_x + l_w))) for v in x]


@given(some_field, st.integers(1, 4), st.integers(0, 2**31))
def test_a_checked_sum_is_the_sum_of_the_integers(field, parties, seed):
    """Parties at the very bound, with all signs: what the field gives is the sum in Python's integers."""
    codec = FixedPoint(field, 0, 0)
    draw = np.random.Philox(seed).random_raw
    total, expected = torch.zeros(3, 2, dtype=torch.int64), [[0, 0] for _ in range(3)]
    bound = field.half // parties
    for party in range(parties):
        x = torch.from_numpy((draw(12) % 201).astype(np.int64) - 100).reshape(3, 4)
        largest = bound // 100 // 4 if bound < 2**50 else 2**40
        w = torch.from_numpy((draw(8) % (2 * largest + 1)).astype(np.int64) - largest).reshape(4, 2)
        if party == 0:
            x, w = torch.full((3, 4), -100), torch.full((4, 2), largest)
        codec.check_overflow(x, w, parties)
        total = field.add(total, field.matmul(field.embed(x), field.embed(w)))
        for i, row in enumerate(x.tolist()):
            for j, column in enumerate(w.mT.tolist()):
                expected[i][j] += sum(a * b for a, b in zip(row, column, strict=True))
    assert field.lift(total).tolist() == expected


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("parties", [1, 2, 3, 28])
def test_the_bound_itself(field, parties):
    """One integer product exactly at (p - 1) / (2 |S|) passes if it is exact in float64, one more is refused."""
    codec = FixedPoint(field, 3, 4)
    bound = field.half // parties
    one = torch.ones(1, 1, dtype=torch.int64)
    below = bound if bound < 2**53 else int(bound * (1 - 2**-48))
    codec.check_overflow(-one, one * below, parties)
    for beyond in (bound + 1, bound + 2**40):
        with pytest.raises(
            ConfigurationError, match=rf"l_x = 3 and l_w = 4 overflow.* = {bound} for p = {field.modulus}"
        ):
            codec.check_overflow(one, one * beyond, parties)


@given(st.integers(2**52, 2**60), st.integers(0, 2), st.integers(1, 40))
def test_rounding_never_lets_too_much_pass(first, more, terms):
    """Sums above 2^53, where float64 rounds: what passes is within the bound in Python's integers."""
    field = PrimeField(2**61 - 1)
    w = torch.tensor([[first]] + [[more]] * terms)
    x = torch.ones(1, terms + 1, dtype=torch.int64)
    exact = first + more * terms
    for summands in {max(1, field.half // exact), field.half // exact + 1}:
        try:
            FixedPoint(field, 0, 0).check_overflow(x, w, summands)
        except ConfigurationError:
            assert exact * (1 + 1e-12) > field.half // summands
        else:
            assert exact <= field.half // summands


def test_the_largest_row_and_the_signs_count():
    codec = FixedPoint(PrimeField(), 0, 0)
    x = torch.tensor([[[1, 1], [2**20, -(2**20)]], [[0, 0], [1, 0]]])
    w = torch.tensor([[2**9], [2**9]])
    with pytest.raises(ConfigurationError, match=r"reaches 1\.07374e"):
        codec.check_overflow(x, w, 1)
    codec.check_overflow(x[:, :1], w, 1)
    codec.check_overflow(x[:, :0], w, 1)
    codec.check_overflow(x[..., :0], w[:0], 1)


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(8, 26))
def test_the_setting_it_names_fits(seed, parties, l_w):
    """Whatever the rounding: the same weights with the l_w of the message pass."""
    field, l_x = PrimeField(), 6
    uniform = torch.from_numpy(np.random.Philox(seed).random_raw(200).astype(np.float64) * 2.0**-63 - 1)
    data, weights = uniform[:120].reshape(6, 20), uniform[120:160].reshape(20, 2) * 8
    codec = FixedPoint(field, l_x, l_w)
    x = codec.quantise_data(data)
    try:
        codec.check_overflow(x, codec.quantise_weights(weights, words(seed)), parties)
    except ConfigurationError as error:
        named = str(error).split("use l_w = ")[1].split(" ")[0]
        smaller = FixedPoint(field, l_x, int(named))
        assert int(named) < l_w
        for draw in range(5):
            smaller.check_overflow(x, smaller.quantise_weights(weights, words(seed, draw)), parties)


def test_if_no_weight_bits_fit():
    codec = FixedPoint(PrimeField(), 30, 2)
    with pytest.raises(ConfigurationError, match="no l_w fits; use fewer bits in l_x or a larger modulus"):
        codec.check_overflow(torch.full((1, 4), 2**29), torch.full((4, 1), 4), 2)


@given(some_field, st.integers(0, 2**31), st.integers(1, 28), st.floats(1, 100))
def test_auto_leaves_its_headroom_and_not_much_more(field, seed, parties, headroom):
    uniform = torch.from_numpy(np.random.Philox(seed).random_raw(60).astype(np.float64) * 2.0**-63 - 1)
    x = FixedPoint(field, 8, 0).quantise_data(uniform[:40].reshape(4, 10))
    weights = uniform[40:].reshape(10, 2)
    l_w = auto_weight_bits(field, 8, x, weights, parties, headroom)
    codec = FixedPoint(field, 8, l_w)
    codec.check_overflow(x, codec.quantise_weights(weights * headroom * (1 - 1e-12), words(seed)), parties)
    if l_w < 60:  # one bit more would not have held the headroom, a rounding aside
        finer = FixedPoint(field, 8, l_w + 1)
        scaled = (x.abs().double() @ (weights.abs() * headroom)).max().item() * 2.0**finer.l_w
        largest = weights.abs().max().item() * headroom * 2.0**finer.l_w
        assert scaled + x.abs().sum(1).max() > field.half // parties * 0.999 or largest + 1 > field.half


def test_auto_with_zero_weights_and_without_any():
    field, x = PrimeField(), torch.tensor([[3, -4]])
    assert auto_weight_bits(field, 0, x, torch.zeros(2, 1), 5) == 60
    assert auto_weight_bits(field, 0, x[:, :0], torch.zeros(0, 1), 5) == 60


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights": torch.full((2, 1), 1e9)}, "no l_w fits: data with l_x = 8 and a headroom of 4"),
        ({"weights": torch.tensor([[nan], [1.0]])}, "NaN or infinite"),
        ({"weights": torch.tensor([[inf], [1.0]])}, "NaN or infinite"),
        ({"headroom": 0.5}, "headroom must be .*; got 0.5"),
        ({"headroom": inf}, "headroom must be .*; got inf"),
        ({"summands": 0}, "summands must be .*; got 0"),
        ({"x": torch.ones(1, 2)}, "int64 tensors"),
        ({"x": torch.ones(1, 3, dtype=torch.int64)}, "cannot be multiplied"),
    ],
)
def test_bad_calls_of_auto_are_refused(change, words):
    good = {"field": PrimeField(), "l_x": 8, "x": torch.tensor([[3, 4]]), "weights": torch.ones(2, 1), "summands": 3}
    auto_weight_bits(**good)
    with pytest.raises(ConfigurationError, match=words):
        auto_weight_bits(**{**good, **change})


@pytest.mark.parametrize("bits", [-1, 61])
def test_bad_scales_are_refused(bits):
    with pytest.raises(ConfigurationError, match=f"l_x .*; got {bits}"):
        FixedPoint(PrimeField(), bits, 0)
    with pytest.raises(ConfigurationError, match=f"l_w .*; got {bits}"):
        FixedPoint(PrimeField(), 0, bits)


def test_what_cannot_be_quantised_is_refused():
    codec = FixedPoint(PrimeField(), 10, 10)
    for value in (nan, inf, -inf):
        with pytest.raises(ConfigurationError, match="NaN or infinity"):
            codec.quantise_data(torch.tensor([1.0, value]))
        with pytest.raises(ConfigurationError, match="NaN or infinity"):
            codec.quantise_weights(torch.tensor([1.0, value]), words())
    with pytest.raises(ConfigurationError, match=r"must be floating point; got torch\.int64"):
        codec.quantise_data(torch.tensor([1]))
    with pytest.raises(ConfigurationError, match=r"summands must be .*; got 0"):
        codec.check_overflow(torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64), 0)
    assert codec.quantise_data(torch.empty(0, 3)).shape == (0, 3)


@given(st.floats(1e6, 1e9), st.sampled_from([-1, 1]))
def test_a_number_too_large_names_the_scale_that_fits(value, sign):
    codec, x = FixedPoint(PrimeField(), 20, 0), torch.tensor([sign * value], dtype=torch.float64)
    with pytest.raises(ConfigurationError, match=r"l_x = 20 takes .* outside") as caught:
        codec.quantise_data(x)
    named = int(str(caught.value).split("use l_x = ")[1])
    assert FixedPoint(PrimeField(), named, 0).quantise_data(x).abs().item() <= 2**30 - 1
    with pytest.raises(ConfigurationError, match="l_x = "):
        FixedPoint(PrimeField(), named + 1, 0).quantise_data(x)


def test_a_number_too_large_for_any_scale():
    with pytest.raises(ConfigurationError, match=r"l_w = 0 takes 2e\+09 .* use a larger modulus"):
        FixedPoint(PrimeField(), 0, 0).quantise_weights(torch.tensor([2e9]), words())
