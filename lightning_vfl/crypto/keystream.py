"""Uniform random words that nobody can predict, and a stand-in for simulations that everybody can repeat."""

import os
from abc import ABC, abstractmethod
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

BLOCK = 16  # bytes of an AES block: what older versions of ``update_into`` want to see behind the output
ZEROS = bytes(2**18)  # encrypting zeros gives the keystream itself


class Secrets(ABC):
    """Where masks, shares and keys come from."""

    @abstractmethod
    def source(self, *names: Name) -> "Words":
        """What gives the next n uniform 64-bit words for n; ``names`` say whose they are and what they are for."""


class Keystream(Secrets):
    """AES-256 in counter mode under a key from the operating system: no two words are ever the same keystream.

    Units: 64-bit words.
    Guarantee: computationally indistinguishable from uniform words, and from those of every other object: a copy or a
        forked process gets a key of its own, and pickling keeps no key.
    Not guaranteed: repeatability (that is the point); erasure of keys from memory.

    References:
        NIST SP 800-38A (counter mode); the ``cryptography`` package does the work.

    Examples:
        >>> bool((Keystream().words(4) == Keystream().words(4)).any())
        False
    """

    def __init__(self) -> None:
        self._rekey()

    def source(self, *names: Name) -> "Words":
        return self.words

    def words(self, n: int) -> "NDArray[np.uint64]":
        """The next n words of the keystream."""
        if self._process != os.getpid():  # a fork would go on with the same stream
            self._rekey()
        size = 8 * n
        out = np.empty(n + BLOCK // 8, np.uint64)
        target = out.view(np.uint8).data
        for start in range(0, size, len(ZEROS)):
            count = min(len(ZEROS), size - start)
            self._encryptor.update_into(ZEROS[:count], target[start : start + count + BLOCK])
        return out[:n]

    def _rekey(self) -> None:
        self._process = os.getpid()
        self._encryptor = Cipher(AES(os.urandom(32)), CTR(bytes(BLOCK))).encryptor()

    def __reduce__(self) -> tuple[type["Keystream"], tuple[()]]:
        return Keystream, ()


class SeededSecrets(Secrets):
    """Words that are a function of their names. INSECURE: for tests and simulations that compare messages to the bit.

    Args:
        seed: of the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def source(self, *names: Name) -> "Words":
        return stream(self.seed, "insecure secrets", *names).random_raw


def repeatable_bytes(size: int, seed: int, *names: Name) -> "NDArray[np.uint8]":
    """Uniform bytes of the named stream, by AES-256-CTR: where much is drawn, a third of Philox's time. NO secrets.

    Shapes: (size,). Guarantee: a function of seed and names, the same on every machine; fewer bytes are the first of
        more.
    """
    encryptor = Cipher(AES(key_of(seed, *names)), CTR(bytes(BLOCK))).encryptor()
    return np.frombuffer(encryptor.update(ZEROS[:size] if size <= len(ZEROS) else bytes(size)), np.uint8)
