"""Paillier's encryption, for sums of encrypted numbers with weights that the owner of the key does not see."""

import secrets
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY_BITS = 2048, 3072, 4096
_DIGIT = 4  # bits of a weight that are worked off at a time
_SMALL_PRIMES = [n for n in range(2, 1000) if all(n % d for d in range(2, n))]


def check_installed() -> None:
    """Accept a machine that has the packages of this encryption.

    Raises:
        ConfigurationError: if one of them is not installed.
    """
    for package in ("phe", "gmpy2"):
        if find_spec(package) is None:
            raise ConfigurationError(
                f"encrypted sums need the package {package}; pip install 'lightning-vfl[encryption]'"
            )


class PublicKey:
    r"""What everybody may compute: sums of encrypted numbers with public weights, and blinding.

    A ciphertext of m is :math:`(1 + n)^m \rho \bmod n^2`, where :math:`\rho` is a random n-th power.

    Units: plaintexts are integers modulo n; a negative number -m is n - m.
    Guarantee: a blinded ciphertext is independent of the weights that it was computed with, even for the owner of the
        key: its plaintext is uniform modulo n, and its random factor is a uniform n-th power.
    Not guaranteed: that an n of the owner is well made (the product of two primes of the same length).

    Args:
        n: the modulus.

    References:
        Paillier, "Public-Key Cryptosystems Based on Composite Degree Residuosity Classes", EUROCRYPT 1999.
        Pippenger, "On the evaluation of powers and related problems", FOCS 1976 (products of many powers).
    """

    def __init__(self, n: int) -> None:
        from gmpy2 import mpz

        self.n = mpz(n)
        self.squared = self.n * self.n

    @property
    def bytes(self) -> int:
        """The size of a ciphertext."""
        return int(self.squared.bit_length() + 7) // 8

    def weighted_sums(self, sealed: Sequence[int], weights: "NDArray[np.int64]") -> list[int]:
        """Ciphertexts of Σ_b w_bf m_b for f = 1..W, from ciphertexts of m_b (B,) and weights (B, W)."""
        return [self._weighted(sealed, column.tolist()) for column in weights.T]

    def _weighted(self, sealed: Sequence[int], weights: list[int]) -> int:
        """The product of the c_b to the power w_b: a digit of all exponents is worked off at a time."""
        from gmpy2 import invert, mpz

        modulus, most = self.squared, max((abs(w) for w in weights), default=0)
        above, below = mpz(1), mpz(1)
        for shift in reversed(range(0, most.bit_length(), _DIGIT)):
            above, below = (pow(part, 2**_DIGIT, modulus) for part in (above, below))
            buckets = ([mpz(1)] * 2**_DIGIT, [mpz(1)] * 2**_DIGIT)  # the product of the c_b with this digit
            for c, w in zip(sealed, weights, strict=True):
                if digit := (abs(w) >> shift) % 2**_DIGIT:
                    mine = buckets[w < 0]
                    mine[digit] = mine[digit] * c % modulus
            above, below = (
                part * self._joined(mine) % modulus for part, mine in zip((above, below), buckets, strict=True)
            )
        return above * invert(below, modulus) % modulus  # type: ignore[no-any-return]  # an integer

    def _joined(self, buckets: list[Any]) -> Any:
        """The product of bucket d to the power d, over all digits d, with two products for each digit."""
        running = total = buckets[0]
        for bucket in reversed(buckets[1:]):
            running = running * bucket % self.squared
            total = total * running % self.squared
        return total

    def blind(self, sealed: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ciphertexts plus fresh encryptions of uniform numbers, and these numbers."""
        from gmpy2 import mpz
        from phe.paillier import PaillierPublicKey

        own, masks = PaillierPublicKey(int(self.n)), [secrets.randbelow(int(self.n)) for _ in sealed]
        fresh = [mpz(own.raw_encrypt(mask)) for mask in masks]
        return [c * f % self.squared for c, f in zip(sealed, fresh, strict=True)], masks


class KeyPair:
    """The key of one owner, who alone can decrypt; for the owner, encryption is over ten times as fast as for others.

    The owner knows the primes p and q of n. Its random factors are powers of one random n-th power modulo p² and q²,
    with uniform exponents below p - 1 and q - 1, read from tables of its powers.

    Args:
        bits: of n; NIST SP 800-57 gives 112 bits of security for 2,048 and 128 for 3,072.

    Raises:
        ConfigurationError: for another length, and if the packages are not installed.
    """

    def __init__(self, bits: int = 2048) -> None:
        if bits not in KEY_BITS:
            raise ConfigurationError(f"key_bits must be one of {', '.join(map(str, KEY_BITS))}; got {bits}")
        check_installed()
        from phe.paillier import generate_paillier_keypair

        public, self._private = generate_paillier_keypair(n_length=bits)
        self.public = PublicKey(public.n)
        p, q = self._private.p, self._private.q
        self._powers = [_Powers(prime) for prime in (p, q)]
        self._first, self._across = p * p, pow(p * p, -1, q * q)

    def encrypt(self, plain: Sequence[int]) -> list[int]:
        """Ciphertexts of these integers."""
        n, modulus = self.public.n, self.public.squared
        sealed, (mod_p, mod_q) = [], self._powers
        for m in plain:
            one, other = mod_p.random(), mod_q.random()
            factor = one + self._first * ((other - one) * self._across % mod_q.modulus)  # the remainder theorem
            sealed.append((1 + n * (m % n)) * factor % modulus)
        return sealed

    def decrypt(self, sealed: Sequence[int]) -> list[int]:
        """The plaintexts, from 0 to n - 1."""
        return [int(self._private.raw_decrypt(int(c))) for c in sealed]


class _Powers:
    """Random powers of a random element of order near p - 1 modulo p², which are n-th powers for n = p q."""

    def __init__(self, prime: int) -> None:
        from gmpy2 import mpz, powmod

        self._order, self.modulus = prime - 1, mpz(prime) ** 2
        # an element that is an l-th power for no small l: the uniform exponents then miss no large part of the group
        divisors = [small for small in _SMALL_PRIMES if self._order % small == 0]
        base = prime
        while base % prime == 0 or any(powmod(base, self._order // small, prime) == 1 for small in divisors):
            base = secrets.randbelow(prime)
        step = powmod(base, prime, self.modulus)
        self._tables = []
        for _ in range(0, self._order.bit_length(), 8):  # one for each byte of an exponent
            row = [mpz(1)]
            for _ in range(2**8 - 1):
                row.append(row[-1] * step % self.modulus)
            self._tables.append(row)
            step = row[-1] * step % self.modulus

    def random(self) -> Any:
        """The power of a uniform exponent."""
        exponent, found = secrets.randbelow(self._order), self._tables[0][0]
        for table, digit in zip(self._tables, exponent.to_bytes(len(self._tables), "little"), strict=True):
            found = found * table[digit] % self.modulus
        return found


def pack(numbers: Sequence[int], bits: int) -> int:
    """Signed integers below 2^(bits - 1) in size, side by side in one integer.

    Examples:
        >>> unpack(pack([3, -2, 0], 8), 8, 3)
        [3, -2, 0]
    """
    return sum(number << (place * bits) for place, number in enumerate(numbers))


def unpack(packed: int, bits: int, count: int) -> list[int]:
    """The numbers of ``pack``, whose sums may have been taken in between."""
    half, numbers = 1 << (bits - 1), []
    for _ in range(count):
        number = (packed + half) % (1 << bits) - half
        numbers.append(number)
        packed = (packed - number) >> bits
    return numbers
