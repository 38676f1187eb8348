"""Encrypted messages between two parties, which the server can forward but not read or change (AES-256-GCM)."""

import operator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lightning_vfl.crypto.keys import Confined

NONCE = 12
TAG = 16  # bytes
OVERHEAD = NONCE + TAG  # what sealing adds to a message


class _Channel:
    """A cipher and its last number, in one object, so that shallow copies share the state."""

    __slots__ = ("cipher", "last")

    def __init__(self, key: bytes) -> None:
        self.cipher = AESGCM(key)
        self.last = -1


class Sealed:
    """One direction of a pair's channel with one key; every message has a number, and numbers increase.

    Shapes: a message of n bytes is sealed into n + 28 bytes: nonce, ciphertext, tag.
    Guarantee: confidentiality and integrity of the message, and integrity of its number and of the bound bytes. No
        nonce is used twice, because the number is the nonce. Pickles, deep copies and forked processes are refused.
    Not guaranteed: secrecy of the length; order or freshness of delivered messages, beyond the number.

    Args:
        key: 32 bytes, used only for this direction.

    References:
        NIST SP 800-38D, section 8.2.1 (deterministic nonces) and section 5.2.1 (additional authenticated data).

    Examples:
        >>> sender, receiver = Sealed(bytes(32)), Sealed(bytes(32))
        >>> receiver.open(sender.seal(b"ids", 7), 7)
        b'ids'
    """

    def __init__(self, key: bytes) -> None:
        self._channel = Confined(_Channel(key))

    def seal(self, message: bytes, number: int, bound: bytes = b"") -> bytes:
        """Encrypt a message with this number; only the same ``bound`` bytes, which are sent in the clear, open it.

        Raises:
            ValueError: for a number that is not above the last one.
            RuntimeError: in a deep copy or a forked process.
        """
        channel = self._channel.open()
        number = operator.index(number)
        if not channel.last < number < 2**64:
            raise ValueError(
                f"message number {number} must be above the last number {channel.last}, because a nonce must never be "
                "used twice; use increasing numbers, or set up again with new keys"
            )
        channel.last = number
        nonce = number.to_bytes(NONCE, "big")
        return nonce + channel.cipher.encrypt(nonce, message, bound)

    def open(self, sealed: bytes, number: int, bound: bytes = b"") -> bytes:
        """Decrypt the message with this number and these bound bytes.

        Raises:
            ValueError: if it is another message, has been changed, or was sealed with another key.
            RuntimeError: in a deep copy or a forked process.
        """
        nonce = operator.index(number).to_bytes(NONCE, "big")
        if sealed[:NONCE] != nonce:
            raise ValueError(f"the sealed message must have number {number}, but it has another number")
        try:
            return self._channel.open().cipher.decrypt(nonce, sealed[NONCE:], bound)
        except InvalidTag as error:
            raise ValueError(f"message {number} was changed in transit, or sealed with another key") from error
