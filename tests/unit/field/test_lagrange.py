from fractions import Fraction
from itertools import combinations
from math import prod

import galois
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import PrimeField, interpolate, lagrange_matrix
from tests.unit.field.oracle import elements

P31, P61 = 2**31 - 1, 2**61 - 1


@given(st.sampled_from([11, 97, 65537, P31, P61]), st.data())
def test_the_definition_in_fractions(p, data):
    """The integer numerators over the integer denominators, brought into the field at the end."""
    n = data.draw(st.integers(1, 6))
    points = data.draw(st.lists(st.integers(0, min(p - 1, 1000)), min_size=n, max_size=n, unique=True))
    at = data.draw(st.lists(st.integers(-5, 1000), max_size=4))
    for row, t in zip(lagrange_matrix(points, at, p).tolist(), at, strict=True):
        for j, element in enumerate(row):
            others = [x for x in points if x != points[j]]
            exact = prod((Fraction(t - x, points[j] - x) for x in others), start=Fraction(1))
            assert element == exact.numerator * pow(exact.denominator, -1, p) % p


@pytest.mark.parametrize("p", [97, 65537, P31])
def test_galois_agrees(p):
    other = galois.GF(p, compile="python-calculate")
    points, at = [1, 5, p - 1, p // 2, 7], [0, 5, p - 2, 3]
    matrix = lagrange_matrix(points, at, p)
    for j in range(len(points)):
        unit = other([int(i == j) for i in range(len(points))])
        assert galois.lagrange_poly(other(points), unit)(other(at)).tolist() == matrix[:, j].tolist()


@pytest.mark.parametrize("p", [11, P31, P61])
def test_shapes_and_the_identity(p):
    points = [3, p - 1, 0, p // 2]
    matrix = lagrange_matrix(points, points, p)
    assert matrix.dtype == torch.int64
    assert torch.equal(matrix, torch.eye(4, dtype=torch.int64))
    assert lagrange_matrix(points, [], p).shape == (0, 4)
    assert lagrange_matrix([4], [9, 2], p).tolist() == [[1], [1]]  # a constant
    assert lagrange_matrix(range(3), range(3, 5), p).shape == (2, 3)


@pytest.mark.parametrize("p", [97, P31, P61])
def test_rows_add_up_to_one(p):
    """The polynomial 1 has value 1 everywhere."""
    for row in lagrange_matrix([2, 3, 9, p - 5], [0, 50, p // 2, p - 1], p).tolist():
        assert sum(row) % p == 1


@pytest.mark.parametrize("field", [PrimeField(97), PrimeField(), PrimeField(P61)], ids=str)
def test_any_k_plus_t_shares_decode(field):
    """K = 2 blocks and T = 1 mask over M = 6 parties: all 20 subsets of three shares, and two are too few."""
    betas, alphas = [1, 2, 3], [4, 5, 6, 7, 8, 9]
    blocks = elements(field, 3, 4, 2, seed=1)
    shares = interpolate(field, blocks, betas, alphas)
    assert shares.shape == (6, 4, 2)
    for subset in combinations(range(6), 3):
        chosen = [alphas[i] for i in subset]
        assert torch.equal(interpolate(field, shares[list(subset)], chosen, betas), blocks)
    for subset in combinations(range(6), 2):
        chosen = [alphas[i] for i in subset]
        assert not torch.equal(interpolate(field, shares[list(subset)], chosen, betas), blocks)


@pytest.mark.parametrize("field", [PrimeField(97), PrimeField(), PrimeField(P61)], ids=str)
def test_values_of_a_polynomial_in_integers(field):
    p, coefficients = field.modulus, [5, field.modulus // 2, field.modulus - 1, 3]
    points, at = [1, 10, 20, 30], [0, 2, 96, 40]

    def f(x):
        return sum(c * x**k for k, c in enumerate(coefficients)) % p

    values = torch.tensor([f(x) for x in points])
    assert interpolate(field, values, points, at).tolist() == [f(x) for x in at]
    assert interpolate(field, values[:, None, None], points, at).shape == (4, 1, 1)
    assert interpolate(field, values[:, None, None][:, :0], points, at).shape == (4, 0, 1)


@pytest.mark.parametrize(
    ("points", "p", "words"),
    [
        ([1, 2, 1], 11, "the points 1 and 1 cannot be told apart modulo 11"),
        ([1, 12], 11, "the points 1 and 12"),
        ([0, 3], 9, "the points 0 and 3 cannot be told apart modulo 9"),
        ([], 11, "no points to interpolate from"),
        ([1], 1, "modulus 1"),
        ([1], 2**63 + 29, "does not fit into int64"),
    ],
)
def test_points_that_are_not_distinct_are_refused(points, p, words):
    with pytest.raises(ConfigurationError, match=words):
        lagrange_matrix(points, [0], p)


def test_values_for_other_points_are_refused():
    for values in (torch.ones(3, 2, dtype=torch.int64), torch.tensor(1)):
        with pytest.raises(ConfigurationError, match="do not belong to 2 points"):
            interpolate(PrimeField(), values, [1, 2], [0])


@pytest.mark.parametrize("field", [PrimeField(), PrimeField(P61)], ids=str)
@pytest.mark.parametrize("terms", [3, 9])
def test_many_polynomials_are_done_in_pieces(field, terms, monkeypatch):
    values = elements(field, terms, 50, seed=2)
    points, at = range(terms), range(20, 24)
    whole = interpolate(field, values, points, at)
    assert torch.equal(whole, field.matmul(lagrange_matrix(points, at, field.modulus), values))
    monkeypatch.setattr(type(field), "columns_at_once", lambda self, terms: 7)
    assert torch.equal(interpolate(field, values, points, at), whole)
