"""Gzipped files in the IDX format of MNIST."""

import gzip
from collections.abc import Callable
from math import prod
from typing import IO, TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_idx(packed: IO[bytes], dimensions: int, check_sizes: Callable[[list[int]], None]) -> "NDArray[np.uint8]":
    """The array of bytes in a gzipped IDX file.

    An IDX file has the bytes 0, 0, 8 (for unsigned bytes) and the number of dimensions, then each size as a big-endian
    int32, then the numbers.

    Args:
        packed: the gzipped file.
        dimensions: of the array.
        check_sizes: called with the sizes in the head before the numbers are unzipped; it refuses wrong sizes with an
            error.

    Guarantee: no more bytes are unzipped than the head declares, and one.

    Raises:
        ValueError: with what is wrong with the content.
        gzip.BadGzipFile, EOFError, zlib.error: if the file cannot be unzipped.
    """
    start = 4 + 4 * dimensions
    with gzip.GzipFile(fileobj=packed) as content:
        head = content.read(start)
        if head[:4] != bytes((0, 0, 8, dimensions)) or len(head) < start:
            raise ValueError(f"does not begin like an IDX file of bytes in {dimensions} dimension(s)")
        sizes = np.frombuffer(head[4:], dtype=">u4").tolist()
        check_sizes(sizes)
        numbers = np.empty(prod(sizes), np.uint8)
        held = _fill(numbers, content)
        more = content.read(1)  # also compares the check sum at the end
    if more or held < len(numbers):
        many = f"at least {held + 1}" if more else held
        raise ValueError(f"holds {many} bytes after its head instead of {len(numbers)}")
    return numbers.reshape(sizes)


def _fill(numbers: "NDArray[np.uint8]", content: gzip.GzipFile) -> int:
    """Read bytes into the array, as many as there are; returns their number."""
    view, held = numbers.data, 0
    while held < len(view) and (piece := content.read(min(len(view) - held, 2**20))):
        view[held : held + len(piece)] = piece
        held += len(piece)
    return held
