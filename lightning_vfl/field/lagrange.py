"""Lagrange interpolation modulo p: the matrix from values of a polynomial at some points to its values at others."""

from collections.abc import Sequence
from functools import lru_cache
from math import gcd

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field.prime import PrimeField


def lagrange_matrix(points: Sequence[int], at: Sequence[int], p: int) -> Tensor:
    r"""The values at ``at`` of the polynomials that are 1 at one of the points and 0 at the others.

    .. math:: L_{ij} = \prod_{l \ne j} \frac{at_i - points_l}{points_j - points_l} \bmod p

    Shapes: (len(at), len(points)), int64.
    Units: elements in [0, p); points are taken modulo p.
    Guarantee: exact for every p below 2^63, prime or not: computed in Python's integers. With f of degree below
        len(points), L times its values at the points gives its values at ``at``.
    Not guaranteed: speed for very many points; the work is a few µs for every element.

    Args:
        points: where values are known, distinct modulo p.
        at: where values are wanted.
        p: the modulus. If it is no prime, differences of points must have no factor in common with it.

    Raises:
        ConfigurationError: if two points are equal modulo p (or modulo a factor of it), or there are no points.

    Examples:
        >>> lagrange_matrix([1, 2], [3], 11).tolist()  # f(3) = 2 f(2) - f(1)
        [[10, 2]]

    References:
        Yu, Li, Raviv, Kalan, Soltanolkotabi, Avestimehr, "Lagrange Coded Computing", AISTATS 2019, equation (4);
        Li, Yao, Liu, "FedVS", ICML 2023, section 4.2, equation (2).
    """
    return _matrix(tuple(points), tuple(at), p).clone()


@lru_cache(maxsize=256)  # a coded round asks for the same few, in Python's integers a millisecond each
def _matrix(points: tuple[int, ...], at: tuple[int, ...], p: int) -> Tensor:
    if not 2 <= p < 2**63:
        raise ConfigurationError(f"the modulus {p} does not fit into int64 tensors; use a modulus from 2 to 2^63 - 1")
    x = [int(point) % p for point in points]
    if not x:
        raise ConfigurationError("there are no points to interpolate from; give at least one")
    weights = []
    for j, xj in enumerate(x):
        difference = 1
        for i, xi in enumerate(x):
            if i != j:
                difference = difference * (xj - xi) % p
        try:
            weights.append(pow(difference, -1, p))
        except ValueError:
            other = next(points[i] for i, xi in enumerate(x) if i != j and gcd(xj - xi, p) != 1)
            raise ConfigurationError(
                f"the points {points[j]} and {other} cannot be told apart modulo {p}; use distinct points"
            ) from None
    rows = []
    for point in at:
        t = int(point) % p
        # products of (t - x_l) to the left and to the right of j: no division, so that t may be one of the points
        left, right = [1], [1]
        for xj in x:
            left.append(left[-1] * (t - xj) % p)
        for xj in reversed(x):
            right.append(right[-1] * (t - xj) % p)
        n = len(x)
        rows.append([left[j] * right[n - 1 - j] % p * weights[j] % p for j in range(n)])
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), len(x))


def interpolate(field: PrimeField, values: Tensor, points: Sequence[int], at: Sequence[int]) -> Tensor:
    """The values at ``at`` of the polynomials with these values at the points: encoding and decoding alike.

    To encode, the points are the β of data and masks, ``at`` the parties' α; to decode, the other way round.

    Shapes: values (len(points), *S); result (len(at), *S).
    Units: field elements.
    Guarantee: exact if each polynomial's degree is below len(points).
    Not guaranteed: a check of the degree. With too few points the result is wrong and no error is raised; ``decode``
        with more values than needed notices this.

    Args:
        field: the modulus.
        values: known values, a polynomial for each element of S.
        points: where they are known.
        at: where they are wanted.

    Raises:
        ConfigurationError: for points that are not distinct, or whose number is not that of the values.

    Examples:
        >>> from lightning_vfl.field import PrimeField
        >>> interpolate(PrimeField(11), torch.tensor([[1, 2], [3, 3]]), [1, 2], [0, 3]).tolist()
        [[10, 1], [5, 4]]
    """
    if values.dim() < 1 or values.shape[0] != len(points):
        raise ConfigurationError(
            f"values of shape {tuple(values.shape)} do not belong to {len(points)} points; give a row for each point"
        )
    matrix = lagrange_matrix(points, at, field.modulus).to(values.device)
    columns = values.reshape(len(points), values[0].numel())
    at_once = field.columns_at_once(len(points))
    if columns.shape[1] <= at_once:
        return field.matmul(matrix, columns).view(len(at), *values.shape[1:])
    out = columns.new_empty(len(at), columns.shape[1])
    for start in range(0, columns.shape[1], at_once):
        out[:, start : start + at_once] = field.matmul(matrix, columns[:, start : start + at_once])
    return out.view(len(at), *values.shape[1:])
