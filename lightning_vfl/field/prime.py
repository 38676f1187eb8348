"""Prime fields."""

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import floats
from lightning_vfl.field.limbs import plan
from lightning_vfl.field.modular import Modular, Prepared, integers, known_side, product_shape

P31 = 2**31 - 1
P61 = 2**61 - 1
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
        ConfigurationError: for a number that is no such prime.

    Examples:
        >>> field = PrimeField()
        >>> field.matmul(torch.tensor([[field.modulus - 1, 1]]), torch.tensor([[field.modulus - 1], [5]])).tolist()
        [[6]]
    """

    def __init__(self, p: int = P31) -> None:
        if p not in (P31, P61):
            if not 3 <= p < 2**31:
                raise ConfigurationError(f"the modulus {p} is not supported; use an odd prime below 2^31, or 2^61 - 1")
            import galois  # its import takes a second, and the two primes above need none of it

            if p % 2 == 0 or not galois.is_prime(p):
                raise ConfigurationError(f"{p} is no odd prime; use e.g. {galois.next_prime(p)}")
        super().__init__(p)

    def matmul(self, a: Tensor | Prepared, b: Tensor | Prepared) -> Tensor:
        batch = product_shape(a.shape, b.shape)
        terms, columns = b.shape[-2:]
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            integers(a)
            integers(b)
            if terms <= SHORT <= columns and self.modulus < 2**31 and floats.fused(a):
                out, fine = floats.short(a, b, self.modulus, batch)
                if not fine:
                    self.check(a, b)  # says which element
                return out
        split = plan(terms, self.modulus)
        few, many = split.few.count, split.many.count
        if isinstance(a, Prepared):
            left = a.limbs
        elif isinstance(b, Prepared):
            left = few if b.limbs == many else many
        else:
            left = many if a.numel() < b.numel() else few  # splitting writes as many floats as it makes limbs
        a = self._prepared(a, "left", left)
        b = self._prepared(b, "right", few if left == many else many)
        if a.limbs * b.limbs != split.products:
            raise ConfigurationError("both operands are prepared in the same number of limbs; prepare one of them only")
        total = torch.empty((*batch, a.shape[-2], columns), dtype=torch.int64, device=a.parts.device)
        floats.product(a.parts, b.parts, split, self.modulus, total)
        return total

    def columns_at_once(self, terms: int) -> int:
        # the fused pass makes nothing on the way
        return 2**62 if terms <= SHORT and self.modulus < 2**31 else super().columns_at_once(terms)

    def prepare(self, x: Tensor, side: str) -> Prepared:
        known_side(side)
        integers(x)
        if x.dim() < 2:
            raise ConfigurationError(f"matmul takes matrices, not the shape {tuple(x.shape)}; add a dimension of 1")
        return self._prepared(x, side, plan(x.shape[-1 if side == "left" else -2], self.modulus).many.count)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        self.check(a, b)
        return self._multiply(a, b)

    def inverse(self, x: Tensor) -> Tensor:
        self.check(x)
        if (x == 0).any():
            raise ConfigurationError("0 has no inverse; take it out before")
        result, power, exponent = torch.ones_like(x), x, self.modulus - 2  # Fermat: x^(p-2) · x = 1
        while exponent:
            if exponent & 1:
                result = self._multiply(result, power)
            power = self._multiply(power, power)
            exponent >>= 1
        return result

    def _multiply(self, a: Tensor, b: Tensor) -> Tensor:
        if self.modulus == P61:
            return _multiply_61(a, b)
        product = a * b  # below 2^62
        if self.modulus == P31:
            for _ in range(2):  # 2^31 = 1: to at most 2^32, then to at most 2^31
                carry = product >> 31
                product.bitwise_and_(P31).add_(carry)
            return self._up(product.sub_(P31))
        return product.remainder_(self.modulus)

    def _prepared(self, x: Tensor | Prepared, side: str, count: int) -> Prepared:
        if isinstance(x, Prepared):
            if x.owner != self or x.side != side:
                raise ConfigurationError(
                    f"an operand prepared for the {x.side} of {x.owner} is on the {side} of {self}; prepare it anew"
                )
            return x
        parts, fine = floats.split(x, count, self.modulus, side)
        if not fine:
            self.check(x)  # says which element
        return Prepared(self, side, x.shape, parts, count)


def _multiply_61(a: Tensor, b: Tensor) -> Tensor:
    """Modulo 2^61 - 1, in halves of 30 and 31 bits: 2^62 = 2 and a rotation instead of every other power of two."""
    a1, a0, b1, b0 = a >> 31, a & P31, b >> 31, b & P31
    middle = (a1 * b0).add_(a0 * b1)  # below 2^62
    total = (a1 * b1).mul_(2)  # below 2^61
    total.add_(middle >> 30).add_((middle & (2**30 - 1)).bitwise_left_shift_(31))  # below 2^62 + 2^32
    low = a0 * b0  # below 2^62
    total.add_(low >> 61).add_(low & P61)  # below 2^63
    carry = total >> 61
    total.bitwise_and_(P61).add_(carry).sub_(P61)
    return total.add_((total >> 63).bitwise_and_(P61))
