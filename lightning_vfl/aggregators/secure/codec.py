"""How real numbers become integers whose sum means something: what aggregators that hide a sum agree on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isfinite, log2, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.crypto.keystream import repeatable_bytes
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import RoundNames, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_LEVELS = 2**27  # vFedSec section 3.5


class Codec(ABC):
    """Real numbers as integers from 0 on, such that a sum of integers is decoded to the sum of the numbers."""

    @abstractmethod
    def bound(self, n: int) -> int:
        """The largest sum of n of its integers."""

    @abstractmethod
    def encode(
        self, h: Tensor, slots: Sequence[int], every: int, names: RoundNames, rows: Rows
    ) -> tuple[Tensor, float]:
        """The integers that stand for embeddings, int32 on the CPU, and the share of values out of range.

        What is drawn is a function of the round's names and an element's place in the joint batch, so that parties draw
        the same together and alone, and processes the same as one; except where a privacy figure rests on the draws:
        these are new in every call, from randomness of each party's own (``Binomial`` with ``draws: system``).

        Args:
            h: (S, B, D), rows ``rows`` of the embeddings of these slots.
            slots: their numbers.
            every: how many slots there are.
            names: of the round.
            rows: of this process.

        Raises:
            ConfigurationError: for values that no integer stands for.
        """

    @abstractmethod
    def to_real(self, total: "NDArray[Any]", n: int) -> "NDArray[np.float64]":
        """The sum of n numbers from the sum of their integers."""


class Shift(Codec):
    r"""Numbers in [-t, t] as integers in [0, R - 1], by clipping, shifting, scaling and stochastic rounding.

    .. math:: q(x) = \lfloor \frac{\mathrm{clip}(x, -t, t) + t}{2t} R + u \rfloor, \quad u \sim U[0, 1)

    and at most R - 1; a sum s of n is :math:`\frac{2t}{R} s - n t`.

    Shapes: any; elementwise. Units: integers in steps of 2t/R.
    Guarantee: q(0) = R/2 exactly, so a zero row is a true zero. Unbiased to 2^-16 of a step for |x| < t - 2t/R;
        |decoded - clipped| < 2t/R for each number that is summed. Computed in float64: float32 has steps of 8 at 2^27.
    Not guaranteed: anything about a value outside [-t, t]: it counts as ±t. Values within a step of +t are off by up to
        one step, always downwards.

    Args:
        clip: t, above 0.
        levels: R, an even number from 2 to 2^27.

    Raises:
        ConfigurationError: for numbers that make no such range.

    Examples:
        >>> codec = Shift(clip=4.0, levels=2**27)
        >>> codec.to_int(torch.zeros(1), np.array([2**16 - 1], np.uint16))[0].item() == 2**26
        True

    References:
        vFedSec, section 3.5 (t = 4, R = 2^27).
    """

    def __init__(self, clip: float = 4.0, levels: int = MOST_LEVELS) -> None:
        if not (clip > 0 and isfinite(clip)):
            raise ConfigurationError(f"clip {clip} is no range to clip embeddings to; use a number above 0")
        if isinstance(levels, bool) or not isinstance(levels, int) or levels % 2 or not 2 <= levels <= MOST_LEVELS:
            raise ConfigurationError(f"levels {levels!r} cannot be; use an even whole number from 2 to 2^27, or auto")
        self.clip = float(clip)
        self.levels = levels

    @property
    def step(self) -> float:
        """2t/R, what one integer is worth."""
        return 2.0 * self.clip / self.levels

    def bound(self, n: int) -> int:
        return n * (self.levels - 1)

    def encode(
        self, h: Tensor, slots: Sequence[int], every: int, names: RoundNames, rows: Rows
    ) -> tuple[Tensor, float]:
        drawn = uniform_words((every, rows.total, h.shape[2]), names.seed, "rounding", names.stage, names.round)
        if drawn.shape != h.shape:
            drawn = drawn[list(slots), rows.start : rows.start + h.shape[1]]
        return self.to_int(h, drawn)

    def to_int(self, h: Tensor, words: "NDArray[np.uint16]") -> tuple[Tensor, float]:
        """The integers that stand for h, int32 of the same shape on the CPU, and the share of values out of range.

        Args:
            h: real numbers.
            words: uniform 16-bit words for whatever is drawn, one a number.

        Raises:
            ConfigurationError: for NaN or infinite values: no integer stands for those.
        """
        from lightning_vfl.aggregators.secure.shift import shift

        values = h.detach().cpu().contiguous()
        values = values if values.dtype in (torch.float32, torch.float64) else values.float()
        integers = torch.empty(values.shape, dtype=torch.int32)
        flat, size = integers.numpy().reshape(-1), values.numel()
        outside, wrong = shift(values.numpy().reshape(-1), words.reshape(-1), flat, self.clip, self.levels)
        if wrong:
            raise ConfigurationError("NaN or infinity cannot be quantised; clean the data or lower the learning rate")
        return integers, outside / size if size else 0.0

    def to_real(self, total: "NDArray[Any]", n: int) -> "NDArray[np.float64]":
        real: NDArray[np.float64] = np.subtract(total, n * (self.levels // 2), dtype=np.float64)  # exact
        real *= self.step
        return real

    def __repr__(self) -> str:
        power = log2(self.levels)
        return f"Shift(clip={self.clip:g}, levels={f'2^{power:g}' if power.is_integer() else self.levels})"


def fitting_levels(n: int, bits: int = 32) -> int:
    """The largest power of two R ≤ 2^27 with n R ≤ 2^bits.

    Raises:
        ConfigurationError: if not even R = 2 fits.

    Examples:
        >>> [fitting_levels(n).bit_length() - 1 for n in (1, 32, 33, 64, 65)]
        [27, 27, 26, 26, 25]
    """
    levels = min(MOST_LEVELS, 1 << max((2**bits // n).bit_length() - 1, 0)) if n <= 2**bits else 1
    if levels < 2:
        raise ConfigurationError(f"a sum of {n} does not fit a ring of {bits} bits even with two levels; use more bits")
    return levels


def uniform_words(shape: tuple[int, ...], seed: int, *names: str | int) -> "NDArray[np.uint16]":
    """Uniform 16-bit words of the named stream, filled in C order: the same on every machine. No secrets."""
    return repeatable_bytes(2 * prod(shape), seed, *names).view("<u2").reshape(shape)
