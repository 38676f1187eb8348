"""How many limbs make a float64 matrix product exact: the one rule, and the only place that knows the number 53."""

from dataclasses import dataclass
from functools import lru_cache

from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError

EXACT = 2**53  # every integer up to here, and no further, is a float64
SHORTEST = 256  # a chunk costs a pass over the product's result: below this the passes cost more than one more limb
LONGEST = 2**22  # keeps the sums of tiny primes far below EXACT, where the reduction's quotient is surely within one
SPLITS = ((1, 1), (1, 2), (1, 3), (2, 2), (1, 4), (2, 3), (2, 4), (3, 3))  # by number of products


@dataclass(frozen=True)
class Limbs:
    """The signed digits of a centred residue c, |c| ≤ (p - 1) / 2, in base 2^bits.

    c = Σ_i digit_i · 2^(bits·i), digit_i in [-2^(bits-1), 2^(bits-1)) below the last one, which takes what is left.

    Args:
        count: number of digits.
        bits: of a digit.
        bound: the largest absolute value of any digit of any residue.
    """

    count: int
    bits: int
    bound: int


@dataclass(frozen=True)
class Plan:
    """How a product modulo p is taken apart into float64 products.

    Args:
        few: limbs of one operand.
        many: limbs of the other; the one to split is the smaller or the constant one.
        chunk: terms of the contraction in one float64 product.
    """

    few: Limbs
    many: Limbs
    chunk: int

    @property
    def products(self) -> int:
        """Float64 products of the size of the whole."""
        return self.few.count * self.many.count


@lru_cache(maxsize=4096)
def balanced(p: int, count: int) -> Limbs:
    """The digits of the residues modulo p whose largest absolute value is smallest.

    Examples:
        >>> balanced(2**31 - 1, 2)
        Limbs(count=2, bits=16, bound=32768)
    """
    half = (p - 1) // 2
    if count == 1:
        return Limbs(1, 0, half)

    def bound(bits: int) -> int:
        # c ≤ half, and every lower digit may be as low as -2^(bits-1): the last one makes up for all of them
        lower = sum(1 << (bits - 1 + bits * i) for i in range(count - 1))
        return max(1 << (bits - 1), (half + lower) >> (bits * (count - 1)))

    bits = min(range(1, p.bit_length() + 1), key=lambda b: (bound(b), -b))
    return Limbs(count, bits, bound(bits))


@lru_cache(maxsize=4096)
def plan(n: int, p: int) -> Plan:
    r"""The fewest float64 products that give a product modulo p with a contraction of n terms exactly.

    Every element is taken as its centred residue, :math:`|c| \le (p-1)/2`, and split into signed limbs. A chunk of k
    terms of one limb of either operand adds up k products of integers, in an order that the BLAS chooses. Whatever the
    order and however many are fused, every partial sum is an integer of absolute value at most

    .. math:: k \cdot \mathrm{bound}_{few} \cdot \mathrm{bound}_{many} \le 2^{53},

    and all integers up to there are float64 numbers: no operation rounds. The last inequality defines ``chunk``. Of all
    ways to split, the first in number of products is taken whose chunk holds all n terms or at least ``SHORTEST``.

    Args:
        n: terms of the contraction.
        p: odd modulus, at most 2^61 - 1.

    Shapes: none.
    Units: ``chunk`` in terms, ``bits`` in bits of a signed limb.
    Guarantee: each float64 product of a chunk of limbs is exact for all residues, those of absolute value (p - 1) / 2
        in every place included, under any order of summation and with or without fused multiply-add.
    Not guaranteed: exactness under algorithms that add operands before they multiply (Strassen), or that emulate
        float64 in fewer bits; neither MKL, OpenBLAS nor cuBLAS by default does.

    Raises:
        ConfigurationError: for n < 0, or a modulus that is even, below 3 or above 2^61 - 1.

    Examples:
        >>> plan(1024, 2**31 - 1).products, plan(1024, 2**31 - 1).chunk
        (2, 256)
        >>> plan(1024, 2097143).products, plan(1024, 2**61 - 1).products
        (1, 8)
    """
    within("the number of terms", n, 0, whole=True)
    if p % 2 == 0 or not 3 <= p < 2**61:
        raise ConfigurationError(f"the modulus {p} is not supported; use an odd modulus from 3 to 2^61 - 1")
    for few, many in ((balanced(p, a), balanced(p, b)) for a, b in SPLITS):
        chunk = min(EXACT // (few.bound * many.bound), LONGEST)
        if chunk >= min(max(n, 1), SHORTEST):
            break
    return Plan(few, many, chunk)
