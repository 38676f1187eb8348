"""Homomorphic encryption of what parties upload: CKKS (Microsoft SEAL through tenseal) and Paillier (phe).

Two ways of using each. Number by number: a weight matrix is encrypted entry by entry, and multiplied by a plaintext
batch in nested loops, which is what vFedSec's tables count. Packed: many numbers in a ciphertext, and additions only,
which is all that a hidden sum needs.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_vfl.aggregators.secure.codec import Shift, uniform_words

Floats = NDArray[np.float64]
Rows = Sequence[Sequence[Any]]

CHAIN = (60, 40, 40, 60)  # bits of the primes that tenseal's tutorials use at N = 8192; vFedSec's bytes fit it too
KEY_BITS = 2048


def module(name: str) -> ModuleType:
    """A package of the extra ``bench``; without it, the program ends in one line."""
    try:
        return import_module(name)
    except ImportError:
        raise SystemExit(f'this benchmark needs {name.split(".")[0]}: pip install -e ".[bench]"') from None


def big_integers() -> str:
    """What phe computes with."""
    return "gmpy2" if module("phe.util").HAVE_GMP else "Python's integers (gmpy2 is not installed)"


class NumberByNumber(ABC):
    """A ciphertext for each entry of a matrix, products with plaintext in nested loops."""

    @abstractmethod
    def encrypt(self, weights: Rows) -> list[list[Any]]:
        """Every entry (k, o) of the weights."""

    @abstractmethod
    def product(self, x: Rows, weights: Rows) -> list[list[Any]]:
        """Plaintext (b, k) times encrypted (k, o)."""

    @abstractmethod
    def decrypt(self, entries: Rows) -> Floats:
        """What the product holds."""

    @abstractmethod
    def size(self, entry: Any) -> int:
        """Bytes of an entry as it is sent."""


class NumberCKKS(NumberByNumber):
    """SEAL's own functions, one plaintext number a ciphertext: N = 8192, 128 bits of security."""

    def __init__(self) -> None:
        self.seal = seal = module("tenseal.sealapi")
        settings = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        settings.set_poly_modulus_degree(8192)
        settings.set_coeff_modulus(seal.CoeffModulus.Create(8192, list(CHAIN)))
        context = seal.SEALContext(settings, True, seal.SEC_LEVEL_TYPE.TC128)
        keys, public = seal.KeyGenerator(context), seal.PublicKey()
        keys.create_public_key(public)
        self.encoder, self.evaluator = seal.CKKSEncoder(context), seal.Evaluator(context)
        self.encryptor, self.decryptor = seal.Encryptor(context, public), seal.Decryptor(context, keys.secret_key())

    def encoded(self, value: float) -> Any:
        plain = self.seal.Plaintext()
        self.encoder.encode(value, 2.0**40, plain)
        return plain

    def encrypted(self, value: float) -> Any:
        entry = self.seal.Ciphertext()
        self.encryptor.encrypt(self.encoded(value), entry)
        return entry

    def encrypt(self, weights: Rows) -> list[list[Any]]:
        return [[self.encrypted(w) for w in row] for row in weights]

    def product(self, x: Rows, weights: Rows) -> list[list[Any]]:
        return [[self.inner(row, [w[o] for w in weights]) for o in range(len(weights[0]))] for row in x]

    def inner(self, x: Sequence[float], weights: Sequence[Any]) -> Any:
        terms: list[Any] = []
        for value, weight in zip(x, weights, strict=True):
            term = self.seal.Ciphertext()
            self.evaluator.multiply_plain(weight, self.encoded(value), term)
            if terms:
                self.evaluator.add_inplace(terms[0], term)
            else:
                terms.append(term)
        return terms[0]

    def decrypt(self, entries: Rows) -> Floats:
        return np.array([[self.decrypted(entry) for entry in row] for row in entries])

    def decrypted(self, entry: Any) -> float:
        plain = self.seal.Plaintext()
        self.decryptor.decrypt(entry, plain)
        return float(self.encoder.decode_double(plain)[0])

    def size(self, entry: Any) -> int:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "entry"
            entry.save(str(file))
            return file.stat().st_size


class NumberPaillier(NumberByNumber):
    """phe as its documentation uses it: floats with an exponent, a key of 2048 bits."""

    def __init__(self) -> None:
        self.public, self.private = module("phe.paillier").generate_paillier_keypair(n_length=KEY_BITS)

    def encrypt(self, weights: Rows) -> list[list[Any]]:
        return [[self.public.encrypt(w) for w in row] for row in weights]

    def product(self, x: Rows, weights: Rows) -> list[list[Any]]:
        return [[self.inner(row, [w[o] for w in weights]) for o in range(len(weights[0]))] for row in x]

    def inner(self, x: Sequence[float], weights: Sequence[Any]) -> Any:
        total = weights[0] * x[0]
        for value, weight in zip(x[1:], weights[1:], strict=True):
            total += weight * value
        return total

    def decrypt(self, entries: Rows) -> Floats:
        return np.array([[self.private.decrypt(entry) for entry in row] for row in entries])

    def size(self, entry: Any) -> int:
        return len(entry.ciphertext().to_bytes(KEY_BITS // 4, "big"))


class Packed(ABC):
    """Many numbers in a ciphertext; the server adds, the holder of the secret key decrypts.

    Args:
        slots: numbers in a ciphertext.
        sample: so many ciphertexts of a tensor are made, and their cost multiplied; None: all.
        tolerance: of a sum of n numbers, over n.
    """

    slots: int
    sample: int | None
    tolerance: float

    @abstractmethod
    def encrypt(self, values: Floats) -> list[bytes]:
        """What a party uploads for (n,) numbers."""

    @abstractmethod
    def add(self, uploads: Sequence[Sequence[bytes]]) -> list[Any]:
        """The server's sum."""

    @abstractmethod
    def decrypt(self, total: Sequence[Any], n: int) -> Floats:
        """The sum of n parties' numbers."""


class PackedCKKS(Packed):
    """tenseal's vectors, real numbers as they are; public-key encryption, 128 bits of security.

    Args:
        degree: N; half of it are slots.
        chain: bits of the primes; all but the last are sent.
        scale: bits behind the point.
    """

    sample = None
    tolerance = 1e-4

    def __init__(self, degree: int = 8192, chain: Sequence[int] = CHAIN, scale: int = 40) -> None:
        self.tenseal = ts = module("tenseal")
        self.secret = ts.context(ts.SCHEME_TYPE.CKKS, degree, -1, list(chain))
        self.secret.global_scale = 2.0**scale
        self.public = ts.context_from(self.secret.serialize(save_secret_key=False))
        self.slots = degree // 2

    def encrypt(self, values: Floats) -> list[bytes]:
        parts = (values[start : start + self.slots].tolist() for start in range(0, len(values), self.slots))
        return [self.tenseal.ckks_vector(self.public, part).serialize() for part in parts]

    def add(self, uploads: Sequence[Sequence[bytes]]) -> list[Any]:
        totals = []
        for parts in zip(*uploads, strict=True):
            total, *others = (self.tenseal.ckks_vector_from(self.public, part) for part in parts)
            for other in others:
                total.add_(other)
            totals.append(total.serialize())
        return totals

    def decrypt(self, total: Sequence[Any], n: int) -> Floats:
        vectors = (self.tenseal.ckks_vector_from(self.secret, part) for part in total)
        return np.concatenate([vector.decrypt() for vector in vectors])


class PackedPaillier(Packed):
    """Quantised numbers, 32 bits each, side by side in a plaintext of 2048 bits: 63, as it must stay below n.

    Sums of at most 32 numbers of 27 bits stay in their 32 bits.
    """

    slots = KEY_BITS // 32 - 1
    sample = 6

    def __init__(self) -> None:
        self.public, self.private = module("phe.paillier").generate_paillier_keypair(n_length=KEY_BITS)
        self.codec = Shift()
        self.tolerance = self.codec.step
        self.calls = 0

    def encrypt(self, values: Floats) -> list[bytes]:
        self.calls += 1
        words = uniform_words(values.shape, 0, "paillier", self.calls)
        integers = self.codec.to_int(torch.from_numpy(values), words)[0].numpy().astype("<u4")
        parts = (integers[start : start + self.slots].tobytes() for start in range(0, len(integers), self.slots))
        return [
            self.public.raw_encrypt(int.from_bytes(part, "little")).to_bytes(KEY_BITS // 4, "big") for part in parts
        ]

    def add(self, uploads: Sequence[Sequence[bytes]]) -> list[Any]:
        mulmod = module("phe.util").mulmod
        totals = []
        for parts in zip(*uploads, strict=True):
            total = 1
            for part in parts:
                total = mulmod(total, int.from_bytes(part, "big"), self.public.nsquare)
            totals.append(total)
        return totals

    def decrypt(self, total: Sequence[Any], n: int) -> Floats:
        plain = b"".join(self.private.raw_decrypt(part).to_bytes(4 * self.slots, "little") for part in total)
        integers = np.frombuffer(plain, "<u4").astype(np.int64)
        real: Floats = self.codec.to_real(integers, n)
        return real
