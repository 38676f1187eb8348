"""Rounded data as real numbers, and sums of field elements, against fractions and Python's integers."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.field import FixedPoint, PrimeField
from tests.unit.field.oracle import elements

FIELDS = [PrimeField(97), PrimeField(), PrimeField(2**61 - 1)]
widths = st.sampled_from([torch.float32, torch.float64])


def nearest(x, l_x):
    """The definition: halves upwards."""
    return Fraction(floor(Fraction(x) * 2**l_x + Fraction(1, 2)), 2**l_x)


def check(values, l_x, dtype):
    """A float holds the value of an integer times 2^-l_x exactly, or data could not be quantised without loss."""
    x = torch.tensor(values, dtype=dtype)
    codec = FixedPoint(PrimeField(2**61 - 1), l_x, 0)
    kept = x.clone()
    rounded = codec.round_data(x)
    assert rounded.dtype == dtype
    assert torch.equal(x, kept)  # not in place
    assert [Fraction(v) for v in rounded.tolist()] == [nearest(v, l_x) for v in x.tolist()]
    assert [Fraction(i, 2**l_x) for i in codec.quantise_data(x).tolist()] == [Fraction(v) for v in rounded.tolist()]


@given(st.lists(st.floats(-(2.0**12), 2.0**12, width=32), min_size=1, max_size=6), st.integers(0, 24), widths)
def test_rounded_data_are_the_integers_in_units(values, l_x, dtype):
    check(values, l_x, dtype)


@given(st.lists(st.floats(-(2.0**30), 2.0**30), min_size=1, max_size=6), st.integers(0, 24))
def test_rounded_data_are_the_integers_in_units_for_every_float64(values, l_x):
    check(values, l_x, torch.float64)


@given(st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=6), st.integers(0, 12), widths)
def test_halves_go_upwards(halves, l_x, dtype):
    check([(n + 0.5) * 2.0**-l_x for n in halves], l_x, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("l_x", [0, 1, 8, 20])
def test_where_adding_a_half_would_round(dtype, l_x):
    """The neighbours of halves and of 0, subnormals, and numbers that have no fraction left."""
    step = np.finfo(np.float32 if dtype == torch.float32 else np.float64)
    near = [half * (1 + sign * float(step.eps)) for half in (0.5, -0.5, 1.5, -1.5) for sign in (-1, 0, 0.5, 1)]
    tiny = [0.0, float(step.smallest_subnormal), -float(step.smallest_subnormal), -1e-30, 1e-30]
    large = [8388607.5, -8388607.5, 8388608.0, -16777215.0, 2.0**33 + 2.0**10]
    check([v * 2.0**-l_x for v in near] + tiny + [v * 2.0**-l_x for v in large], l_x, dtype)


def test_rounding_again_changes_nothing():
    x = torch.from_numpy(np.random.Philox(1).random_raw(1000).astype(np.float64) * 2.0**-60 - 8).float()
    codec = FixedPoint(PrimeField(), 5, 0)
    once = codec.round_data(x)
    assert torch.equal(codec.round_data(once), once)
    assert ((once - x).abs() <= 2.0**-6).all()


def test_no_data_are_rounded_to_none():
    assert FixedPoint(PrimeField(), 8, 0).round_data(torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("summands", [1, 2, 3, 4, 5, 8, 9, 28, 40])
def test_sums_of_the_largest_elements_do_not_wrap_around(field, summands):
    p = field.modulus
    largest = torch.full((summands, 2, 3), p - 1)
    assert field.sum(largest).tolist() == [[(summands * (p - 1)) % p] * 3] * 2
    assert torch.equal(largest, torch.full((summands, 2, 3), p - 1))


@given(st.sampled_from(FIELDS), st.integers(1, 40), st.integers(0, 2**20))
def test_a_sum_is_that_of_the_integers(field, summands, seed):
    x = elements(field, summands, 3, 2, seed=seed)
    columns = x.flatten(1).T.tolist()
    assert field.sum(x).flatten().tolist() == [sum(column) % field.modulus for column in columns]
    assert field.sum(x.mT.contiguous().mT).flatten().tolist() == field.sum(x).flatten().tolist()


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("summands", [1, 5])
def test_a_sum_is_memory_of_its_own(field, summands):
    x = elements(field, summands, 4)
    kept = x.clone()
    field.sum(x).zero_()
    assert torch.equal(x, kept)
