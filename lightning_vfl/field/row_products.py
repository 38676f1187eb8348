"""Chosen rows of stored tables times matrices, modulo a prime below 2^31, on a CPU. Imported on first use: numba.

A coded round multiplies a few rows of every party's large table of shares by shares of weights. With ``matmul``, rows
are gathered, converted and split into limbs in passes over all tables, and every chunk of terms is a pass over the
result. Here a row is read once, from the table into its limbs; all chunks of a table are one batch of float64 products;
and one pass adds them up. One table at a time: its limbs, of half a megabyte, stay in the second-level cache. The
integers are those of ``matmul``: ``limbs.plan`` says why they are exact.
"""

from typing import TYPE_CHECKING

import numba
import numpy as np
import torch
from torch import Tensor

from lightning_vfl.field.limbs import balanced, plan

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[np.signedinteger[Any]]
    Floats = NDArray[np.float64]

MOST_CHUNKS = 256  # of at most 2^53 + 2^46 each: their sum is far below 2^62, where the reduction is surely within one

# nogil, cache: as in kernels
_fused = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")


def suits(terms: int, p: int) -> bool:
    """Whether ``rows_times`` can compute products of so many terms."""
    how = plan(terms, p)
    return terms > 0 and p < 2**31 and how.products <= 2 and -(-terms // how.chunk) <= MOST_CHUNKS


def rows_times(table: Tensor, tables: "Ints", rows: "Ints", right: Tensor, p: int) -> tuple[Tensor, bool]:
    """Rows ``rows`` of the tables ``tables`` times a matrix for each of these tables.

    Shapes: table (T, N, k) int32 or int64, tables (h,), rows (r,), right (h, k, n) int64; the product (h, r, n) int64.

    Returns:
        the product, and whether all elements are in [0, p); if not, the product means nothing.
    """
    (hosts, terms, width), count = right.shape, len(rows)
    if count and not 0 <= int(rows.min()) <= int(rows.max()) < table.shape[1]:
        raise IndexError(f"rows must be from 0 to {table.shape[1] - 1}; got {int(rows.min())} to {int(rows.max())}")
    how = plan(terms, p)
    chunks = -(-terms // how.chunk)
    chunk = -(-terms // chunks)
    # the smaller operand is split into more limbs, since splitting writes one float per limb and element
    few, many = how.few.count, how.many.count
    s, t = (many, few) if hosts * count * terms < right.numel() else (few, many)
    left_bits, right_bits = balanced(p, s).bits, balanced(p, t).bits
    a = torch.empty(chunks, s * count, chunk, dtype=torch.float64)
    b = torch.empty(chunks, chunk, t * width, dtype=torch.float64)
    product = torch.empty(chunks, s * count, t * width, dtype=torch.float64)
    left, parts = a.view(chunks, s, count, chunk).numpy(), b.view(chunks * chunk, t, width).numpy()
    sums, out = product.view(chunks, s, count, t, width).numpy(), torch.empty(hosts, count, width, dtype=torch.int64)
    shift, fine = left_bits if s == 2 else right_bits, True
    stored = table.numpy()
    for source, matrix, total in zip(tables, right.contiguous().numpy(), out.numpy(), strict=True):
        fine &= _split_rows(stored[source], rows, left, p, left_bits)
        fine &= _split_matrix(matrix, parts, p, right_bits)
        torch.bmm(a, b, out=product)
        _add_chunks(sums, total, p, shift)
    return out, fine


@_fused
def _split_rows(table: "Ints", rows: "Ints", out: "Floats", p: int, bits: int) -> bool:
    """Limbs out (chunks, s, r, i), s at most 2, of r rows; zeros behind the last term. Returns whether all fit."""
    chunks, s, count, chunk = out.shape
    terms, half = table.shape[1], (p - 1) // 2
    top, mask = (np.int64(1) << bits) >> 1, (np.int64(1) << bits) - 1
    outside = np.int64(0)
    for r in range(count):
        source = table[rows[r]]
        for piece in range(chunks):
            first = piece * chunk
            filled = min(chunk, terms - first)
            if s == 1:
                for i in range(filled):
                    c = np.int64(source[first + i])
                    outside |= c | (p - 1 - c)  # outside the range a sign bit is set
                    out[piece, 0, r, i] = np.float64(c - p if c > half else c)
            else:
                for i in range(filled):
                    c = np.int64(source[first + i])
                    outside |= c | (p - 1 - c)
                    c = c - p if c > half else c
                    low = ((c + top) & mask) - top
                    out[piece, 0, r, i] = np.float64(low)
                    out[piece, 1, r, i] = np.float64((c - low) >> bits)
            for limb in range(s):
                out[piece, limb, r, max(0, filled) :] = 0.0
    return bool(outside >= 0)


@_fused
def _split_matrix(x: "Ints", out: "Floats", p: int, bits: int) -> bool:
    """Limbs out (terms, t, n), t at most 2; zeros behind the last row. Returns whether all fit."""
    t, width = out.shape[1:]
    half = (p - 1) // 2
    top, mask = (np.int64(1) << bits) >> 1, (np.int64(1) << bits) - 1
    outside = np.int64(0)
    for k in range(x.shape[0]):
        if t == 1:
            for i in range(width):
                c = x[k, i]
                outside |= c | (p - 1 - c)
                out[k, 0, i] = np.float64(c - p if c > half else c)
        else:
            for i in range(width):
                c = x[k, i]
                outside |= c | (p - 1 - c)
                c = c - p if c > half else c
                low = ((c + top) & mask) - top
                out[k, 0, i] = np.float64(low)
                out[k, 1, i] = np.float64((c - low) >> bits)
    out[x.shape[0] :] = 0.0
    return bool(outside >= 0)


@_fused
def _add_chunks(product: "Floats", out: "Ints", p: int, shift: int) -> None:
    """Set out (r, n) to the sums modulo p of product (chunks, s, r, t, n) over chunks and limbs, s t at most 2."""
    chunks, s, count, t, width = product.shape
    inverse, weight = 1.0 / p, np.int64(1) << shift
    for r in range(count):
        for piece in range(chunks):
            for i in range(width):
                x = np.int64(product[piece, 0, r, 0, i])
                if s * t == 2:
                    high = product[piece, s - 1, r, t - 1, i]
                    high -= np.rint(high * inverse) * p  # exact: |quotient · p| ≤ 2^53
                    x += np.int64(high) * weight
                out[r, i] = x + (out[r, i] if piece else 0)
        for i in range(width):
            x = out[r, i]
            q = x - np.int64(np.floor(np.float64(x) * inverse)) * p
            q += (q >> 63) & p
            q -= p
            out[r, i] = q + ((q >> 63) & p)
