"""Prime fields."""

from itertools import count

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import floats
from lightning_vfl.field.limbs import plan
from lightning_vfl.field.modular import Modular, integers, product_shape

P31 = 2**31 - 1
P61 = 2**61 - 1
WITNESSES = 2, 3, 5, 7  # of Miller and Rabin's test, without an error below 3,215,031,751 (Jaeschke 1993)
SHORT = 8  # terms of one fused integer sum: 8 · (2^30 - 1)^2 < 2^63


class PrimeField(Modular):
    """The integers modulo a prime: any odd one below 2^31, or 2^61 - 1.

    ``matmul`` splits the operands into signed limbs, so that float64 matrix products are exact (``limbs.plan``), and
    adds them up modulo p in fused passes. On a CPU, up to 8 terms of a prime below 2^31 are multiplied as integers.

    Shapes: matmul (*, m, k) times (*, k, n) gives (*, m, n), batch dimensions broadcast.
    Units: field elements, int64 in [0, p); 31 or 61 bits on the wire.
    Guarantee: exact, for all elements, shapes, strides and on every device.
    Not guaranteed: constant running time; gradients.

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
        super().__init__(p)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        batch = product_shape(a.shape, b.shape)
        terms, columns = b.shape[-2:]
        integers(a)
        integers(b)
        if terms <= SHORT <= columns and self.modulus < 2**31 and floats.fused(a):
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

    def rows_times(self, table: Tensor, tables: Tensor, rows: Tensor, right: Tensor) -> Tensor:
        from lightning_vfl.field import row_products

        on_cpu = floats.fused(table) and floats.fused(right)
        if not on_cpu or not right.numel() or not row_products.suits(right.shape[1], self.modulus):
            return super().rows_times(table, tables, rows, right)
        out, fine = row_products.rows_times(table, tables.numpy(), rows.numpy(), right, self.modulus)
        if not fine:
            return super().rows_times(table, tables, rows, right)  # the error names the element
        return out

    def along(self, start: Tensor, end: Tensor, times: Tensor) -> Tensor:
        if self.modulus >= 2**31 or not floats.fused(start):
            return super().along(start, end, times)
        integers(start)
        integers(end)
        integers(times)
        out, fine = floats.along(start, end, times, self.modulus)
        if not fine:
            self.check(start, end, times)  # the error names the element
        return out

    def columns_at_once(self, terms: int) -> int:
        # the fused pass has no intermediate results
        return 2**62 if terms <= SHORT and self.modulus < 2**31 else super().columns_at_once(terms)

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
