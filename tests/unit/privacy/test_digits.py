"""The shown ε against exact fractions."""

from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.privacy import rounded_up, shown


@given(st.floats(1e-200, 1e200))
def test_the_shown_epsilon_is_the_next_number_of_four_digits(epsilon):
    up = rounded_up(epsilon)
    assert float(f"{up:.3e}") == up
    assert rounded_up(up) == up
    assert Fraction(epsilon) <= Fraction(up) <= Fraction(epsilon) * (1 + Fraction(1001, 10**6))


@given(st.integers(1000, 9999), st.integers(-6, 6), st.floats(1e-3, 1e3))
def test_a_budget_of_four_digits_decides_as_the_exact_epsilon(digits, power, factor):
    budget = float(f"{digits}e{power}")
    for epsilon in (budget, budget * factor, budget * (1 + 1e-12), budget * (1 - 1e-12)):
        assert (rounded_up(epsilon) <= budget) == (epsilon <= budget)


@pytest.mark.parametrize(("epsilon", "text"), [(0.0, "0"), (inf, "inf"), (1.00001, "1.001"), (9.9991, "10")])
def test_the_printed_form(epsilon, text):
    assert shown(epsilon) == text
