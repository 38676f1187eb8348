"""Matrix products in Python's integers, which never wrap around."""

from itertools import product as pairs

import torch
from torch import Tensor

from lightning_vfl.field import PrimeField


def matmul(a: Tensor, b: Tensor, p: int) -> Tensor:
    batch = torch.broadcast_tensors(a[..., :1, :1], b[..., :1, :1])[0].shape[:-2]
    x, y = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    out = torch.zeros(*batch, a.shape[-2], b.shape[-1], dtype=torch.int64)
    for where in pairs(*map(range, batch)):
        columns = list(zip(*y[where].tolist(), strict=True)) or [()] * b.shape[-1]
        rows = [[sum(map(int.__mul__, row, column)) % p for column in columns] for row in x[where].tolist()]
        out[where] = torch.tensor(rows, dtype=torch.int64).reshape(out[where].shape)
    return out


def elements(field: PrimeField, *shape: int, seed: int = 0) -> Tensor:
    """Uniform over the field, with the extremes in the first places."""
    p = field.modulus
    flat = torch.randint(p, shape, generator=torch.Generator().manual_seed(seed)).flatten()
    extremes = torch.tensor([p - 1, 0, p // 2, 1, p // 2 + 1])
    flat[: min(5, flat.numel())] = extremes[: flat.numel()]
    return flat.reshape(shape)


def times(field: PrimeField, a: Tensor, b: Tensor) -> Tensor:
    """The element-wise product, by the field's products of 1 x 1 matrices."""
    return field.matmul(a[..., None, None], b[..., None, None])[..., 0, 0]
