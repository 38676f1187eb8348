"""Messages between two parties that whoever carries them cannot read or change (AES-256-GCM)."""

import operator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lightning_vfl.crypto.keys import Confined

NONCE, TAG = 12, 16  # bytes
OVERHEAD = NONCE + TAG  # what sealing adds to a message


class _Channel:
    """A cipher and the last number it was used for: one object, so that no shallow copy can go its own way."""

    __slots__ = ("cipher", "last")

    def __init__(self, key: bytes) -> None:
        self.cipher = AESGCM(key)
        self.last = -1


class Sealed:
    """One direction of a pair's channel under one key: a message a number, and the numbers go up.

    Shapes: a message of n bytes is sealed into n + 28: nonce, ciphertext, tag.
    Guarantee: confidentiality and integrity of the message, and integrity of its number and of what it is bound to; no
        nonce is used twice, because the number is the nonce. Pickles, deep copies and forked processes are refused.
    Not guaranteed: secrecy of the length; order or freshness of what the carrier delivers, beyond the number.

    Args:
        key: 32 bytes, used for this direction and nothing else.

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
        """The message under this number; ``bound`` is sent apart, in the clear, and no other opens the message.

        Raises:
            ValueError: for a number that is not above the last one.
            RuntimeError: in a deep copy or a forked process.
        """
        channel, number = self._channel.open(), operator.index(number)
        if not channel.last < number < 2**64:
            raise ValueError(
                f"message {number} comes after message {channel.last}, and a nonce must never be used again; count "
                "upwards, or set up again with fresh keys"
            )
        channel.last = number
        nonce = number.to_bytes(NONCE, "big")
        return nonce + channel.cipher.encrypt(nonce, message, bound)

    def open(self, sealed: bytes, number: int, bound: bytes = b"") -> bytes:
        """The message of this number that is bound to these bytes.

        Raises:
            ValueError: if it is another message, has been changed, or was sealed under another key.
            RuntimeError: in a deep copy or a forked process.
        """
        nonce = operator.index(number).to_bytes(NONCE, "big")
        if sealed[:NONCE] != nonce:
            raise ValueError(f"this is not message {number}")
        try:
            return self._channel.open().cipher.decrypt(nonce, sealed[NONCE:], bound)
        except InvalidTag as error:
            raise ValueError(f"message {number} was changed on its way, or sealed under another key") from error
