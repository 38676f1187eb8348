"""Codecs: real numbers as integers, such that the sum of the integers gives the sum of the numbers."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.checks import positive
from lightning_vfl.crypto.keystream import repeatable_bytes
from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.privacy.draws import OwnKeystreams
from lightning_vfl.rebuildable import Rebuildable
from lightning_vfl.types import RoundNames, Rows, Shape
from lightning_vfl.wire import PartyView

if TYPE_CHECKING:
    from numpy.typing import NDArray


MOST_LEVELS = 2**27  # vFedSec section 3.5
MOST_CLIPPED = 0.01  # share of the values of a round that may be clipped without a warning


class Codec(Rebuildable, ABC):
    """Real numbers as non-negative integers, such that a sum of integers is decoded to the sum of the numbers.

    A codec is immutable; parties and server may share it. The sum of n integers has to fit the ring of ``bits`` bits:
    an integer is at most (2^bits - 1) / n, whatever the embeddings. The first round tries a codec with small and large
    numbers.
    """

    @abstractmethod
    def encode(
        self, h: Tensor, slots: Sequence[int], every: int, names: RoundNames, rows: Rows, own: OwnKeystreams
    ) -> tuple[Tensor, float]:
        """The integers that stand for embeddings, int32 (S, B, D) on the CPU, and the share of values out of range.

        Random numbers are a function of the round's names and of an element's place in the joint batch: parties draw
        the same together and alone, and several processes draw the same as one. The exception are draws that a privacy
        figure rests on: they come from ``own`` and are new in every call (``Binomial`` with ``draws: system``).

        Args:
            h: (S, B, D), rows ``rows`` of the embeddings of these slots. A slot is a party in one of the sums.
            slots: their numbers.
            every: how many slots there are.
            names: of the round.
            rows: of this process.
            own: the keystreams of the hosted parties, by slot.

        Raises:
            ConfigurationError: for values that no integer stands for.
        """

    @abstractmethod
    def to_real(self, total: "NDArray[Any]", n: int) -> "NDArray[np.float64]":
        """The sum of n numbers, float64, from the sum of their integers, which may be uint32 or int64."""


@dataclass(frozen=True)
class Shift(Codec):
    r"""Numbers in [-t, t] as integers in [0, R - 1], by clipping, shifting, scaling and stochastic rounding.

    .. math:: q(x) = \lfloor \frac{\mathrm{clip}(x, -t, t) + t}{2t} R + u \rfloor, \quad u \sim U[0, 1)

    and at most R - 1; a sum s of n is :math:`\frac{2t}{R} s - n t`.

    Shapes: any; elementwise. Units: integers in steps of 2t/R.
    Guarantee: q(0) = R/2 exactly, so a zero row is a true zero. Unbiased to 2^-16 of a step for |x| < t - 2t/R;
        |decoded - clipped| ≤ 2t/R for each number that is summed. Computed in float64: float32 has steps of 8 at 2^27.
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

    clip: float = 4.0
    levels: int = MOST_LEVELS

    def __post_init__(self) -> None:
        clip = self.clip
        levels = self.levels
        positive("clip", clip)
        if isinstance(levels, bool) or not isinstance(levels, int) or levels % 2 or not 2 <= levels <= MOST_LEVELS:
            raise ConfigurationError(f"levels must be an even whole number from 2 to 2^27, or auto; got {levels!r}")
        object.__setattr__(self, "clip", float(clip))  # the compiled loop is made for floats

    @cached_property
    def step(self) -> float:
        """2t/R, what one integer is worth."""
        return 2.0 * self.clip / self.levels

    def encode(
        self, h: Tensor, slots: Sequence[int], every: int, names: RoundNames, rows: Rows, own: OwnKeystreams
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
        flat = integers.numpy().reshape(-1)
        size = values.numel()
        outside, wrong = shift(values.numpy().reshape(-1), words.reshape(-1), flat, self.clip, self.levels)
        if wrong:
            raise ConfigurationError("NaN or infinity cannot be quantised; clean the data or lower the learning rate")
        return integers, outside / size if size else 0.0

    def to_real(self, total: "NDArray[Any]", n: int) -> "NDArray[np.float64]":
        # a cast of its own: np.subtract would cast in three times the time
        real: NDArray[np.float64] = np.asarray(total).astype(np.float64)
        real -= n * (self.levels // 2)  # exact
        real *= self.step
        return real


@lru_cache(maxsize=64)
def shift_for(clip: float, levels: int | Literal["auto"], n: int, bits: int) -> Shift:
    """The codec for sums of n in a ring of so many bits; ``auto``: the largest power of two R ≤ 2^27 that fits.

    Raises:
        ConfigurationError: if the levels do not fit the ring, with those that do.

    Examples:
        >>> [shift_for(4.0, "auto", n, 32).levels.bit_length() - 1 for n in (1, 32, 33, 64, 65)]
        [27, 27, 26, 26, 25]
    """
    fitting = min(MOST_LEVELS, 2 ** ((2**bits // n).bit_length() - 1))
    if levels == "auto":
        return Shift(clip, fitting)
    if n * levels > 2**bits:
        raise ConfigurationError(
            f"the sum of {n} parties' integers below levels = {levels} does not fit the ring of 2^{bits}; use "
            f"levels: {fitting}, or auto"
        )
    return Shift(clip, levels)


def note_clipped(view: PartyView, name: str, share: float) -> None:
    """Leave the share of clipped values in the log, and warn if it is large.

    Args:
        view: of the hosted parties.
        name: what is logged, ``clipped_share`` of embeddings or ``clipped_update_share`` of model updates.
        share: of the values.
    """
    view.notes[name] = share
    if share > MOST_CLIPPED:
        what = "embeddings" if name == "clipped_share" else "model updates"
        warnings.warn(
            f"more than {MOST_CLIPPED:.0%} of the values of {what} are out of range and clipped "
            f"(aggregator/{name} in the log); use a larger clip, or a bounded bottom (output_activation: "
            "torch.nn.Tanh)",
            stacklevel=2,
        )


def uniform_words(shape: Shape, seed: int, *names: str | int) -> "NDArray[np.uint16]":
    """Uniform 16-bit words of the named stream, filled in C order: the same on every machine. No secrets."""
    return repeatable_bytes(2 * prod(shape), seed, *names).view("<u2").reshape(shape)


# ---- a trial of a codec before its first round


TRIED = (0.0, 1.0, -1.0, 1e3, -1e3, 1e9, -1e9)  # an embedding may be any number
ROWS = Rows(torch.arange(2), 0, 2)


def try_codec(codec: Codec, slots: int, n: int, bits: int, names: RoundNames) -> None:
    """Encode embeddings of small and large numbers, and decode a sum.

    Args:
        codec: the codec.
        slots: the number of slots.
        n: the largest number of integers in a sum.
        bits: of the ring.
        names: of a round.

    Raises:
        ConfigurationError: for a codec that breaks a law of ``Codec``, naming its class.
    """
    name = type(codec).__name__
    for number in TRIED:
        h = torch.full((1, 2, 3), number)
        try:
            encoded = codec.encode(h, (0,), slots, names, ROWS, OwnKeystreams())
        except Exception as error:
            if number and isinstance(error, ConfigurationError):
                continue  # the codec refuses numbers that no integer stands for
            remedy = "encode it, or raise a ConfigurationError" if number else "an absent embedding is zero"
            raise ConfigurationError(f"encode of {name} cannot encode {number:g}: {reason(error)}; {remedy}") from error
        refuse_other_integers(codec, encoded, h, n, bits)
    total = np.array([[0, 1, n], [2**bits - 1, 2**bits // 2, 3]], np.uint32)
    try:
        words, signed = (codec.to_real(one.copy(), n) for one in (total, total.astype(np.int64)))
    except Exception as error:
        raise ConfigurationError(f"to_real of {name} cannot decode a sum: {reason(error)}") from error
    for real in (words, signed):
        if not (isinstance(real, np.ndarray) and real.shape == total.shape and real.dtype == np.float64):
            raise ConfigurationError(
                f"to_real of {name} must return an array {total.shape} of float64; got {_form(real)}"
            )
    if not np.array_equal(words, signed, equal_nan=True):
        raise ConfigurationError(
            f"to_real of {name} gives other numbers for uint32 than for the same integers as int64; begin with "
            "np.asarray(total, np.float64), because a difference of uint32 cannot be negative"
        )


def refuse_other_integers(codec: Codec, encoded: Any, h: Tensor, n: int, bits: int) -> None:
    """Accept what ``encode`` returns for the embeddings h, if a sum of n such integers fits the ring.

    Raises:
        ConfigurationError: naming the class of the codec.
    """
    name = type(codec).__name__
    integers, share = encoded if isinstance(encoded, tuple) and len(encoded) == 2 else (encoded, None)
    form = isinstance(integers, Tensor) and (integers.shape, integers.dtype) == (h.shape, torch.int32)
    if not (form and integers.device.type == "cpu" and isinstance(share, int | float)):
        found = ", ".join(_form(part) for part in (encoded if isinstance(encoded, tuple) else (encoded,)))
        raise ConfigurationError(
            f"encode of {name} must return {(*h.shape,)} torch.int32 on the CPU and the share of values out of range, "
            f"a float; got {found}"
        )
    if not integers.numel():
        return
    low, high = int(integers.min()), int(integers.max())
    most = (2**bits - 1) // n
    if low < 0 or high > most:
        wrong = integers.lt(0) | integers.gt(most)
        raise ConfigurationError(
            f"encode of {name} returns {int(integers[wrong][0])} for the number {float(h[wrong][0]):g}, but integers "
            f"must be from 0 to {most}, so that a sum of {n} fits the ring of 2^{bits}; clip and shift the numbers, "
            "use more bits, or raise a ConfigurationError for numbers out of range"
        )


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{(*value.shape,)} {value.dtype} on {value.device}"
    return f"{value.shape} {value.dtype}" if isinstance(value, np.ndarray) else repr(value)
