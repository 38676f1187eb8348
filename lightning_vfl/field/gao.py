"""Decoding with some wrong values: Reed-Solomon codes as polynomials, by Gao's algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field.lagrange import interpolate, lagrange_matrix
from lightning_vfl.field.modular import Modular


class DecodingError(RuntimeError):
    """More values are wrong than can be corrected."""


@dataclass(frozen=True)
class Decoded:
    """The result of decoding.

    Args:
        values: at the places asked for, (len(at), *S).
        wrong: positions in the list of points whose values were wrong anywhere, in ascending order.
    """

    values: Tensor
    wrong: tuple[int, ...]


def decode(field: Modular, values: Tensor, points: Sequence[int], at: Sequence[int], size: int) -> Decoded:
    """The values at ``at`` of polynomials of degree below ``size``, some of whose given values are wrong.

    An upload is a row of ``values``. Of n uploads, A = ⌊(n - size) / 2⌋ may be wrong in any way. First all uploads are
    compared with the polynomials through ``size`` of them. These are matrix products, and if no upload is wrong,
    decoding ends here. Otherwise Gao's decoder finds the wrong uploads of one polynomial that disagrees; they are left
    out, and the comparison starts again.

    Every result agrees with at least n - A of the uploads; two different polynomials of degree below ``size`` agree in
    at most ``size`` - 1 places, so there is no other within A wrong ones.

    Shapes: values (n, *S); result (len(at), *S).
    Units: field elements.
    Guarantee: exact whenever at most A uploads are wrong, and all of these are named; raises if every choice of
        polynomials of that degree leaves more than A uploads wrong.
    Not guaranteed: that more than A wrong uploads are noticed: close to another codeword they are taken for it.

    Args:
        field: the modulus.
        values: an upload for each point.
        points: where these values were taken, distinct.
        at: where values are wanted.
        size: R, the number of values that determine a polynomial: its degree plus one.

    Raises:
        ConfigurationError: for fewer values than ``size``, or points that are not distinct.
        DecodingError: if no polynomials are within A wrong uploads.

    Examples:
        >>> from lightning_vfl.field import PrimeField
        >>> uploads = torch.tensor([[3], [5], [99], [9]])  # 2 x + 1 at 1..4, one of them wrong
        >>> decode(PrimeField(), uploads, [1, 2, 3, 4], [0], 2)
        Decoded(values=tensor([[1]]), wrong=(2,))

    References:
        Gao, "A new algorithm for decoding Reed-Solomon codes", in Communications, Information and Network Security,
        Springer 2003, algorithm 1.
    """
    n = len(points)
    if values.dim() < 1 or values.shape[0] != n:
        raise ConfigurationError(
            f"values of shape {tuple(values.shape)} do not belong to {n} points; give a row for each point"
        )
    if not 1 <= size <= n:
        raise ConfigurationError(
            f"{n} values do not determine a polynomial of {size} coefficients; wait for more uploads"
        )
    field.check(values)
    lagrange_matrix(points, [], field.modulus)  # refuses equal points
    correctable = (n - size) // 2
    columns = values.reshape(n, -1)
    wrong: set[int] = set()
    while True:
        trusted = [i for i in range(n) if i not in wrong]
        first, rest = trusted[:size], trusted[size:]
        if rest:
            expected = interpolate(field, columns[first], [points[i] for i in first], [points[i] for i in rest])
            differs = (expected != columns[rest]).any(0)
            suspect = int(differs.to(torch.uint8).argmax()) if differs.numel() else 0
            if differs.numel() and bool(differs[suspect]):
                wrong |= _wrong_in(field, columns[:, suspect].tolist(), points, size, correctable)
                if len(wrong) <= correctable:
                    continue
                raise DecodingError(_beyond(n, size, correctable))
        found = interpolate(field, columns[first], [points[i] for i in first], at)
        return Decoded(found.view(len(at), *values.shape[1:]), tuple(sorted(wrong)))


def _wrong_in(field: Modular, values: list[int], points: Sequence[int], size: int, correctable: int) -> set[int]:
    """The wrong positions of one polynomial."""
    p = field.modulus
    x, y = [int(point) % p for point in points], [value % p for value in values]
    polynomial = _gao(x, y, size, p)
    wrong = {i for i, (a, b) in enumerate(zip(x, y, strict=True)) if polynomial is None or _at(polynomial, a, p) != b}
    if len(wrong) > correctable:
        raise DecodingError(_beyond(len(points), size, correctable))
    return wrong


def _beyond(n: int, size: int, correctable: int) -> str:
    return (
        f"no polynomial with {size} coefficients agrees with {n - correctable} of the {n} uploads: more than "
        f"{correctable} are wrong; wait for two more uploads for each further wrong one"
    )


# Polynomials are lists of Python integers, the constant first, without zeros at the end: n is at most the number of
# parties, and the largest modulus would not fit products of machine integers.


def _gao(x: list[int], y: list[int], size: int, p: int) -> list[int] | None:
    """The polynomial within ⌊(n - size) / 2⌋ wrong values of y, if Gao's algorithm finds one."""
    n = len(x)
    vanishing = [1]
    for a in x:
        vanishing = _times(vanishing, [-a % p, 1], p)
    through: list[int] = []  # of degree below n, through all values, by Newton's divided differences
    basis = [1]
    for a, b in zip(x, y, strict=True):
        factor = (b - _at(through, a, p)) * pow(_at(basis, a, p), -1, p) % p
        through = _minus(through, _times(basis, [-factor % p] if factor else [], p), p)
        basis = _times(basis, [-a % p, 1], p)
    # Euclid on (vanishing, through) until the remainder's degree is below (n + size) / 2
    g, h, u, v = vanishing, through, list[int](), [1]
    while 2 * (len(h) - 1) >= n + size:
        quotient, remainder = _divided(g, h, p)
        g, h = h, remainder
        u, v = v, _minus(u, _times(quotient, v, p), p)
    quotient, remainder = _divided(h, v, p)
    return None if remainder or len(quotient) > size else quotient


def _at(f: list[int], x: int, p: int) -> int:
    value = 0
    for c in reversed(f):
        value = (value * x + c) % p
    return value


def _trimmed(f: list[int]) -> list[int]:
    while f and not f[-1]:
        f.pop()
    return f


def _minus(f: list[int], g: list[int], p: int) -> list[int]:
    out = f + [0] * (len(g) - len(f))
    for i, c in enumerate(g):
        out[i] = (out[i] - c) % p
    return _trimmed(out)


def _times(f: list[int], g: list[int], p: int) -> list[int]:
    if not f or not g:
        return []
    out = [0] * (len(f) + len(g) - 1)
    for i, a in enumerate(f):
        for j, b in enumerate(g):
            out[i + j] = (out[i + j] + a * b) % p
    return out


def _divided(f: list[int], g: list[int], p: int) -> tuple[list[int], list[int]]:
    """Quotient and remainder; g is not zero."""
    remainder, inverse = list(f), pow(g[-1], -1, p)
    quotient = [0] * max(len(f) - len(g) + 1, 0)
    for k in reversed(range(len(quotient))):
        factor = remainder[k + len(g) - 1] * inverse % p
        quotient[k] = factor
        for i, c in enumerate(g):
            remainder[k + i] = (remainder[k + i] - factor * c) % p
    return quotient, _trimmed(remainder)
