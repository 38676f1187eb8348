"""Rounding passes against fractions and numpy."""

from fractions import Fraction
from math import floor, inf, nan

import numpy as np
import pytest

from lightning_vfl.field.kernels import largest_in_columns, nearest, neighbours, reaches
from lightning_vfl.streams import stream

VALUES = [0.0, -0.0, 0.5, -0.5, 0.25, 1.75, -3.3, 1e-30, -1e-30, 123.456, 2.0**20 + 0.5, 0.49999999999999994]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bits", [0, 8, 20])
def test_neighbours(dtype, bits):
    x = np.array(VALUES * 20, dtype)
    words, out = stream(0, "neighbours", bits).random_raw(x.size), np.empty(x.size, np.int64)
    words[:3], words[12:15] = 0, 2**64 - 1
    assert neighbours(x, words, bits, 2.0**50, out)
    for value, word, found in zip(x.tolist(), words.tolist(), out.tolist(), strict=True):
        scaled = Fraction(value) * 2**bits
        below = floor(scaled)
        assert found == below + (Fraction(word >> 11, 2**53) < Fraction(float(scaled) - below))


@pytest.mark.parametrize("value", [nan, inf, -inf, 2.0**50, -(2.0**50)])
def test_neighbours_outside_are_noticed(value):
    x, out = np.array([0.5] * 9 + [value]), np.empty(10, np.int64)
    assert not neighbours(x, np.zeros(10, np.uint64), 1, 2.0**50, out)
    x[-1] = 2.0**49
    assert neighbours(x, np.zeros(10, np.uint64), 1, 2.0**50, out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bits", [0, 8, 24])
def test_nearest(dtype, bits):
    x = np.array(VALUES, dtype)
    out = np.empty_like(x)
    nearest(x, dtype(2.0**bits), dtype(0.5), out)
    for value, found in zip(x.tolist(), out.tolist(), strict=True):
        scaled = dtype(value) * dtype(2.0**bits)
        below = np.floor(scaled)
        assert Fraction(found) == (Fraction(float(below)) + (scaled - below >= 0.5)) / 2**bits


def test_bounds_of_products():
    draw = np.random.Generator(np.random.PCG64(0))
    x, w = draw.normal(size=(7, 9)).astype(np.float32), draw.integers(-1000, 1000, (9, 4))
    sizes, out, ends = np.empty(9), np.empty(3), np.array([2, 3, 9])
    largest_in_columns(x, sizes)
    assert sizes.tolist() == np.abs(x).max(0).tolist()
    reaches(sizes, w, ends, out)
    for bound, begin, end in zip(out, (0, 2, 3), ends, strict=True):
        exact = max(sum(Fraction(sizes[k]) * abs(int(w[k, i])) for k in range(begin, end)) for i in range(4))
        assert abs(Fraction(bound) - exact) <= exact * Fraction(1, 2**45)
    largest_in_columns(x[:0], sizes)
    assert not sizes.any()
