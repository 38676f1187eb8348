"""The group ristretto255: hash texts to points, and raise points to a secret key.

A point is 32 bytes. Points of a list are an array (..., 32) of uint8.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from hashlib import sha512
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Points = NDArray[np.uint8]
    Progress = Callable[[int], object]  # is told how many further points are done

SIZE = 32  # bytes of a point, and of a key
_WIDE = 64  # bytes that are hashed to a point, or reduced to a key
_IDENTITY = bytes(SIZE)
_ORDER = 2**252 + 27742317777372353535851937790883648493  # of the group: RFC 9496, section 4
_CHUNK = 1024  # points that a thread computes together: 60 ms


class NoPoint(ValueError):
    """32 bytes of a list are not a point of the group, or are its identity.

    Args:
        place: which point of the list, from 0.
        identity: whether it is the identity.
    """

    def __init__(self, place: int, identity: bool) -> None:
        super().__init__(f"point {place} is {'the identity' if identity else 'no point'} of ristretto255")
        self.place = place


@cache
def _library() -> Any:
    """The bindings of libsodium, which take 0.06 s to import.

    Raises:
        ConfigurationError: if they are not installed.
    """
    try:
        import rbcl  # an optional package
    except ImportError:
        raise _missing() from None
    unpacked = getattr(sys.modules.get("rbcl._sodium"), "lib_path", None)
    if unpacked is not None and os.name == "posix":  # rbcl writes 3 MB to a temporary file and leaves them there
        with suppress(OSError):
            os.unlink(unpacked)
    return rbcl


def check_installed() -> None:
    """Accept a machine that has the package of the group.

    Raises:
        ConfigurationError: if it is not installed.
    """
    if find_spec("rbcl") is None:
        raise _missing()


def _missing() -> ConfigurationError:
    return ConfigurationError("aligning needs the package rbcl; pip install 'lightning-vfl[align]'")


def expander(tag: bytes) -> Callable[[bytes], bytes]:
    """The function from a message to 64 uniform bytes: ``expand_message_xmd`` with SHA-512.

    One block of SHA-512 has all bytes that are asked for. What does not depend on the message is computed once.

    Args:
        tag: the domain separation tag, up to 255 bytes.

    References:
        RFC 9380, "Hashing to Elliptic Curves", section 5.3.1.
    """
    tag_and_length = tag + bytes([len(tag)])
    end = _WIDE.to_bytes(2, "big") + b"\0" + tag_and_length
    begun = sha512(bytes(128))  # a block of zeros

    def expand(message: bytes) -> bytes:
        hashed = begun.copy()
        hashed.update(message + end)
        return sha512(hashed.digest() + b"\1" + tag_and_length).digest()

    return expand


def new_key(entropy: "Callable[[int], bytes]" = os.urandom) -> bytes:
    """A uniformly random key from 1 to the order of the group minus 1.

    Args:
        entropy: the source of random bytes; another one than the default is for tests alone.
    """
    while True:
        key: bytes = _library().crypto_core_ristretto255_scalar_reduce(entropy(_WIDE))
        if any(key):
            return key


def check_key(key: bytes) -> None:
    """Accept 32 bytes that are a key.

    Raises:
        ValueError: for other bytes.
    """
    if len(key) != SIZE or not 0 < int.from_bytes(key, "little") < _ORDER:
        raise ValueError("the key is not a number from 1 to the order of ristretto255")


def mask(
    messages: "Sequence[bytes | None]",
    uniform: "Callable[[int], bytes]",
    key: bytes,
    tag: bytes,
    tell: "Progress | None" = None,
) -> "Points":
    """(n, 32) the points of messages, raised to a key: ``ristretto255_XMD:SHA-512_R255MAP_RO_``.

    Guarantee: nobody knows the logarithm of a message's point, and every message has a point of the one group of prime
        order. Hashing to coordinates of X25519 would show of each id whether it is on the curve or on its twist. A
        random point is uniform up to a bias below 2^-120, and is not raised.

    Args:
        messages: one for each point; None: a random point.
        uniform: from the number of a point to 64 uniform bytes, of which a random point is made.
        key: of this party.
        tag: the domain separation tag.
        tell: is told of progress.

    References:
        RFC 9380, appendix B; the map of 64 bytes to a point: RFC 9496, section 4.3.4.
    """
    # One loop for each function: threads compute at the same time outside Python alone, so there is little of it.
    to_point, raise_point = _library().crypto_core_ristretto255_from_hash, _library().crypto_scalarmult_ristretto255
    expand = expander(tag)

    def chunk(start: int) -> bytes:
        part = messages[start : start + _CHUNK]
        hashes = [uniform(place) if one is None else expand(one) for place, one in enumerate(part, start)]
        points = [to_point(one) for one in hashes]
        return b"".join(
            [point if one is None else raise_point(key, point) for one, point in zip(part, points, strict=True)]
        )

    return _array(_spread(chunk, range(0, len(messages), _CHUNK), tell))


def raised(points: "Points", key: bytes, tell: "Progress | None" = None) -> "Points":
    """The points, raised to a key, in the same shape.

    Raises:
        NoPoint: for bytes that are no point, and for the identity.
    """
    _refuse_other_encodings(points)
    raise_point = _library().crypto_scalarmult_ristretto255
    content = np.ascontiguousarray(points).tobytes()

    def chunk(start: int) -> bytes:
        part = _part(content, start)
        try:
            return b"".join([raise_point(key, point) for point in part])
        except RuntimeError:
            _refuse_no_points(part, start)
            raise

    return _array(_spread(chunk, range(0, len(content) // SIZE, _CHUNK), tell)).reshape(points.shape)


def inverse(key: bytes) -> bytes:
    """The key that takes this one away again."""
    other: bytes = _library().crypto_core_ristretto255_scalar_invert(key)
    return other


def check_points(points: "Points") -> None:
    """Accept points of the group that are not its identity.

    Raises:
        NoPoint: for the first other one.
    """
    _refuse_other_encodings(points)
    content = np.ascontiguousarray(points).tobytes()

    def chunk(start: int) -> bytes:
        _refuse_no_points(_part(content, start), start)
        return b""

    for _ in _spread(chunk, range(0, len(content) // SIZE, _CHUNK), None):
        pass


def _refuse_other_encodings(points: "Points") -> None:
    """Refuse points with bit 255, which libsodium ignores: a point, and the identity, would have two encodings.

    RFC 9496, section 4.3.1: a decoder must refuse what is not the canonical encoding. libsodium refuses all others.

    Raises:
        NoPoint: for the first such point.
    """
    flat = np.asarray(points).reshape(-1, SIZE)
    if (high := flat[:, -1] & 0x80).any():
        place = int(high.argmax())
        alias = not (flat[place, :-1].any() or flat[place, -1] & 0x7F)
        raise NoPoint(place, alias)


def _part(content: bytes, start: int) -> list[bytes]:
    """The points of a list from a number, as many as a thread computes together."""
    end = min((start + _CHUNK) * SIZE, len(content))
    return [content[at : at + SIZE] for at in range(start * SIZE, end, SIZE)]


def _refuse_no_points(points: list[bytes], start: int) -> None:
    is_point = _library().crypto_core_ristretto255_is_valid_point
    for place, point in enumerate(points, start):
        if point == _IDENTITY or not is_point(point):
            raise NoPoint(place, point == _IDENTITY) from None


def _spread(work: "Callable[[int], bytes]", starts: range, tell: "Progress | None") -> Iterator[bytes]:
    """The results in order, computed by one thread for each core, which libsodium lets run at the same time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rest = iter(starts)
    with ThreadPoolExecutor(min(cores, max(len(starts), 1))) as pool:
        ahead = deque(pool.submit(work, start) for start in islice(rest, 4 * cores))
        while ahead:
            done = ahead.popleft().result()
            ahead.extend(pool.submit(work, start) for start in islice(rest, 1))
            yield done
            if tell is not None:
                tell(len(done) // SIZE)


def _array(parts: Iterable[bytes]) -> "Points":
    return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, SIZE)
