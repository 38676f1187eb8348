"""Matrix products modulo p through exact float64 products: splitting, multiplying, adding up.

On a CPU the element-wise passes are numba's (``kernels``), spread over torch's threads; elsewhere they are the same
formulas in torch operations, in place.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_vfl.field.limbs import Plan, balanced, plan
from lightning_vfl.types import Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

PARALLEL = 2**17  # elements of a pass from which threads pay: about 0.3 ms of work
BUFFER = 2**23  # float64 elements of products held at once: 64 MiB
MOST_CHUNKS = 256  # of at most 2^53 + 2^46 each: their sum is far below 2^62, where the reduction is surely within one


def split(x: Tensor, count: int, p: int, side: str) -> tuple[Tensor, bool]:
    """The signed limbs of a matrix as float64, ready to be multiplied.

    Returns:
        left: (*, count, m, k), limbs under each other; right: (*, k, count, n), limbs side by side. And whether all
        elements are in [0, p); if not, the limbs mean nothing.
    """
    x = x.contiguous()
    *batch, m, n = x.shape
    if side == "left":
        shape = (*batch, count, m, n)
        inner = m * n  # the numbers of one limb that are neighbours
    else:
        shape = (*batch, m, count, n)
        inner = n
    out = torch.empty(shape, dtype=torch.float64, device=x.device)
    if not x.numel():
        return out, True
    run = _split_fused if x.is_cpu else _split_torch
    fine = run(x.view(-1, inner), out.view(-1, count, inner), p, balanced(p, count).bits)
    return out, fine


def product(a: Tensor, b: Tensor, how: Plan, p: int, total: Tensor) -> None:
    """The product modulo p of split operands into ``total``: all pairs of limbs of a chunk in one float64 product.

    With operands a = Σ_s 2^(left·s) a_s and b = Σ_t 2^(right·t) b_t, a product is Σ_st 2^(left·s + right·t) a_s b_t.
    """
    s, m, terms = a.shape[-3:]
    t, n = b.shape[-2:]
    if not total.numel() or not terms:
        total.zero_()
        return
    batch = total.shape[:-2]
    left = balanced(p, s).bits
    right = balanced(p, t).bits
    limbs_beside = b.flatten(-2)  # (*, k, t n)
    rows = max(1, BUFFER // (prod(batch) * s * t * n))
    products = a.new_empty(0, 0)
    fold = _fold_fused if total.is_cpu else _fold_torch
    for top in range(0, m, rows):
        height = min(rows, m - top)
        # one for all chunks: the page faults of new ones cost a tenth of a product
        if products.shape[-2] != s * height:
            products = a.new_empty(*batch, s * height, t * n)
        limbs_below = a[..., top : top + height, :].flatten(-3, -2)  # (*, s height, k)
        for start in range(0, terms, how.chunk):
            chunk = slice(start, start + how.chunk)
            torch.matmul(limbs_below[..., chunk], limbs_beside[..., chunk, :], out=products)
            by_limbs = products.view(-1, s, height, t, n)
            fold(by_limbs, total.view(-1, m, n), left, right, p, top, start == 0)


def short(a: Tensor, b: Tensor, p: int, batch: Shape) -> tuple[Tensor, bool]:
    """(*, m, k) times (*, k, n) for k ≤ 8 as integers, on a CPU; and whether all elements are in [0, p)."""
    from lightning_vfl.field import kernels

    m, k, n = *a.shape[-2:], b.shape[-1]
    out = torch.empty((*batch, m, n), dtype=torch.int64)
    if not out.numel() * k:
        return out.zero_(), True
    left = a.expand(*batch, m, k).reshape(-1, m, k).contiguous().numpy()
    right = b.expand(*batch, k, n).reshape(-1, k, n).contiguous().numpy()
    result = out.view(-1, m, n).numpy()
    pieces = _spread(n, out.numel(), partial(kernels.short, left, right, result, p))
    return out, all(pieces)


def suits(terms: int, p: int) -> bool:
    """Whether ``rows_times`` can compute products of so many terms."""
    how = plan(terms, p)
    chunks = -(-terms // how.chunk)
    return terms > 0 and p < 2**31 and how.products <= 2 and chunks <= MOST_CHUNKS


def rows_times(table: Tensor, tables: "Ints", rows: "Ints", right: Tensor, p: int) -> tuple[Tensor, bool]:
    """Rows ``rows`` of the tables ``tables`` times a matrix for each of these tables, on a CPU.

    A coded round multiplies a few rows of every party's large table of shares by shares of weights. With ``product``,
    rows would be gathered, converted and split in passes over all tables, and every chunk of terms would be a pass over
    the result. Here a row is read once, from the table into its limbs; all chunks of a table are one batch of products;
    and one pass adds them up. The limbs of one table, of half a megabyte, stay in the second-level cache.

    Shapes: table (T, N, k) int32 or int64, tables (h,), rows (r,), right (h, k, n) int64; the product (h, r, n) int64.

    Returns:
        the product, and whether all elements are in [0, p); if not, the product means nothing.
    """
    from lightning_vfl.field import kernels

    hosts, terms, width = right.shape
    count = len(rows)
    last = table.shape[1] - 1
    if count and not 0 <= int(rows.min()) <= int(rows.max()) <= last:
        raise IndexError(f"rows must be from 0 to {last}; got {int(rows.min())} to {int(rows.max())}")
    how = plan(terms, p)
    chunks = -(-terms // how.chunk)
    chunk = -(-terms // chunks)  # chunks of equal length, of which the last ends in zeros
    # the smaller operand is split into more limbs, since splitting writes one float per limb and element
    few, many = how.few.count, how.many.count
    s, t = (many, few) if hosts * count * terms < right.numel() else (few, many)
    left_bits = balanced(p, s).bits
    right_bits = balanced(p, t).bits

    a = torch.zeros(chunks, s * count, chunk, dtype=torch.float64)  # behind the last term, zeros stay
    b = torch.zeros(chunks, chunk, t * width, dtype=torch.float64)
    product = torch.empty(chunks, s * count, t * width, dtype=torch.float64)
    out = torch.empty(hosts, count, width, dtype=torch.int64)
    # numpy's views of the same memory, into which the kernels write
    limbs_of_rows = a.view(chunks, s, count, chunk).numpy()
    limbs_of_matrix = b.view(chunks * chunk, t, width).numpy()
    products_of_limbs = product.view(chunks, s, count, t, width).numpy()
    stored = table.numpy()
    fine = True
    for source, matrix, total in zip(tables, right.contiguous().numpy(), out.numpy(), strict=True):
        fine &= kernels.split_rows(stored[source], rows, limbs_of_rows, p, left_bits)
        fine &= kernels.split_matrix(matrix, limbs_of_matrix, p, right_bits)
        torch.bmm(a, b, out=product)
        kernels.add_chunks(products_of_limbs, total, p, left_bits if s == 2 else right_bits)
    return out, fine


def _split_fused(x: Tensor, out: Tensor, p: int, bits: int) -> bool:
    from lightning_vfl.field import kernels

    if out.shape[1] == 1:
        x = x.view(1, -1)
        out = out.view(1, 1, -1)
    source = x.numpy()
    target = out.numpy()
    outer, inner = source.shape
    if outer == 1:  # a single left operand is one long row
        return all(_spread(inner, inner, partial(kernels.split, source, target, p, bits, 0, 1)))
    return all(_spread(outer, x.numel(), lambda i, j: kernels.split(source, target, p, bits, i, j, 0, inner)))


def _split_torch(x: Tensor, out: Tensor, p: int, bits: int) -> bool:
    low, high = torch.aminmax(x)
    above_half = x > (p - 1) // 2
    left = x - above_half.to(torch.int64).mul_(p)  # the centred residue, then what its lower digits leave of it
    half = (1 << bits) // 2  # of a digit's range; with one limb, there are no digits
    mask = (1 << bits) - 1
    for k in range(out.shape[1] - 1):
        digit = (left + half).bitwise_and_(mask).sub_(half)  # in [-half, half)
        out[:, k] = digit
        left.sub_(digit).bitwise_right_shift_(bits)
    out[:, -1] = left
    return bool((low >= 0) & (high < p))


# Add Σ_st 2^(left·s + right·t) · products_st to rows of ``total``, modulo p.
# Shapes: products (b, s, h, t, n), contiguous; total (b, m, n), of which rows top to top + h are added to.


def _fold_fused(products: Tensor, total: Tensor, left: int, right: int, p: int, top: int, first: bool) -> None:
    from lightning_vfl.field import kernels

    x = products.numpy()
    sums = total.numpy()
    b, s, height = x.shape[:3]

    def piece(begin: int, end: int) -> None:
        if p >= 2**31:
            kernels.fold_mersenne(x, sums, left, right, p.bit_length(), top, first, begin, end)
        else:
            kernels.fold(x, sums, left if s == 2 else right, p, top, first, begin, end)

    _spread(b * height, products.numel(), piece)


def _fold_torch(products: Tensor, total: Tensor, left: int, right: int, p: int, top: int, first: bool) -> None:
    sums = total[:, top : top + products.shape[2]]
    bits = p.bit_length()
    if first:
        sums.zero_()
    for i in range(products.shape[1]):
        for j in range(products.shape[3]):
            x = products[:, i, :, j].to(torch.int64).remainder_(p)
            shift = (left * i + right * j) % bits
            if p >= 2**31:  # 2^61 - 1, where a power of two is a rotation
                carry = x >> (bits - shift)
                x.bitwise_left_shift_(shift).bitwise_and_(p).add_(carry)
            elif shift:
                x.bitwise_left_shift_(shift).remainder_(p)  # below 2^31 · 2^16
            sums.add_(x).sub_(p)  # in [-p, p)
            negative = sums >> 63  # all bits of a negative number
            sums.add_(negative.bitwise_and_(p))


def _spread(size: int, work: int, piece: Callable[[int, int], Any]) -> list[Any]:
    """The results of ``piece`` on intervals that cover range(size), on as many threads as torch uses."""
    threads = min(torch.get_num_threads(), size)
    if threads < 2 or work < PARALLEL:
        return [piece(0, size)]
    ends = [size * i // threads for i in range(threads + 1)]
    return list(_pool(threads, os.getpid()).map(piece, ends[:-1], ends[1:]))


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    # One for each process: a child of a fork has none of its parent's threads. Not numba's own threads: OpenMP's abort
    # the child, and loaders and launchers do fork.
    return ThreadPoolExecutor(threads, thread_name_prefix="field")
