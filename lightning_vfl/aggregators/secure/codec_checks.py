"""A trial of a codec before its first round: integers that do not fit the ring would be decoded to wrong numbers."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.privacy.draws import OwnKeystreams
from lightning_vfl.types import RoundNames, Rows

if TYPE_CHECKING:
    from lightning_vfl.aggregators.secure.codec import Codec

TRIED = (0.0, 1.0, -1.0, 1e3, -1e3, 1e9, -1e9)  # an embedding may be any number
ROWS = Rows(torch.arange(2), 0, 2)


def try_codec(codec: "Codec", slots: int, n: int, bits: int, names: RoundNames) -> None:
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


def refuse_other_integers(codec: "Codec", encoded: Any, h: Tensor, n: int, bits: int) -> None:
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
