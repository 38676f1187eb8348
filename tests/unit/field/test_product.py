import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import PrimeProduct
from tests.unit.field.oracle import elements, matmul


def test_the_default_is_the_largest():
    ring = PrimeProduct()
    assert 2**62 < ring.modulus < 2**63
    assert ring.modulus == 2097143 * 2097133 * 2097131


def test_the_order_of_the_primes_does_not_matter():
    one, other = PrimeProduct((8209, 4194301)), PrimeProduct((4194301, 8209))
    a, b = elements(one, 3, 4), elements(one, 4, 5)
    assert one == other
    assert torch.equal(one.matmul(other.prepare(a, "left"), b), matmul(a, b, one.modulus))
    assert repr(other) == "PrimeProduct((8209, 4194301))"


def test_both_operands_may_be_prepared():
    ring = PrimeProduct()
    a, b = elements(ring, 3, 4), elements(ring, 4, 5)
    got = ring.matmul(ring.prepare(a, "left"), ring.prepare(b, "right"))
    assert torch.equal(got, matmul(a, b, ring.modulus))


@given(st.integers(1, 2**20))  # no multiple of the other primes too
def test_multiples_of_a_prime_have_no_inverse(k):
    ring = PrimeProduct()
    with pytest.raises(ConfigurationError, match="a multiple of 2097133 has no inverse"):
        ring.inverse(torch.tensor([1, k * 2097133]))


@pytest.mark.parametrize(
    "primes", [(), (8209, 8209), (8191,), (4194319,), (2097143, 2097133, 2097131, 8209), (4194301, 4194287, 4194277)]
)
def test_primes_that_make_no_modulus_are_refused(primes):
    with pytest.raises(ConfigurationError, match="make no modulus"):
        PrimeProduct(primes)


def test_a_composite_number_is_refused():
    with pytest.raises(ConfigurationError, match="8211 is no odd prime"):
        PrimeProduct((8211, 8209))
