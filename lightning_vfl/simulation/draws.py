"""Uniform draws for the fault models: one number for every entity (party, host or link) and request."""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.streams import Name, stream, uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 64  # requests of one stream: making a stream takes 9 µs, drawing 28 x 64 words from it another 9 µs


def uniforms(seed: int, request: int, entities: int, *names: Name) -> "NDArray[np.float64]":
    """One draw for every entity at one request.

    Args:
        seed: the seed of the fault model.
        request: 0 or more.
        entities: the number of draws.
        names: the purpose of the draws.

    Shapes: (entities,), read-only.
    Units: in [0, 1), multiples of 2⁻⁵³.
    Guarantee: entity m's draw depends only on (seed, names, request, m), not on other calls or on the number of
        entities.

    Examples:
        >>> bool((uniforms(0, 7, 3, "delay") == uniforms(0, 7, 5, "delay")[:3]).all())
        True
    """
    row: NDArray[np.float64] = uniform_block(seed, request // BLOCK, entities, *names)[request % BLOCK]
    return row


@lru_cache(maxsize=256)  # asynchronous parties are at different requests, and each needs a few blocks
def uniform_block(seed: int, block: int, entities: int, *names: Name) -> "NDArray[np.float64]":
    """The draws of requests [64 block, 64 block + 64), (64, entities), read-only."""
    words = stream(seed, *names, block).random_raw(entities * BLOCK)
    drawn = np.ascontiguousarray(uniform(words).reshape(entities, BLOCK).T)
    drawn.flags.writeable = False  # the array is cached
    return drawn
