"""Fused element-wise work on the CPU. Imported on first use: numba takes 0.5 s to load.

Every loop reads its operands once and writes once; written as tensor operations the same work makes a temporary buffer
for each. Inner loops run along the last axis, where LLVM turns them into vector instructions.

Range checks are sums of sign bits: outside [0, p), the sign bit of c or that of p - 1 - c is set.
"""

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Reals = NDArray[np.floating[Any]]

BLOCK = 1024  # columns whose centred residues or differences stay in the first-level cache: 8 KiB a row

# nogil: a thread that prepares the next batch goes on; cache: compiled once a machine, not once a process
_fused = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")


# ---- sums and products modulo p


@numba.njit(inline="always")
def reduced(t: "Any", p: int, inverse: float) -> "Any":
    """The integer t modulo p, with inverse = 1 / p.

    q = ⌊t · (1/p)⌋ in float64 is off by less than one as long as |t/p| < 2^50 (three roundings, 2^-53 each), so
    t - q·p lies in [-p, 2p) and one addition and one subtraction finish it.
    """
    r = t - np.int64(np.floor(np.float64(t) * inverse)) * p
    r += (r >> 63) & p
    r -= p
    return r + ((r >> 63) & p)


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
            out[h, i] = reduced(out[h, i], p, inverse)
    return bool(outside >= 0)


@_fused
def split(x: "Ints", out: "Floats", p: int, bits: int, first: int, last: int, begin: int, end: int) -> bool:
    """Signed limbs of x[first:last, begin:end], out (o, count, i); whether all of these elements lie in [0, p).

    A lower limb is the centred remainder by 2^bits, in [-top, top), so what is left for the next one is
    (c + top) >> bits; after k limbs it is (c + Σ_(j<k) top · 2^(bits·j)) >> (bits·k). The last limb takes all of it.
    """
    half = (p - 1) // 2
    count = out.shape[1]
    top = (np.int64(1) << bits) >> 1
    mask = (np.int64(1) << bits) - 1
    outside = np.int64(0)
    for o in range(first, last):
        for start in range(begin, end, BLOCK):
            # views from 0 on: LLVM makes no vector instructions where an index could be negative
            stop = min(start + BLOCK, end)
            source = x[o, start:stop]
            carried = np.int64(0)
            for k in range(count - 1):
                target = out[o, k, start:stop]
                for i in range(source.size):
                    c = source[i]
                    c = c - p if c > half else c
                    target[i] = np.float64(((((c + carried) >> (bits * k)) + top) & mask) - top)
                carried += top << (bits * k)
            target = out[o, count - 1, start:stop]
            for i in range(source.size):
                c = source[i]
                outside |= c | (p - 1 - c)
                c = c - p if c > half else c
                target[i] = np.float64((c + carried) >> (bits * (count - 1)))
    return bool(outside >= 0)


# The fold kernels add float64 products (b, s, h, t, n) to rows top..top + h of total (b, m, n), the result modulo p.
# ``begin`` and ``end`` count rows of the products over the whole batch; the first call of a row overwrites it.


@_fused
def fold(product: "Floats", total: "Ints", shift: int, p: int, top: int, first: bool, begin: int, end: int) -> None:
    """Set total ← (total + product_0 [+ 2^shift · product_1]) mod p for s·t ≤ 2, p < 2^31, shift ≤ 16."""
    inverse = 1.0 / p
    weight = np.int64(1) << shift
    height = product.shape[2]
    s = product.shape[1] - 1
    t = product.shape[3] - 1
    for row in range(begin, end):
        b = row // height
        h = row % height
        for i in range(total.shape[2]):
            x = np.int64(product[b, 0, h, 0, i]) + (0 if first else total[b, top + h, i])
            if s + t:
                high = product[b, s, h, t, i]
                high -= np.rint(high * inverse) * p  # exact: |quotient · p| ≤ 2^53
                x += np.int64(high) * weight
            total[b, top + h, i] = reduced(x, p, inverse)


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
        b = row // height
        h = row % height
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
    c = np.empty((8, BLOCK), np.int32)
    sums = np.empty(BLOCK, np.int64)
    for b in range(batch):
        for start in range(begin, end, BLOCK):
            width = min(BLOCK, end - start)
            for k in range(terms):
                for i in range(width):
                    x = right[b, k, start + i]
                    outside |= x | (p - 1 - x)
                    c[k, i] = np.int32(x - p if x > half else x)
            for m in range(left.shape[1]):
                sums[:width] = 0
                for k in range(terms):
                    x = left[b, m, k]
                    outside |= x | (p - 1 - x)
                    factor = x - p if x > half else x
                    for i in range(width):
                        sums[i] += factor * c[k, i]
                for i in range(width):
                    out[b, m, start + i] = reduced(sums[i], p, inverse)
    return bool(outside >= 0)


# ---- chosen rows of stored tables times matrices: floats.rows_times


@_fused
def split_rows(table: "NDArray[np.signedinteger[Any]]", rows: "Ints", out: "Floats", p: int, bits: int) -> bool:
    """Limbs out (chunks, count, r, i), at most 2, of rows of a table; whether all of these elements lie in [0, p)."""
    chunks, count, _, chunk = out.shape
    terms = table.shape[1]
    half = (p - 1) // 2
    top = (np.int64(1) << bits) >> 1
    mask = (np.int64(1) << bits) - 1
    outside = np.int64(0)
    for r in range(len(rows)):
        source = table[rows[r]]
        for piece in range(chunks):
            first = piece * chunk
            filled = min(chunk, terms - first)
            for i in range(filled):
                c = np.int64(source[first + i])
                outside |= c | (p - 1 - c)
                c = c - p if c > half else c
                low = ((c + top) & mask) - top
                if count == 2:
                    out[piece, 0, r, i] = np.float64(low)
                out[piece, count - 1, r, i] = np.float64((c - low) >> bits)  # of one limb, bits and low are 0
    return bool(outside >= 0)


@_fused
def split_matrix(x: "Ints", out: "Floats", p: int, bits: int) -> bool:
    """As ``split`` for at most 2 limbs of all of x: without views of rows, which cost more than a short row."""
    t, width = out.shape[1:]
    half = (p - 1) // 2
    top = (np.int64(1) << bits) >> 1
    mask = (np.int64(1) << bits) - 1
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
    return bool(outside >= 0)


@_fused
def add_chunks(product: "Floats", out: "Ints", p: int, shift: int) -> None:
    """Set out (r, n) to the sums modulo p of product (chunks, s, r, t, n) over chunks and limbs, s t at most 2."""
    chunks, s, count, t, width = product.shape
    inverse = 1.0 / p
    weight = np.int64(1) << shift
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
            out[r, i] = reduced(out[r, i], p, inverse)


# ---- integers, elements and real numbers


@_fused
def pick(bits: "NDArray[np.unsignedinteger[Any]]", mask: int, p: int, out: "Ints", begin: int) -> int:
    """Write the low bits of each word that are below p to out[begin:]; returns the number of elements written so far.

    Without a branch: a word that is refused is overwritten by the next one.
    """
    place = begin
    last = out.size - 1
    for word in bits:
        if place > last:
            break
        value = np.int64(word) & mask
        out[place] = value
        place += int(value < p)
    return place


@_fused
def embed(x: "Ints", p: int, out: "Ints") -> bool:
    """Set out (n,) to x, p + x for negative x; whether all |x| are at most (p - 1) / 2."""
    half = (p - 1) // 2
    outside = np.int64(0)
    for i in range(x.size):
        c = x[i]
        outside |= (half - c) | (half + c)
        out[i] = c + ((c >> 63) & p)
    return bool(outside >= 0)


@_fused
def lift(x: "Ints", p: int, unit: float, out: "NDArray[np.float64]") -> bool:
    """Set out (n,) to the centred residues of x times ``unit``, a power of two; whether all elements are in [0, p)."""
    half = (p - 1) // 2
    outside = np.int64(0)
    for i in range(x.size):
        c = x[i]
        outside |= c | (p - 1 - c)
        out[i] = np.float64(c - p if c > half else c) * unit
    return bool(outside >= 0)


@_fused
def neighbours(x: "Reals", words: "NDArray[np.uint64]", bits: int, most: float, out: "Ints") -> bool:
    """Set out (n,) to the integers next to 2^bits · x, the upper one if words · 2^-64 is below the fraction.

    Returns whether all |2^bits · x| are at most ``most``, which is below 2^62; if not, out means nothing.
    """
    scale = 2.0**bits
    wrong = np.int64(0)
    for i in range(x.size):
        scaled = np.float64(x[i]) * scale
        good = np.abs(scaled) <= most
        wrong += not good  # also NaN
        scaled = scaled if good else np.float64(0.0)  # the conversion of large numbers to an integer is undefined
        below = np.floor(scaled)
        out[i] = np.int64(below) + (np.float64(words[i] >> np.uint64(11)) * 2.0**-53 < scaled - below)
    return bool(wrong == 0)


@_fused
def nearest(x: "Reals", scale: "Any", half: "Any", out: "Reals") -> None:
    """Set out (n,) to x rounded to multiples of 1 / scale, halves upwards, in the precision of x.

    ``scale`` is a power of two; both it and ``half`` (1/2) have the type of x.
    """
    inverse = half / scale + half / scale
    for i in range(x.size):
        scaled = x[i] * scale
        below = np.floor(scaled)
        up = below + (half + half)
        out[i] = (up if scaled - below >= half else below) * inverse


@_fused
def largest_in_columns(x: "Reals", out: "NDArray[np.float64]") -> None:
    """Set out (n,) to the largest absolute values of the columns of x (m, n); NaN is passed over."""
    out[:] = 0.0
    for r in range(x.shape[0]):
        for i in range(x.shape[1]):
            size = np.float64(np.abs(x[r, i]))
            out[i] = size if size > out[i] else out[i]


@_fused
def reaches(sizes: "NDArray[np.float64]", x: "Ints", ends: "Ints", out: "NDArray[np.float64]") -> None:
    """Set out (parts,) to max_i Σ_k sizes_k |x_ki|, k over the rows of a part of x (k, n), which ends at ``ends``."""
    total = np.zeros(x.shape[1])
    begin = 0
    for part in range(ends.size):
        total[:] = 0.0
        for k in range(begin, ends[part]):
            for i in range(x.shape[1]):
                total[i] += sizes[k] * np.float64(np.abs(x[k, i]))
        begin = ends[part]
        out[part] = total.max()
