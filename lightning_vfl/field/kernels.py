"""Fused element-wise work on the CPU. Imported on first use: numba takes 0.5 s to load.

Every loop reads its operands once and writes once; written as tensor operations the same work makes a temporary buffer
for each. Inner loops run along the last axis, where LLVM turns them into vector instructions.

Reduction: for an integer t, q = ⌊t · (1/p)⌋ in float64 is off by less than one as long as |t/p| < 2^50 (three
roundings, 2^-53 each), so t - q·p lies in [-p, 2p) and one addition and one subtraction finish it.
"""

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# nogil: a thread that prepares the next batch goes on; cache: compiled once a machine, not once a process
_fused = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")


@_fused
def centre(x: "Ints", out: "Floats", p: int, begin: int, end: int) -> bool:
    """Centred residues of x[begin:end] as float64, (n,); whether all of these elements lie in [0, p)."""
    half = (p - 1) // 2
    outside = np.int64(0)
    for i in range(begin, end):
        c = x[i]
        outside |= c | (p - 1 - c)  # outside the range the sign bit of c is set, or else that of the difference
        out[i] = np.float64(c - p if c > half else c)
    return bool(outside >= 0)


@_fused
def add_up(x: "Ints", out: "Ints", p: int) -> bool:
    """Set out (h, i) to the sums of x (h, n, i) over n, modulo p; whether all elements lie in [0, p)."""
    inverse = 1.0 / p
    outside = np.int64(0)
    for h in range(x.shape[0]):
        for i in range(x.shape[2]):
            out[h, i] = 0
        for o in range(x.shape[1]):
            for i in range(x.shape[2]):
                c = x[h, o, i]
                outside |= c | (p - 1 - c)
                out[h, i] += c
        for i in range(x.shape[2]):
            t = out[h, i]
            r = t - np.int64(np.floor(np.float64(t) * inverse)) * p
            r += (r >> 63) & p
            r -= p
            out[h, i] = r + ((r >> 63) & p)
    return bool(outside >= 0)


@_fused
def split_two(x: "Ints", out: "Floats", p: int, bits: int, first: int, last: int, begin: int, end: int) -> bool:
    """Two signed limbs of x[first:last, begin:end], out (o, 2, i); whether all of these elements lie in [0, p)."""
    half = (p - 1) // 2
    top, mask = np.int64(1) << (bits - 1), (np.int64(1) << bits) - 1
    outside = np.int64(0)
    for o in range(first, last):
        for i in range(begin, end):
            c = x[o, i]
            outside |= c | (p - 1 - c)
            c = c - p if c > half else c
            low = ((c + top) & mask) - top
            out[o, 0, i] = np.float64(low)
            out[o, 1, i] = np.float64((c - low) >> bits)
    return bool(outside >= 0)


@_fused
def split_many(x: "Ints", out: "Floats", p: int, bits: int, first: int, last: int, begin: int, end: int) -> bool:
    """As ``split_two``, for any number of limbs: out (o, count, i)."""
    half = (p - 1) // 2
    count = out.shape[1]
    top, mask = np.int64(1) << (bits - 1), (np.int64(1) << bits) - 1
    outside = np.int64(0)
    for o in range(first, last):
        for i in range(begin, end):
            c = x[o, i]
            outside |= c | (p - 1 - c)
            c = c - p if c > half else c
            for k in range(count - 1):
                low = ((c + top) & mask) - top
                out[o, k, i] = np.float64(low)
                c = (c - low) >> bits
            out[o, count - 1, i] = np.float64(c)
    return bool(outside >= 0)


# The fold kernels add float64 products (b, s, h, t, n) to rows top..top + h of total (b, m, n), the result modulo p.
# ``begin`` and ``end`` count rows of the products over the whole batch; the first call of a row overwrites it.


@_fused
def fold_one(product: "Floats", total: "Ints", p: int, top: int, first: bool, begin: int, end: int) -> None:
    """Set total ← (total + product) mod p for s = t = 1."""
    inverse = 1.0 / p
    height = product.shape[2]
    for row in range(begin, end):
        b, h = row // height, row % height
        for i in range(total.shape[2]):
            t = np.int64(product[b, 0, h, 0, i]) + (0 if first else total[b, top + h, i])
            r = t - np.int64(np.floor(np.float64(t) * inverse)) * p
            r += (r >> 63) & p
            r -= p
            total[b, top + h, i] = r + ((r >> 63) & p)


@_fused
def fold_two(product: "Floats", total: "Ints", shift: int, p: int, top: int, first: bool, begin: int, end: int) -> None:
    """Set total ← (total + product_0 + 2^shift · product_1) mod p for s·t = 2, p < 2^31, shift ≤ 16."""
    inverse, weight = 1.0 / p, np.int64(1) << shift
    height, s, t = product.shape[2], product.shape[1] - 1, product.shape[3] - 1
    for row in range(begin, end):
        b, h = row // height, row % height
        for i in range(total.shape[2]):
            high = product[b, s, h, t, i]
            high -= np.rint(high * inverse) * p  # exact: |quotient · p| ≤ 2^53
            x = np.int64(product[b, 0, h, 0, i]) + np.int64(high) * weight + (0 if first else total[b, top + h, i])
            r = x - np.int64(np.floor(np.float64(x) * inverse)) * p
            r += (r >> 63) & p
            r -= p
            total[b, top + h, i] = r + ((r >> 63) & p)


@_fused
def fold_mersenne(
    product: "Floats",
    total: "Ints",
    left: int,
    right: int,
    exponent: int,
    top: int,
    first: bool,
    begin: int,
    end: int,
) -> None:
    """Set total ← total + Σ_st 2^(left·s + right·t) · product_st mod 2^exponent - 1, exponent at least 54.

    Multiplication by a power of two is a rotation of ``exponent`` bits.
    """
    p = (np.int64(1) << exponent) - 1
    height = product.shape[2]
    for row in range(begin, end):
        b, h = row // height, row % height
        if first:
            total[b, top + h, :] = 0
        for s in range(product.shape[1]):
            for t in range(product.shape[3]):
                shift = (left * s + right * t) % exponent
                for i in range(total.shape[2]):
                    x = np.int64(product[b, s, h, t, i])  # at most 2^53 in absolute value
                    x += (x >> 63) & p
                    x = ((x << shift) & p) + (x >> (exponent - shift)) + total[b, top + h, i] - p
                    total[b, top + h, i] = x + ((x >> 63) & p)


BLOCK = 1024  # columns whose centred residues stay in the first-level cache: 8 · 4 KiB


@_fused
def short(left: "Ints", right: "Ints", out: "Ints", p: int, begin: int, end: int) -> bool:
    """Multiply left (b, m, k) by right (b, k, n) modulo p < 2^31, k ≤ 8; whether all elements lie in [0, p).

    Columns begin to end of ``right`` and ``out`` alone.

    Centred residues are below 2^30 in absolute value: eight products add up to less than 2^63.
    """
    half = (p - 1) // 2
    inverse = 1.0 / p
    batch, terms = right.shape[:2]
    outside = np.int64(0)
    c = np.zeros((8, BLOCK), np.int32)  # eight rows in one expression: missing terms are zeros
    f = np.zeros(8, np.int64)
    for b in range(batch):
        for start in range(begin, end, BLOCK):
            width = min(BLOCK, end - start)
            for k in range(terms):
                for i in range(width):
                    x = right[b, k, start + i]
                    outside |= x | (p - 1 - x)
                    c[k, i] = np.int32(x - p if x > half else x)
            for m in range(left.shape[1]):
                for k in range(terms):
                    x = left[b, m, k]
                    outside |= x | (p - 1 - x)
                    f[k] = x - p if x > half else x
                f0, f1, f2, f3, f4, f5, f6, f7 = f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]
                for i in range(width):
                    t = f0 * c[0, i] + f1 * c[1, i] + f2 * c[2, i] + f3 * c[3, i]
                    t += f4 * c[4, i] + f5 * c[5, i] + f6 * c[6, i] + f7 * c[7, i]
                    r = t - np.int64(np.floor(np.float64(t) * inverse)) * p
                    r += (r >> 63) & p
                    r -= p
                    out[b, m, start + i] = r + ((r >> 63) & p)
    return bool(outside >= 0)
