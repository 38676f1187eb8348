"""The base class of moduli: integers in [0, p) as int64 tensors."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = Callable[[int], "NDArray[np.uint64]"]


class Modular(ABC):
    """Exact arithmetic modulo an odd number p below 2^63, on int64 tensors of elements in [0, p).

    Shapes: as torch broadcasts; results are new tensors.
    Units: field elements; ``wire_bits`` bits each when sent.
    Guarantee: every result is exact and in [0, p). ``matmul``, ``totals`` and ``lift`` refuse elements outside [0, p)
        and other dtypes; ``embed`` refuses integers that do not fit.
    Not guaranteed: constant running time; a range check in ``add`` and ``sum``, which would take longer than the
        addition; gradients.

    Args:
        modulus: p.
    """

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus
        self.half = (modulus - 1) // 2
        self.wire_bits = modulus.bit_length()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.modulus})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Modular) and self.modulus == other.modulus

    def __hash__(self) -> int:
        return hash((type(self), self.modulus))

    @abstractmethod
    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of two (batches of) matrices: (*, m, k) times (*, k, n), batch dimensions broadcast."""

    def columns_at_once(self, terms: int) -> int:
        """How many columns a product of few terms and very many columns should compute at a time, to stay in the cache.

        All columns at once, 28 x 7 by 7 x 1,000,000 took 1.6 times as long modulo 2^61 - 1.
        """
        return 2**15

    def rows_times(self, table: Tensor, tables: Tensor, rows: Tensor, right: Tensor) -> Tensor:
        """Rows of stored tables times matrices: ``matmul(table[tables][:, rows], right)``, without storing the rows.

        Shapes: table (T, N, k) of any integer type, tables (h,) and rows (r,) int64 on the CPU, right (h, k, n); the
            product (h, r, n).
        """
        hosts, (_, length, width) = len(tables), table.shape
        flat = (tables[:, None] * length + rows).flatten().to(table.device)
        chosen = table.reshape(-1, width).index_select(0, flat).view(hosts, len(rows), width)
        return self.matmul(chosen.to(right.device).to(torch.int64), right)

    def along(self, start: Tensor, end: Tensor, times: Tensor) -> Tensor:
        """Points of the line through two vectors: start + times · (end - start), (m, *S) for times (m,)."""
        step = self._up(end - start)
        line = self.matmul(times.unsqueeze(1), step.reshape(1, -1))
        return self.add(line, start.reshape(1, -1)).view(len(times), *start.shape)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Element-wise sum."""
        return self._up((b - self.modulus) + a)  # not a + b, which passes 2^63 for the large moduli

    def sum(self, x: Tensor) -> Tensor:
        """The sum over the first dimension, of at least one element."""
        if len(x) * self.modulus < 2**63:
            return x.sum(0).remainder_(self.modulus)
        total = x[0]
        for element in x[1:]:
            total = self.add(total, element)
        return total

    def totals(self, x: Tensor) -> Tensor:
        """The sums (H, *S) over the second dimension of x (H, n, *S), n at least 1.

        Raises:
            ConfigurationError: if x is not an int64 tensor of elements in [0, p).
        """
        if x.device.type != "cpu" or x.shape[1] * self.modulus >= 2**62:
            self.check(x)
            return self.sum(x.transpose(0, 1))
        from lightning_vfl.field.kernels import add_up  # numba: 0.5 s, where it is used

        integers(x)
        flat = x.reshape(len(x), x.shape[1], prod(x.shape[2:]))
        total = torch.empty(len(flat), flat.shape[2], dtype=torch.int64)
        if not add_up(flat.numpy(), total.numpy(), self.modulus):
            self.check(x)
        return total.view(len(x), *x.shape[2:])

    def lift(self, x: Tensor) -> Tensor:
        """The centred residue: x up to (p - 1) / 2, x - p above it."""
        self.check(x)
        return torch.where(x > self.half, x - self.modulus, x)

    def embed(self, x: Tensor) -> Tensor:
        """Signed integers as field elements: x < 0 becomes p + x.

        Raises:
            ConfigurationError: if an integer is above (p - 1) / 2 in absolute value: its sign would be lost.
        """
        integers(x)
        if x.device.type == "cpu":
            from lightning_vfl.field.elements import embed  # numba: 0.5 s, where it is used

            x = x.contiguous()
            out = torch.empty_like(x)
            if embed(x.view(-1).numpy(), self.modulus, out.view(-1).numpy()):
                return out
        low, high = self._extremes(x)
        if max(-low, high) > self.half:
            raise ConfigurationError(
                f"the integer {low if -low > high else high} is outside ±{self.half}, the signed range of the modulus "
                f"{self.modulus}; use fewer scale bits or a larger modulus"
            )
        return self._up(x.clone())

    def random(self, shape: Sequence[int], words: "Words", device: torch.device | str = "cpu") -> Tensor:
        """Uniform elements from a source of random words, without bias.

        Each word, or each half of a word if p has at most 32 bits, gives as many low bits as p has. Values of p or
        above are rejected.

        Args:
            shape: of the result.
            words: gives n uniform 64-bit words for n, e.g. ``stream(seed, "masks", round).random_raw``.
            device: of the result.
        """
        from lightning_vfl.field.elements import pick

        elements = torch.empty(tuple(shape), dtype=torch.int64)
        out, drawn, mask = elements.view(-1).numpy(), 0, (1 << self.wire_bits) - 1
        while drawn < len(out):
            missing = len(out) - drawn
            short = self.wire_bits <= 32
            bits = words((missing + 1) // 2).view(np.uint32) if short else words(missing)
            drawn = pick(bits, mask, self.modulus, out, drawn)
        return elements.to(device)

    def check(self, *tensors: Tensor) -> None:
        """Refuse tensors that are not int64 or have elements outside [0, p)."""
        for x in tensors:
            low, high = self._extremes(x)
            if low < 0 or high >= self.modulus:
                self.refuse(low if low < 0 else high)

    def refuse(self, element: int) -> None:
        """Raise the error for an integer outside [0, p)."""
        raise ConfigurationError(
            f"{element} is not an element modulo {self.modulus}: elements are in [0, {self.modulus}); "
            "map signed integers with embed()"
        )

    def _extremes(self, x: Tensor) -> tuple[int, int]:
        """The smallest and the largest integer of a tensor, (0, 0) if it is empty."""
        integers(x)
        if not x.numel():
            return 0, 0
        low, high = torch.aminmax(x)
        return int(low), int(high)

    def _up(self, x: Tensor) -> Tensor:
        """[-p, p) to [0, p), in place."""
        return x.add_((x >> 63).bitwise_and_(self.modulus))


def integers(x: Tensor) -> None:
    """Refuse dtypes other than int64: float tensors would be rounded, narrow integers would wrap around."""
    if x.dtype != torch.int64:
        raise ConfigurationError(f"field elements must be int64 tensors; got {x.dtype}, convert with .to(torch.int64)")


def product_shape(a: torch.Size, b: torch.Size) -> tuple[int, ...]:
    """The batch dimensions of a product of matrices, after a check of all dimensions."""
    if len(a) < 2 or len(b) < 2:
        raise ConfigurationError(f"matmul takes matrices; got shapes {tuple(a)} and {tuple(b)}, add a dimension of 1")
    if a[-1] != b[-2]:
        raise ConfigurationError(
            f"a matrix with {a[-1]} columns cannot be multiplied with one of {b[-2]} rows; transpose an operand"
        )
    try:
        return tuple(torch.broadcast_shapes(a[:-2], b[:-2]))  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise ConfigurationError(
            f"the batches {tuple(a[:-2])} and {tuple(b[:-2])} do not broadcast; use equal sizes or 1"
        ) from None
