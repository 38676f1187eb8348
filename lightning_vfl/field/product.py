"""A ring of two or three small primes: the larger modulus at one float64 product a prime."""

from math import prod

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import floats
from lightning_vfl.field.limbs import plan
from lightning_vfl.field.modular import Modular, integers, product_shape
from lightning_vfl.field.prime import PrimeField

P63 = (2097143, 2097133, 2097131)  # the largest primes below 2^21; their product is the largest kind below 2^63


class PrimeProduct(Modular):
    """The integers modulo a product of distinct primes from 2^13 to 2^22, by the Chinese remainder theorem.

    A float64 product of residues modulo a prime below 2^22 is exact without limbs for 2,048 terms (8,192 below 2^21),
    so that ``matmul`` takes one product a prime: three for the 63 bits of the default, where 2^61 - 1 takes eight. It
    is a ring, not a field: multiples of one of the primes have no inverse. Interpolation works for points that differ
    modulo each prime, and uniform masks hide a value as they do in a field.

    Shapes: matmul (*, m, k) times (*, k, n) gives (*, m, n), batch dimensions broadcast.
    Units: elements, int64 in [0, p); ``wire_bits`` bits on the wire.
    Guarantee: exact, for all elements, shapes, strides and on every device.
    Not guaranteed: an inverse of every element but 0; constant running time; gradients.

    Args:
        primes: distinct, with a product below 2^63.

    Raises:
        ConfigurationError: for other numbers.

    Examples:
        >>> ring = PrimeProduct()
        >>> ring.wire_bits, ring.matmul(torch.tensor([[ring.modulus - 1]]), torch.tensor([[ring.modulus - 5]])).item()
        (63, 5)
    """

    def __init__(self, primes: tuple[int, ...] = P63) -> None:
        primes = tuple(sorted(primes))
        fits = primes and min(primes) >= 2**13 and max(primes) < 2**22 and prod(primes) < 2**63
        if not fits or len(set(primes)) != len(primes):
            raise ConfigurationError(
                f"the primes {', '.join(map(str, primes))} do not make a modulus; "
                "use distinct primes from 2^13 to 2^22 with a product below 2^63"
            )
        for p in primes:
            PrimeField(p)  # refuses composite numbers
        super().__init__(prod(primes))
        self.primes = primes

    def __repr__(self) -> str:
        return f"PrimeProduct({self.primes})"

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        batch = product_shape(a.shape, b.shape)
        terms = b.shape[-2]
        left, right = self._residues(a), self._residues(b)
        shape = (len(self.primes), *batch, a.shape[-2], b.shape[-1])
        digits = torch.empty(shape, dtype=torch.int64, device=a.device)
        for p, x, y, digit in zip(self.primes, left, right, digits, strict=True):
            floats.product(x.unsqueeze(-3), y.unsqueeze(-2), plan(terms, p), p, digit)
        return floats.join(digits, self.primes)

    def _residues(self, x: Tensor) -> Tensor:
        integers(x)
        parts, fine = floats.residues(x, self.primes)
        if not fine:
            self.check(x)  # the error names the element
        return parts
