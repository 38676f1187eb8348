"""Keyed hashes of the ids of records, and their text in files; without torch."""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.int64]


def hashed_ids(key: str, ids: "Sequence[object] | NDArray[np.generic]") -> "Hashes":
    """(N,) the first 8 bytes of keyed BLAKE2b of each id's text; a million take a second.

    Args:
        key: 32 hexadecimal digits.
        ids: numbers or texts; a number has the hash of its text.
    """
    secret = bytes.fromhex(key)
    digests = b"".join(blake2b(str(i).encode(), digest_size=8, key=secret).digest() for i in ids)
    return np.frombuffer(bytearray(digests), np.int64)


def text_of(hashes: "Hashes") -> str:
    """The hashes as little-endian integers in base64."""
    return b64encode(hashes.astype("<i8").tobytes()).decode("ascii")


def of_text(text: str) -> "Hashes":
    """The hashes of such a text."""
    return np.frombuffer(b64decode(text, validate=True), "<i8").astype(np.int64)
