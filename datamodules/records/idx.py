"""Gzipped files in the IDX format of MNIST."""

import gzip
import zlib
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_idx(packed: bytes, dimensions: int) -> "NDArray[np.uint8]":
    """The array of bytes in a gzipped IDX file.

    An IDX file has the bytes 0, 0, 8 (for unsigned bytes) and the number of dimensions, then each size as a big-endian
    int32, then the numbers.

    Raises:
        ValueError: with what is wrong with the file.
    """
    try:
        content = gzip.decompress(packed)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"cannot be unzipped ({error})") from error
    start = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < start:
        raise ValueError(f"does not begin like an IDX file of bytes in {dimensions} dimension(s)")
    sizes = np.frombuffer(content[4:start], dtype=">i4").tolist()
    if len(content) - start != prod(sizes):
        raise ValueError(f"holds {len(content) - start} bytes after its head instead of {prod(sizes)}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(sizes)
