from functools import partial

import galois
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import PrimeField
from lightning_vfl.field.prime import is_odd_prime
from lightning_vfl.streams import stream
from tests.unit.field.oracle import elements, times

P31, P61 = 2**31 - 1, 2**61 - 1
FIELDS = [PrimeField(p) for p in (3, 11, 97, 65537, 2**31 - 19, P31, P61)]
some_field = st.sampled_from(FIELDS)


def drawn(field, data, count):
    """Elements, the extremes often among them."""
    p = field.modulus
    element = st.one_of(st.sampled_from([0, 1, p // 2, p // 2 + 1, p - 1]), st.integers(0, p - 1))
    return data.draw(st.lists(element, min_size=count, max_size=count))


@given(some_field, st.data())
def test_element_wise_arithmetic_is_that_of_the_integers(field, data):
    p = field.modulus
    x, y = drawn(field, data, 4), drawn(field, data, 4)
    a, b = torch.tensor(x), torch.tensor(y)
    assert field.add(a, b).tolist() == [(i + j) % p for i, j in zip(x, y, strict=True)]
    assert times(field, a, b).tolist() == [i * j % p for i, j in zip(x, y, strict=True)]
    assert (a.tolist(), b.tolist()) == (x, y)  # nothing is changed in place


@given(some_field, st.data(), st.integers(1, 5))
def test_totals_are_sums_of_the_integers(field, data, terms):
    p, x = field.modulus, drawn(field, data, 2 * terms * 3)
    given = torch.tensor(x).view(2, terms, 3)
    sums = [[sum(int(given[h, n, i]) for n in range(terms)) % p for i in range(3)] for h in range(2)]
    assert field.totals(given).tolist() == sums
    assert field.totals(given.view(2, terms, 3, 1)).shape == (2, 3, 1)
    assert field.totals(given[:, :, :0]).shape == (2, 0)
    for wrong in (-1, p, -(2**63), 2**63 - 1):
        given[1, terms - 1, 2] = wrong
        with pytest.raises(ConfigurationError, match=f"{wrong} is not an element modulo {p}"):
            field.totals(given)


@pytest.mark.parametrize("p", [3, 5, 11])
def test_small_fields_by_enumeration(p):
    field = PrimeField(p)
    a, b = torch.arange(p)[:, None], torch.arange(p)
    for operation, law in ((field.add, int.__add__), (partial(times, field), int.__mul__)):
        assert operation(a, b).tolist() == [[law(i, j) % p for j in range(p)] for i in range(p)]


@pytest.mark.parametrize("p", [97, 65537, P31])
def test_galois_agrees(p):
    field, other = PrimeField(p), galois.GF(p, compile="python-calculate")
    a, b = elements(field, 6, 20, seed=1), elements(field, 20, 9, seed=2)
    assert field.matmul(a, b).tolist() == (other(a.numpy()) @ other(b.numpy())).tolist()
    square = elements(field, 5, 5, seed=3)
    inverse = torch.tensor(np.linalg.inv(other(square.numpy())).tolist())
    assert torch.equal(field.matmul(square, inverse), torch.eye(5, dtype=torch.int64))


@given(some_field, st.data())
def test_lift_and_embed_are_inverse(field, data):
    x = drawn(field, data, 5)
    signed = field.lift(torch.tensor(x))
    assert signed.tolist() == [v if v <= (field.modulus - 1) // 2 else v - field.modulus for v in x]
    assert field.embed(signed).tolist() == x


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_an_integer_whose_sign_would_be_lost_is_refused(field):
    half = (field.modulus - 1) // 2
    assert field.embed(torch.tensor([-half, half])).tolist() == [half + 1, half]
    assert field.embed(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3)
    for beyond in (half + 1, -half - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(ConfigurationError, match=f"the integer {beyond} is outside ±{half}"):
            field.embed(torch.tensor([0, beyond]))


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("method", ["lift", "matmul", "totals"])
def test_elements_outside_the_field_are_refused(field, method):
    arguments = 2 if method == "matmul" else 1
    for beyond in (-1, field.modulus):
        with pytest.raises(ConfigurationError, match=f"{beyond} is not an element modulo {field.modulus}"):
            getattr(field, method)(*[torch.tensor([[1, beyond], [0, 1]])] * arguments)
    for dtype in (torch.float64, torch.int32, torch.bool):
        with pytest.raises(ConfigurationError, match=f"int64 tensors; got {dtype}"):
            getattr(field, method)(*[torch.ones(2, 2, dtype=dtype)] * arguments)


@pytest.mark.parametrize("field", [PrimeField()], ids=str)
def test_operands_that_do_not_fit_are_refused(field):
    a = torch.ones(3, 4, dtype=torch.int64)
    for x, y, words in (
        (a, a, "4 columns cannot be multiplied with one of 3 rows"),
        (a[0], a.mT, r"takes matrices; got shapes \(4,\)"),
        (a.expand(2, 3, 4), a.mT.expand(3, 4, 3), r"batches \(2,\) and \(3,\) do not broadcast"),
        (a.int(), a.mT, "int64 tensors; got torch.int32"),
        (a, a.mT.double(), "int64 tensors; got torch.float64"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            field.matmul(x, y)


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (2, "not supported"),
        (2**31 + 11, "not supported"),
        (2**61 + 1, "not supported"),
        (9, "9 is not an odd prime; use for example 11"),
    ],
)
def test_what_is_no_field_is_refused(p, words):
    with pytest.raises(ConfigurationError, match=words):
        PrimeField(p)


def test_primes_are_those_of_galois():
    """Also of numbers that pass the test for some of its bases, and next to the largest modulus."""
    pass_for_some = [2047, 1373653, 25326001, 1157839381, 8911, 29341, 41041, 825265, 1194649, 3215031]
    for number in [*range(3000), *pass_for_some, *range(2**31 - 300, 2**31)]:
        assert is_odd_prime(number) == (number > 2 and galois.is_prime(number)), number


def test_fields_of_one_modulus_are_equal():
    assert PrimeField(97) == PrimeField(97) != PrimeField(101)
    assert len({PrimeField(), PrimeField(P31), PrimeField(P61)}) == 2
    assert repr(PrimeField(97)) == "PrimeField(97)"
    assert [PrimeField().wire_bits, PrimeField(P61).wire_bits] == [31, 61]


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_random_elements_are_a_function_of_the_stream(field):
    draw = field.random((4, 5), stream(0, "masks").random_raw)
    assert draw.shape == (4, 5)
    assert torch.equal(draw, field.random([4, 5], stream(0, "masks").random_raw))
    assert not torch.equal(draw, field.random([4, 5], stream(1, "masks").random_raw))
    field.check(draw)
    assert field.random((0, 2), stream(0, "masks").random_raw).shape == (0, 2)


@pytest.mark.parametrize("p", [3, 11, 97])
def test_random_elements_are_uniform(p):
    """Chi-square with p - 1 degrees of freedom, five standard deviations."""
    n = 60_000
    counts = torch.bincount(PrimeField(p).random((n,), stream(0, "uniform", p).random_raw), minlength=p)
    chi = ((counts - n / p) ** 2 / (n / p)).sum().item()
    assert abs(chi - (p - 1)) < 5 * (2 * (p - 1)) ** 0.5 + 5


@pytest.mark.parametrize("field", [PrimeField(), PrimeField(P61)], ids=str)
def test_random_elements_reach_both_ends_evenly(field):
    draw = field.random((50_000,), stream(0, "range").random_raw).double() / field.modulus
    counts = torch.histc(draw, 50, 0, 1)
    assert ((counts - 1000) ** 2 / 1000).sum() < 49 + 5 * 98**0.5


def test_words_that_are_no_element_are_thrown_away():
    """Words made for it: p itself, and what is above it, never come out as 0 or another element."""
    for field in (PrimeField(), PrimeField(P61), PrimeField(11)):
        p, halves = field.modulus, field.wire_bits <= 32
        sources = iter([[p, p - 1, p, 5], [7, p, 2, 3]])

        def words(n, sources=sources, halves=halves):
            row = next(sources)
            return np.array(row, np.uint32).view(np.uint64) if halves else np.array(row, np.uint64)

        assert field.random((4,), words).tolist() == [p - 1, 5, 7, 2]
