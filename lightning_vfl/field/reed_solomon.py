"""Decoding with some wrong values: Reed-Solomon codes as polynomials, by Peterson's algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field.lagrange import interpolate, lagrange_matrix
from lightning_vfl.field.prime import PrimeField
from lightning_vfl.types import numbers_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


def decode(field: PrimeField, values: Tensor, points: Sequence[int], at: Sequence[int], size: int) -> Decoded:
    """The values at ``at`` of polynomials of degree below ``size``, some of whose given values are wrong.

    An upload is a row of ``values``. Of n uploads, A = ⌊(n - size) / 2⌋ may be wrong in any way. First all uploads are
    compared with the polynomials through ``size`` of them. These are matrix products, and if no upload is wrong,
    decoding ends here. Otherwise the wrong uploads of one polynomial that disagrees are found; they are left out, and
    the comparison starts again.

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
        >>> import torch
        >>> from lightning_vfl.field import PrimeField
        >>> uploads = torch.tensor([[3], [5], [99], [9]])  # 2 x + 1 at 1..4, one of them wrong
        >>> decode(PrimeField(), uploads, [1, 2, 3, 4], [0], 2)
        Decoded(values=tensor([[1]]), wrong=(2,))

    References:
        Peterson, "Encoding and Error-Correction Procedures for the Bose-Chaudhuri Codes", IRE Transactions on
        Information Theory 6, 1960; Gorenstein, Zierler, "A Class of Error-Correcting Codes in p^m Symbols", Journal of
        the Society for Industrial and Applied Mathematics 9, 1961.
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
        known = columns[trusted[:size]]
        places = [points[i] for i in trusted[:size]]
        expected = interpolate(field, known, places, [points[i] for i in trusted[size:]])
        disagreeing = (expected != columns[trusted[size:]]).any(0).nonzero()
        if not len(disagreeing):
            result = interpolate(field, known, places, at).view(len(at), *values.shape[1:])
            return Decoded(result, tuple(sorted(wrong)))
        wrong |= _wrong_in(field, columns[:, int(disagreeing[0])], points, size, correctable)
        if len(wrong) > correctable:
            raise DecodingError(
                f"no polynomial with {size} coefficients agrees with {n - correctable} of the {n} uploads: more than "
                f"{correctable} are wrong; wait for two more uploads for each further wrong one"
            )


def _wrong_in(field: PrimeField, values: Tensor, points: Sequence[int], size: int, correctable: int) -> set[int]:
    """The wrong positions of one polynomial; all positions if more than A are wrong.

    With v_i = 1 / Π_j (x_i - x_j), the sum of v_i g(x_i) is zero for every g of degree below n - 1: in the syndromes
    S_k = Σ_i v_i y_i x_i^k, k < n - R, only the errors are left. The locator E, of degree at most A, is a polynomial
    with Σ_l E_l S_(k+l) = Σ_i v_i error_i E(x_i) x_i^k = 0 for at least A values of k. With at most A errors, these
    equations say that E is zero at every wrong point; so y_i is right wherever E is not zero.
    """
    p = field.modulus
    weights = [pow(prod(point - other for other in points if other != point), -1, p) for point in points]
    terms = list(zip(weights, values.tolist(), points, strict=True))
    syndromes = [sum(v * y * pow(x, k, p) for v, y, x in terms) % p for k in range(len(points) - size)]
    equations = [syndromes[k : k + correctable + 1] for k in range(len(points) - size - correctable)]
    locator = _solution(np.array(equations, object), p)
    at_points = [sum(coefficient * pow(x, k, p) for k, coefficient in enumerate(locator)) % p for x in points]
    right = [place for place, value in enumerate(at_points) if value][:size]
    if len(right) < size:
        return set(range(len(points)))
    expected = interpolate(field, values[right], [points[i] for i in right], points)
    return set(numbers_in(expected != values))


def _solution(matrix: "NDArray[Any]", p: int) -> "NDArray[Any]":
    """A vector that the matrix takes to zero modulo p, by elimination; zeros if there is no other."""
    # Python's integers: products of elements of the largest modulus pass 64 bits
    solution = np.zeros(matrix.shape[1], object)
    for column in range(matrix.shape[1]):
        candidates = np.flatnonzero(matrix[column:, column])
        if not len(candidates):  # the first column that depends on those before it
            solution[column] = 1
            solution[:column] = -matrix[:column, column] % p
            break
        pivot = column + candidates[0]
        matrix[[column, pivot]] = matrix[[pivot, column]]
        matrix[column] = matrix[column] * pow(matrix[column, column], -1, p) % p
        factors = matrix[:, column].copy()
        factors[column] = 0
        matrix = (matrix - np.outer(factors, matrix[column])) % p
    return solution
