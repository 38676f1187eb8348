"""Random streams with names; the order of calls does not matter.

Every random draw of the toolkit that is not secret is a function of its purpose: ``stream(seed, "order", "fit",
epoch)``. Two programs that use the same names get the same bits, whatever they have drawn before. A resumed run
therefore equals an uninterrupted run. What an author draws without a name between two rounds comes from the global
generators; a checkpoint has their states.

Only raw bits are taken from numpy: numpy's compatibility promise (NEP 19) covers bit generators, but not the
distributions built on them.
"""

import random
from collections.abc import Mapping
from hashlib import blake2b, shake_256
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Name = str | int
Seed = int | bytes
"""The seed of a run, which everybody knows, or the secret key of one process of a federation."""
_STATE_BYTES = 2496  # of the state of a Mersenne Twister: 624 words of 32 bits
_STATE_BEGIN = 24  # of these words in a state of torch's generator, which stores each in 64 bits


def _digest(seed: int, names: tuple[Name, ...], size: int) -> bytes:
    # repr keeps ("a", "b") and ("ab",), 1 and "1" apart
    return blake2b(repr((int(seed), *names)).encode(), digest_size=size).digest()


def secret_bytes(key: bytes, size: int, *names: Name) -> bytes:
    """Bytes that depend only on a secret key and names: SHAKE-256 of both.

    Guarantee: without the key they are indistinguishable from random bytes, also for someone who knows those of other
        names; the key must have the same length everywhere.
    """
    return shake_256(key + repr(names).encode()).digest(size)


def stream(seed: int, *names: Name) -> np.random.Philox:
    """A counter-based bit generator that depends only on seed and names.

    Args:
        seed: the seed of the run.
        names: the purpose of the draw, most general name first, for example ``"order", "fit", epoch``.

    Guarantee: equal names give equal bits in every process and version of numpy; different names give independent
        128-bit Philox keys (a collision has probability below 1e-19 for a thousand million names).
    Not guaranteed: secrecy. Anyone who knows the seed can compute the bits, and Philox is not a cryptographic
        generator. Keys, masks and the noise behind a privacy figure never use these streams, unless a setting requests
        it.

    Examples:
        >>> stream(0, "order", "fit", 3).random_raw() == stream(0, "order", "fit", 3).random_raw()
        True
        >>> stream(0, "order", "fit", 3).random_raw() == stream(0, "order", "fit", 4).random_raw()
        False
    """
    return np.random.Philox(key=stream_key(seed, *names))


def stream_key(seed: int, *names: Name) -> int:
    """The 128-bit key of Philox behind ``stream(seed, *names)``."""
    return int.from_bytes(_digest(seed, names, 16), "little")


def key_of(seed: int, *names: Name) -> bytes:
    """32 bytes that depend only on seed and names, as a key for another generator. Not secret.

    Examples:
        >>> len(key_of(0, "rounding")), key_of(0, "rounding") == key_of(1, "rounding")
        (32, False)
    """
    return _digest(seed, names, 32)


def uniform(words: "NDArray[np.uint64]") -> "NDArray[np.float64]":
    """Numbers in [0, 1), multiples of 2⁻⁵³, from the upper bits of uniform words.

    Examples:
        >>> uniform(np.array([0, 2**63, 2**64 - 1], np.uint64)).tolist() == [0.0, 0.5, 1 - 2.0**-53]
        True
    """
    numbers: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def permutation(n: int, seed: int, *names: Name) -> "NDArray[np.int64]":
    """A uniformly random order of ``range(n)``: the ranks of n 64-bit words of the named stream.

    Two equal words (probability n² / 2⁶⁵: 1e-10 at n = 60,000) keep their order, the only bias.

    Examples:
        >>> sorted(permutation(5, 0, "order").tolist())
        [0, 1, 2, 3, 4]
    """
    return np.argsort(stream(seed, *names).random_raw(n), kind="stable").astype(np.int64)


def seed_of(seed: int, *names: Name) -> int:
    """A 63-bit integer that depends only on seed and names, as a seed for another library.

    Examples:
        >>> 0 <= seed_of(0, "split") < 2**63
        True
    """
    return int.from_bytes(_digest(seed, names, 8), "little") >> 1


def seed_torch(device: "torch.device", seed: Seed, *names: Name) -> None:
    """Seed torch's global generators of the CPU and of ``device`` from seed and names.

    Called once in a training round, so that dropout in all networks depends only on the round and not on earlier draws.

    Not guaranteed: with a key, more than 64 secret bits for the generator of a GPU.
    """
    import torch  # 1 s, which programs that only sign or read settings do not need

    if isinstance(seed, bytes):
        value = int.from_bytes(secret_bytes(seed, 8, "gpu", *names), "little")
        torch.default_generator.set_state(secret_state(seed, *names))
    else:
        value = seed_of(seed, *names)
        torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)


def generator_states(device: "torch.device | None" = None) -> dict[str, Any]:
    """The states of the global generators of torch, numpy and Python, in the form that a checkpoint may have.

    ``device``: if it is a GPU, the state of its generator is there too.
    """
    import torch

    numpys = np.random.get_state(legacy=False)
    words = {name: own.tolist() if isinstance(own, np.ndarray) else own for name, own in numpys["state"].items()}
    states = {
        "torch": torch.get_rng_state(),
        "numpy": {**numpys, "state": words},
        "python": random.getstate(),
    }
    if device is not None and device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generator_states(states: Mapping[str, Any], device: "torch.device | None" = None) -> None:
    """Let the global generators draw what they would have drawn after ``generator_states``."""
    import torch

    torch.set_rng_state(states["torch"])
    np.random.set_state(states["numpy"])
    random.setstate(states["python"])
    if "cuda" in states and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def secret_words(key: bytes, *names: Name) -> "NDArray[np.uint32]":
    """(624,), the whole state of a Mersenne Twister, from a secret key and names."""
    return np.frombuffer(secret_bytes(key, _STATE_BYTES, *names), "<u4")


def secret_state(key: bytes, *names: Name) -> "torch.Tensor":
    """A state of torch's generator of the CPU, all of whose 19,968 bits follow from a secret key and names.

    ``manual_seed`` would keep 32 bits of its argument, which somebody can try out.
    """
    import torch

    state = torch.Generator().manual_seed(0).get_state()
    words = torch.from_numpy(secret_words(key, *names).astype(np.int64))
    state[_STATE_BEGIN : _STATE_BEGIN + 8 * len(words)] = words.view(torch.uint8)
    return state


def even_shares(n: int, sharers: int, seed: int, *names: Name) -> "NDArray[np.int64]":
    """(n,), assign n items at random to sharers with equal counts (the first sharers get one more).

    Examples:
        >>> np.bincount(even_shares(7, 3, 0, "labels")).tolist()
        [3, 2, 2]
    """
    who = np.empty(n, dtype=np.int64)
    for sharer, run in enumerate(np.array_split(permutation(n, seed, *names), sharers)):
        who[run] = sharer
    return who
