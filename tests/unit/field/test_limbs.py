import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import plan
from lightning_vfl.field.limbs import SHORTEST, SPLITS, balanced

P31, P61 = 2**31 - 1, 2**61 - 1
MODULI = (3, 5, 7, 11, 97, 257, 65537, 2097143, 4194301, 2**26 - 5, 2**30 - 35, P31, 2**40 + 15, 2**53 + 5, P61)
odd = st.integers(1, 2**60 - 1).map(lambda k: 2 * k + 1)


def digits(c, count, bits):
    """The definition: the lowest digit in [-2^(bits-1), 2^(bits-1)), again and again, and what is left."""
    out = []
    for _ in range(count - 1):
        low = (c + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        out.append(low)
        c = (c - low) // 2**bits
    return [*out, c]


@given(odd, st.integers(1, 4), st.data())
def test_the_bound_holds_for_every_digit_of_every_residue(p, count, data):
    limbs = balanced(p, count)
    c = data.draw(st.integers(-(p - 1) // 2, (p - 1) // 2))
    for residue in (c, (p - 1) // 2, -((p - 1) // 2), 0):
        split = digits(residue, count, limbs.bits)
        assert sum(d << (limbs.bits * i) for i, d in enumerate(split)) == residue
        assert max(map(abs, split)) <= limbs.bound


@pytest.mark.parametrize("p", [3, 5, 11, 97, 257, 4099])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_bound_is_reached(p, count):
    """By enumeration: it is no larger than need be."""
    limbs = balanced(p, count)
    half = (p - 1) // 2
    reached = max(abs(d) for c in range(-half, half + 1) for d in digits(c, count, limbs.bits))
    assert limbs.bound - 1 <= reached <= limbs.bound


@given(st.integers(0, 2**40), odd)
def test_no_sum_of_a_chunk_passes_2_to_the_53(n, p):
    how = plan(n, p)
    assert how.chunk >= 1
    assert how.chunk * how.few.bound * how.many.bound <= 2**53
    assert how.chunk >= min(n, SHORTEST)


@pytest.mark.parametrize("p", MODULI)
def test_fewest_products(p):
    """No earlier split would have held as many terms."""
    for n in (1, 2, 7, 8, 9, 64, 255, 256, 257, 1024, 10**6):
        how = plan(n, p)
        for few, many in SPLITS:
            if few * many >= how.products:
                break
            assert 2**53 // (balanced(p, few).bound * balanced(p, many).bound) < min(n, SHORTEST)


def test_the_stated_figures():
    """A 31-bit element by signed 16-bit limbs: two products, exact for 256 terms."""
    how = plan(1024, P31)
    assert (how.few.count, how.many.count, how.many.bits, how.chunk) == (1, 2, 16, 256)
    assert (2**30 - 1) * 2**15 * 256 <= 2**53 < (2**30 - 1) * 2**15 * 257
    assert plan(7, P31).products == 2
    assert plan(2048, 4194301).products == plan(8192, 2097143).products == 1
    assert plan(2048, 4194301).chunk == 2048
    assert plan(1024, P61).products == 8


@pytest.mark.parametrize(
    ("n", "p", "words"),
    [
        (-1, 11, "number of terms must be"),
        (4, 10, "modulus 10"),
        (4, 1, "modulus 1"),
        (4, 2**61 + 1, "modulus"),
    ],
)
def test_what_has_no_plan_is_refused(n, p, words):
    with pytest.raises(ConfigurationError, match=words):
        plan(n, p)
