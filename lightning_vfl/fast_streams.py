"""The words of named streams in half of numpy's time. Imported on first use: numba takes 0.5 s to load.

numpy's Philox hands out one word a call inside its loop; here a block of four words is one pass through the ten rounds,
and the processor works on several blocks at once.
"""

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from lightning_vfl.streams import Name, stream_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORDS = 4  # of a block
_MASK = 2**64 - 1
_FIRST = np.uint64(1)  # numpy's first counter


class FastStream:
    """The words of ``stream(seed, *names).random_raw``, one call after the other.

    Units: uniform 64-bit words.
    Guarantee: the same words as numpy's, in whatever portions they are asked for.
    Not guaranteed: secrecy, as for ``stream``.

    Args:
        seed: the seed of the run.
        names: as in ``stream``.

    Examples:
        >>> from lightning_vfl.streams import stream
        >>> FastStream(0, "order").words(5).tolist() == stream(0, "order").random_raw(5).tolist()
        True

    References:
        Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011 (Philox4x64-10).
    """

    def __init__(self, seed: int, *names: Name) -> None:
        key = stream_key(seed, *names)
        self._key = np.uint64(key & _MASK), np.uint64(key >> 64)
        self._blocks = 0  # whole blocks that were computed
        self._left = np.empty(0, np.uint64)  # of the last block

    def words(self, n: int) -> "NDArray[np.uint64]":
        """The next n words, (n,)."""
        out = np.empty(n, np.uint64)
        self.fill(out)
        return out

    def fill(self, out: "NDArray[np.uint64]") -> None:
        """Set out (n,) to the next n words."""
        head = min(len(out), len(self._left))
        out[:head], self._left = self._left[:head], self._left[head:]
        tail = head + (len(out) - head) // WORDS * WORDS
        self._compute(out[head:tail])
        if tail < len(out):
            block = np.empty(WORDS, np.uint64)
            self._compute(block)
            rest = len(out) - tail
            out[tail:], self._left = block[:rest], block[rest:]

    def _compute(self, out: "NDArray[np.uint64]") -> None:
        if len(out):
            philox_blocks(out, _FIRST + np.uint64(self._blocks), *self._key)
            self._blocks += len(out) // WORDS


def _code_of_product(_: Any, a: Any, b: Any) -> Any:
    """The upper and the lower 64 bits of a product: one instruction, which numba has no name for."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*[builder.zext(factor, wide) for factor in arguments])
        upper = builder.lshr(product, ir.Constant(wide, 64))
        halves = [builder.trunc(half, ir.IntType(64)) for half in (upper, product)]
        return context.make_tuple(builder, signature.return_type, halves)

    pair: Any = types.UniTuple
    return pair(types.uint64, 2)(types.uint64, types.uint64), code


_product: Any = intrinsic(_code_of_product)


# nogil, cache: as in field.kernels
_fused = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")


@_fused
def philox_blocks(out: "NDArray[np.uint64]", number: np.uint64, low: np.uint64, high: np.uint64) -> None:
    """Set out (4 n,) to Philox4x64-10 of the counters number, number + 1, ... in the first of four words."""
    zero = np.uint64(0)
    for block in range(out.size // WORDS):
        c0, c1, c2, c3 = number + np.uint64(block), zero, zero, zero
        k0, k1 = low, high
        for _ in range(10):
            high_0, low_0 = _product(np.uint64(0xD2E7470EE14C6C93), c0)
            high_1, low_1 = _product(np.uint64(0xCA5A826395121157), c2)
            c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
            k0 += np.uint64(0x9E3779B97F4A7C15)
            k1 += np.uint64(0xBB67AE8584CAA73B)
        out[WORDS * block] = c0
        out[WORDS * block + 1] = c1
        out[WORDS * block + 2] = c2
        out[WORDS * block + 3] = c3
