import pytest
import torch

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
    assert torch.equal(one.matmul(a, b), matmul(a, b, one.modulus))
    assert torch.equal(other.matmul(a, b), one.matmul(a, b))
    assert repr(other) == "PrimeProduct((8209, 4194301))"


@pytest.mark.parametrize(
    "primes", [(), (8209, 8209), (8191,), (4194319,), (2097143, 2097133, 2097131, 8209), (4194301, 4194287, 4194277)]
)
def test_primes_that_make_no_modulus_are_refused(primes):
    with pytest.raises(ConfigurationError, match="do not make a modulus"):
        PrimeProduct(primes)


def test_a_composite_number_is_refused():
    with pytest.raises(ConfigurationError, match="8211 is not an odd prime"):
        PrimeProduct((8211, 8209))
