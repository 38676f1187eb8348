"""What exact arithmetic costs beside float64: products modulo p, short contractions, and galois.

Every row compares a product modulo p with torch's float64 product of the same shapes, in turn, and prints the median of
the ratios of the pairs. galois is measured on matrices of 128 columns and scaled by n³, which favours it: its loop has
no cost that grows faster. With --galois it is run once at full size, which takes a minute.

    python -m benchmarks.field [--json FILE] [--pairs N] [--galois]
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import galois
import torch
from torch import Tensor

from benchmarks.harness import Goal, Pairs, arguments, report
from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.field import PrimeField, interpolate

SIZE = 1024
GALOIS = 128
Task = Callable[[], Any]


def elements(field: PrimeField, *shape: int) -> Tensor:
    return torch.randint(field.modulus, shape, generator=torch.Generator().manual_seed(0))


def floor(a: Tensor, b: Tensor) -> Task:
    """The float64 product of the same shapes."""
    return partial(torch.matmul, a.double(), b.double())


def in_turn(exact: Task, plain: Task, pairs: int) -> Pairs:
    """Both once to warm up (numba compiles), then pair by pair."""
    a, b = [], []
    for _ in range(pairs + 1):
        since = time.perf_counter()
        exact()
        between = time.perf_counter()
        plain()
        a.append(between - since)
        b.append(time.perf_counter() - between)
    return Pairs(a[1:], b[1:])


def row(what: str, field: PrimeField, exact: Task, plain: Task, pairs: int) -> tuple[dict[str, Any], Pairs]:
    measured = in_turn(exact, plain, pairs)
    return {
        "product": what,
        "modulus": repr(field),
        "ms": 1e3 * median(measured.a),
        "float64 ms": 1e3 * median(measured.b),
        "ratio": measured.ratio,
        "spread": measured.spread,
    }, measured


def products(pairs: int) -> tuple[list[dict[str, Any]], dict[str, Pairs]]:
    """All rows, and the pairs of the square products by modulus."""
    rows: list[dict[str, Any]] = []
    square: dict[str, Pairs] = {}
    for field in (PrimeField(), PrimeField(2**61 - 1)):
        shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
            ((SIZE, SIZE), (SIZE, SIZE)),
            ((256, 256), (256, 256)),
            ((28, 64, 784), (28, 784, 64)),  # a batch of shares of 28 parties by their models
        ]
        for left, right in shapes:
            a, b = elements(field, *left), elements(field, *right)
            line, measured = row(f"{left} x {right}", field, partial(field.matmul, a, b), floor(a, b), pairs)
            rows.append(line)
            if left == (SIZE, SIZE):
                square[repr(field)] = measured
        shares = elements(field, 7, 1_000_000)  # K + T = 7 blocks and masks to 28 shares, and back to 5 blocks
        for what, at in (("encode 28 x 7 x 1,000,000", range(8, 36)), ("decode 5 x 7 x 1,000,000", range(100, 105))):
            exact = partial(interpolate, field, shares, range(1, 8), at)
            rows.append(row(what, field, exact, floor(elements(field, len(at), 7), shares), max(pairs // 2, 3))[0])
    return rows, square


def by_galois(n: int) -> float:
    """Seconds of one product of n x n matrices, compiled before."""
    field = galois.GF(2**31 - 1)
    small = field.Random((4, 4), seed=0)
    small @ small
    a, b = field.Random((n, n), seed=1), field.Random((n, n), seed=2)
    since = time.perf_counter()
    a @ b
    return time.perf_counter() - since


def main() -> None:
    keep_freed_memory()  # as the command line does
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=9, help="pairs of runs of every row")
    parser.add_argument("--galois", action="store_true", help=f"run galois at {SIZE} instead of {GALOIS} scaled")
    options = parser.parse_args()
    rows, square = products(options.pairs)
    ours = square[repr(PrimeField())]
    # last, and not in turn: once galois has run, every float64 product of the process takes 1.4 times as long
    seconds = by_galois(SIZE) if options.galois else by_galois(GALOIS) * (SIZE / GALOIS) ** 3
    how = "measured" if options.galois else f"{GALOIS} scaled by n³"
    rows.append({"product": f"galois {SIZE}³, {how}", "modulus": repr(PrimeField()), "ms": 1e3 * seconds})
    goals = [
        Goal(f"product of {SIZE}³ modulo 2^31 - 1 / float64", ours.ratio, 2.6),
        Goal("galois / that product", seconds / median(ours.a), 500, "higher"),
    ]
    report(rows, goals, options.json)


if __name__ == "__main__":
    main()
