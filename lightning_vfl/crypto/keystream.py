"""Unpredictable uniform random words, and a reproducible replacement for simulations."""

import os
from typing import TYPE_CHECKING

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from lightning_vfl.streams import Name, key_of, stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Words = Callable[[int], NDArray[np.uint64]]

BLOCK = 16  # bytes of an AES block, by which older versions of ``update_into`` need a larger output buffer
ZEROS = bytes(2**18)  # encrypting zeros gives the keystream itself
PLAIN = memoryview(ZEROS)  # slicing a memoryview makes no copy


class Keystream:
    """AES-256 in counter mode with a key from the operating system; no part of the keystream is used twice.

    Units: 64-bit words.
    Guarantee: computationally indistinguishable from uniform words, and independent of every other object's words: a
        copy or a forked process gets its own key, and a pickle has no key.
    Not guaranteed: reproducibility (on purpose); erasure of keys from memory.

    References:
        NIST SP 800-38A (counter mode), implemented by the ``cryptography`` package.

    Examples:
        >>> bool((Keystream().words(4) == Keystream().words(4)).any())
        False
    """

    def __init__(self) -> None:
        self._rekey()

    def words(self, n: int) -> "NDArray[np.uint64]":
        """The next n words of the keystream."""
        if self._process != os.getpid():  # a forked process would continue the same stream
            self._rekey()
        size = 8 * n
        out = np.empty(n + BLOCK // 8, np.uint64)
        target = out.view(np.uint8).data
        for start in range(0, size, len(ZEROS)):
            count = min(len(ZEROS), size - start)
            self._encryptor.update_into(PLAIN[:count], target[start : start + count + BLOCK])
        return out[:n]

    def _rekey(self) -> None:
        self._process = os.getpid()
        self._encryptor = Cipher(AES(os.urandom(32)), CTR(bytes(BLOCK))).encryptor()

    def __reduce__(self) -> tuple[type["Keystream"], tuple[()]]:
        return Keystream, ()


def insecure_words(seed: int, *names: Name) -> "Words":
    """The function that returns the next n words of seed and names, instead of a ``Keystream``'s.

    INSECURE: for tests and simulations that compare messages bit for bit.
    """
    return stream(seed, "insecure secrets", *names).random_raw


def keyed_words(key: bytes) -> "Words":
    """The function that returns the next n words of AES-256 in counter mode under a secret key, from its beginning.

    Guarantee: as ``Keystream``, if a key (32 bytes) is used once.
    """
    encryptor = Cipher(AES(key), CTR(bytes(BLOCK))).encryptor()
    return lambda n: np.frombuffer(encryptor.update(bytes(8 * n)), "<u8").astype(np.uint64)


def repeatable_bytes(size: int, seed: int, *names: Name) -> "NDArray[np.uint8]":
    """Uniform bytes of the named stream, by AES-256-CTR: for large draws, a third of Philox's time. NOT secret.

    Shapes: (size,).
    Guarantee: the bytes depend only on seed and names, and are the same on every machine. A smaller ``size`` gives the
        first bytes of a larger one.
    """
    encryptor = Cipher(AES(key_of(seed, *names)), CTR(bytes(BLOCK))).encryptor()
    return np.frombuffer(encryptor.update(PLAIN[:size] if size <= len(ZEROS) else bytes(size)), np.uint8)
