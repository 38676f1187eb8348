"""Paillier's encryption against Python integers and its own formula."""

import sys
from itertools import product
from math import gcd, lcm

import numpy as np
import pytest

from lightning_vfl.crypto.paillier import KeyPair, PublicKey, check_installed, pack, unpack
from lightning_vfl.errors import ConfigurationError


@pytest.fixture(scope="module")
def keys():
    return KeyPair(2048)


def by_formula(keys, sealed):
    """The plaintext of a ciphertext: L(c^λ mod n²) / L((1 + n)^λ mod n²), with Python's integers."""
    n, p, q = int(keys.public.n), keys._private.p, keys._private.q
    order = lcm(p - 1, q - 1)
    found, of_one = ((pow(base, order, n * n) - 1) // n for base in (int(sealed), 1 + n))
    return found * pow(of_one, -1, n) % n


def test_a_ciphertext_has_its_plaintext_and_a_random_nth_power(keys):
    n, p, q = int(keys.public.n), keys._private.p, keys._private.q
    numbers = [0, 1, -1, n // 3, 2**1000]
    sealed = keys.encrypt(numbers)
    few = [0, 2, 4]  # a power takes a tenth of a second in Python
    assert [by_formula(keys, sealed[i]) for i in few] == [numbers[i] % n for i in few]
    assert keys.decrypt(sealed) == [m % n for m in numbers]
    assert len({int(c) for c in keys.encrypt([5] * 5)}) == 5
    for m, c in ((numbers[i], sealed[i]) for i in few):
        factor = int(c) * pow(1 + m * n, -1, n * n) % (n * n)
        assert pow(factor, lcm(p - 1, q - 1), n * n) == 1  # of the n-th powers, whose order divides λ


def test_weighted_sums_are_those_of_integers(keys):
    random = np.random.default_rng(0)
    plain = [int(m) for m in random.integers(-(2**40), 2**40, 12)]
    weights = random.integers(-(2**15), 2**15, (12, 5))
    weights[:, 3], weights[:, 4] = 0, -1
    weights[3] = [1, -1, 2**15, 0, -(2**15)]
    sums = keys.public.weighted_sums(keys.encrypt(plain), weights)
    n = int(keys.public.n)
    wanted = [sum(m * int(w) for m, w in zip(plain, column, strict=True)) % n for column in weights.T]
    assert keys.decrypt(sums) == wanted


def test_blinding_adds_the_numbers_that_it_returns(keys):
    n = int(keys.public.n)
    sealed = keys.encrypt([7, -8])
    blinded, masks = keys.public.blind(sealed)
    assert keys.decrypt(blinded) == [(7 + masks[0]) % n, (-8 + masks[1]) % n]
    assert all(int(c) != int(b) for c, b in zip(sealed, blinded, strict=True))
    assert len({*masks, *keys.public.blind(sealed)[1]}) == 4


def test_blinded_ciphertexts_do_not_depend_on_the_weights():
    """All of Z*_n², each as often, for a small n; and ``blind`` is one of these maps."""
    n = 5 * 7
    units = [r for r in range(n) if gcd(r, n) == 1]
    everything = sorted(c for c in range(n * n) if gcd(c, n) == 1)
    key = PublicKey(n)
    sealed = [(1 + n * m) * pow(r, n, n * n) % (n * n) for m, r in ((3, 2), (4, 11))]
    for weights in ([[1], [0]], [[-2], [3]]):
        (c,) = key.weighted_sums(sealed, np.array(weights))
        reached = [int(c) * (1 + n * mask) * pow(r, n, n * n) % (n * n) for mask, r in product(range(n), units)]
        assert sorted(reached) == everything
    for _ in range(30):
        (blinded,), (mask,) = key.blind([sealed[0]])
        factor = int(blinded) * pow(sealed[0] * (1 + n * mask), -1, n * n) % (n * n)
        assert factor in {pow(r, n, n * n) for r in range(1, n)}


def test_numbers_side_by_side_may_be_added_and_multiplied():
    first, second = pack([3, -2, 0, -128], 12), pack([-1, -1, 5, 127], 12)
    assert unpack(-7 * first + 2 * second, 12, 4) == [-23, 12, 10, 1150]


def test_other_lengths_of_a_key_are_refused():
    with pytest.raises(ConfigurationError, match="key_bits must be one of 2048, 3072, 4096; got 1024"):
        KeyPair(1024)


def test_a_machine_without_the_packages_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    monkeypatch.setattr("lightning_vfl.crypto.paillier.find_spec", lambda name: None if name == "gmpy2" else name)
    with pytest.raises(ConfigurationError, match=r"need the package gmpy2; pip install 'lightning-vfl.encryption.'"):
        check_installed()
