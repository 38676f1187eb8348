"""Prime fields: exact arithmetic on int64 tensors of integers in [0, p)."""

from collections.abc import Callable, Sequence
from itertools import count
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import floats
from lightning_vfl.field.limbs import plan
from lightning_vfl.types import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = Callable[[int], "NDArray[np.uint64]"]

P31 = 2**31 - 1
P61 = 2**61 - 1
WITNESSES = 2, 3, 5, 7  # of Miller and Rabin's test, without an error below 3,215,031,751 (Jaeschke 1993)
SHORT = 8  # terms of one fused integer sum: 8 · (2^30 - 1)^2 < 2^63


class PrimeField:
    """The integers modulo a prime: any odd one below 2^31, or 2^61 - 1.

    ``matmul`` splits the operands into signed limbs, so that float64 matrix products are exact (``limbs.plan``), and
    adds them up modulo p in fused passes. On a CPU, up to 8 terms of a prime below 2^31 are multiplied as integers.

    Shapes: as torch broadcasts; matmul (*, m, k) times (*, k, n) gives (*, m, n). Results are new tensors.
    Units: field elements, int64 in [0, p); 31 or 61 bits on the wire.
    Guarantee: every result is exact and in [0, p), for all elements, shapes, strides and on every device. ``matmul``,
        ``totals`` and ``lift`` refuse elements outside [0, p) and other dtypes; ``embed`` refuses integers that do not
        fit.
    Not guaranteed: constant running time; a range check in ``add`` and ``sum``, which would take longer than the
        addition; gradients.

    Args:
        p: the modulus.

    Raises:
        ConfigurationError: for another number.

    Examples:
        >>> field = PrimeField()
        >>> field.matmul(torch.tensor([[field.modulus - 1, 1]]), torch.tensor([[field.modulus - 1], [5]])).tolist()
        [[6]]
    """

    def __init__(self, p: int = P31) -> None:
        if p not in (P31, P61):
            if not 3 <= p < 2**31:
                raise ConfigurationError(f"the modulus {p} is not supported; use an odd prime below 2^31, or 2^61 - 1")
            if not is_odd_prime(p):
                larger = next(number for number in count(p) if is_odd_prime(number))
                raise ConfigurationError(f"{p} is not an odd prime; use for example {larger}")
        self.modulus = p
        self.half = (p - 1) // 2
        self.wire_bits = p.bit_length()

    def __repr__(self) -> str:
        return f"PrimeField({self.modulus})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrimeField) and self.modulus == other.modulus

    def __hash__(self) -> int:
        return hash(self.modulus)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of two (batches of) matrices: (*, m, k) times (*, k, n), batch dimensions broadcast."""
        batch = product_shape(a.shape, b.shape)
        terms, columns = b.shape[-2:]
        integers(a, b)
        if terms <= SHORT <= columns and self.modulus < 2**31 and a.is_cpu:
            out, fine = floats.short(a, b, self.modulus, batch)
            if not fine:
                self.check(a, b)  # the error names the element
            return out
        split = plan(terms, self.modulus)
        few, many = split.few.count, split.many.count
        # the smaller operand is split into more limbs, since splitting writes one float per limb and element
        left, right = (many, few) if a.numel() < b.numel() else (few, many)
        limbs = self._split(a, left, "left"), self._split(b, right, "right")
        total = torch.empty((*batch, a.shape[-2], columns), dtype=torch.int64, device=a.device)
        floats.product(*limbs, split, self.modulus, total)
        return total

    def columns_at_once(self, terms: int) -> int:
        """How many columns a product of few terms and very many columns should compute at a time, to stay in the cache.

        All columns at once, 28 x 7 by 7 x 1,000,000 took 1.6 times as long modulo 2^61 - 1. The fused pass of integer
        products has no intermediate results.
        """
        return 2**62 if terms <= SHORT and self.modulus < 2**31 else 2**15

    def rows_times(self, table: Tensor, tables: Tensor, rows: Tensor, right: Tensor) -> Tensor:
        """Rows of stored tables times matrices: ``matmul(table[tables][:, rows], right)``, without storing the rows.

        Shapes: table (T, N, k) of any integer type, tables (h,) and rows (r,) int64 on the CPU, right (h, k, n); the
            product (h, r, n).
        """
        if table.is_cpu and right.is_cpu and right.numel() and floats.suits(right.shape[1], self.modulus):
            out, fine = floats.rows_times(table, tables.numpy(), rows.numpy(), right, self.modulus)
            if fine:
                return out
        hosts = len(tables)
        _, length, width = table.shape
        flat = (tables[:, None] * length + rows).flatten().to(table.device)
        chosen = table.reshape(-1, width).index_select(0, flat).view(hosts, len(rows), width)
        return self.matmul(chosen.to(right.device).to(torch.int64), right)  # its error names a wrong element

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
            from lightning_vfl.field.kernels import embed  # numba: 0.5 s, where it is used

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
        from lightning_vfl.field.kernels import pick

        elements = torch.empty(tuple(shape), dtype=torch.int64)
        out = elements.view(-1).numpy()
        drawn = 0
        mask = (1 << self.wire_bits) - 1
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
                raise ConfigurationError(
                    f"{low if low < 0 else high} is not an element modulo {self.modulus}: elements are in "
                    f"[0, {self.modulus}); map signed integers with embed()"
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

    def _split(self, x: Tensor, count: int, side: str) -> Tensor:
        parts, fine = floats.split(x, count, self.modulus, side)
        if not fine:
            self.check(x)  # the error names the element
        return parts


def is_odd_prime(number: int) -> bool:
    """Whether a number below 2^31 is an odd prime, by Miller and Rabin's test.

    Examples:
        >>> [number for number in range(20) if is_odd_prime(number)]
        [3, 5, 7, 11, 13, 17, 19]
    """
    if number < 2 or number % 2 == 0 or number in WITNESSES:
        return number in WITNESSES[1:]
    twos = ((number - 1) & (1 - number)).bit_length() - 1  # number - 1 = odd · 2^twos
    odd = (number - 1) >> twos
    return all(
        pow(base, odd, number) == 1 or any(pow(base, odd << k, number) == number - 1 for k in range(twos))
        for base in WITNESSES
    )


def integers(*tensors: Tensor) -> None:
    """Refuse dtypes other than int64: float tensors would be rounded, narrow integers would wrap around."""
    for x in tensors:
        if x.dtype != torch.int64:
            raise ConfigurationError(
                f"field elements must be int64 tensors; got {x.dtype}, convert with .to(torch.int64)"
            )


def product_shape(a: torch.Size, b: torch.Size) -> Shape:
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
