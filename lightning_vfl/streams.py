"""Randomness by name, never by call order.

Every random draw of the toolkit that is no secret is a function of *what it is for*: ``stream(seed, "order", "fit",
epoch)``. Two programs that ask for the same names get the same bits, whatever they drew before, so a resumed run equals
an uninterrupted one without any generator state in a checkpoint.

Only raw bits are taken from numpy: bit generators are covered by its compatibility promise (NEP 19), the
distributions built on them are not.
"""

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Name = str | int


def _digest(seed: int, names: tuple[Name, ...], size: int) -> bytes:
    # repr keeps ("a", "b") and ("ab",), 1 and "1" apart
    return blake2b(repr((int(seed), *names)).encode(), digest_size=size).digest()


def stream(seed: int, *names: Name) -> np.random.Philox:
    """A counter-based bit generator that depends on its name alone.

    Args:
        seed: the seed of the run.
        names: what the draw is for, most general first, e.g. ``"order", "fit", epoch``.

    Guarantee: equal names give equal bits in every process and version of numpy; different names give independent
        128-bit Philox keys (a collision has probability below 1e-19 for a thousand million names).
    Not guaranteed: secrecy. Anyone who knows the seed knows the bits, and Philox is no cryptographic generator; keys,
        masks and noise that a privacy figure rests on never come from here, unless a setting asks for it by name.

    Examples:
        >>> stream(0, "order", "fit", 3).random_raw() == stream(0, "order", "fit", 3).random_raw()
        True
        >>> stream(0, "order", "fit", 3).random_raw() == stream(0, "order", "fit", 4).random_raw()
        False
    """
    return np.random.Philox(key=int.from_bytes(_digest(seed, names, 16), "little"))


def key_of(seed: int, *names: Name) -> bytes:
    """32 bytes that depend on their name alone: the key to hand to another generator. No secret.

    Examples:
        >>> len(key_of(0, "rounding")), key_of(0, "rounding") == key_of(1, "rounding")
        (32, False)
    """
    return _digest(seed, names, 32)


def permutation(n: int, seed: int, *names: Name) -> "NDArray[np.int64]":
    """A uniformly random order of ``range(n)``: the ranks of n 64-bit words of the named stream.

    Two equal words (probability n² / 2⁶⁵: 1e-10 at n = 60,000) keep their order, the only bias.

    Examples:
        >>> sorted(permutation(5, 0, "order").tolist())
        [0, 1, 2, 3, 4]
    """
    return np.argsort(stream(seed, *names).random_raw(n), kind="stable").astype(np.int64)


def seed_of(seed: int, *names: Name) -> int:
    """A 63-bit integer that depends on its name alone: the seed to hand to another library.

    Examples:
        >>> 0 <= seed_of(0, "split") < 2**63
        True
    """
    return int.from_bytes(_digest(seed, names, 8), "little") >> 1


def seed_torch(device: torch.device, seed: int, *names: Name) -> None:
    """Put torch's global generator of the CPU and of ``device`` into the state that belongs to this name.

    Called once a training round, so that dropout inside anybody's network is a function of the round and not of what
    was drawn before: no generator state has to be in a checkpoint.
    """
    value = seed_of(seed, *names)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)


def even_shares(n: int, sharers: int, seed: int, *names: Name) -> "NDArray[np.int64]":
    """(n,) the number of the sharer of each of n things: a random order, cut into even runs, the first the larger.

    Examples:
        >>> np.bincount(even_shares(7, 3, 0, "labels")).tolist()
        [3, 2, 2]
    """
    who = np.empty(n, dtype=np.int64)
    for sharer, run in enumerate(np.array_split(permutation(n, seed, *names), sharers)):
        who[run] = sharer
    return who
