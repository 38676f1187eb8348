"""The declared size of a MATLAB file (version 5), computed variable by variable without storing the data."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_HEAD, _COMPRESSED, _MATRIX = 128, 15, 14
_AT_ONCE = 2**16
_NUMBERS = range(6, 16)  # classes of full arrays: double, single, int8 to uint64


def declared_bytes(path: Path) -> int:
    """The bytes that the variables of a MATLAB file take in memory: the larger of two counts.

    The first count is the number of bytes after unpacking; the function unpacks in pieces and discards them. The second
    count is 8 bytes for each number that the matrices declare, because MATLAB stores small whole numbers in one byte.
    Files of version 4, which are not compressed, and of version 7.3, which are not supported, count with their size.

    Guarantee: the function needs constant memory. Of a truncated variable, the existing part is counted.
    Not guaranteed: numbers inside a cell array are counted only as bytes after unpacking, so whole numbers below 256 in
        a cell array take up to eight times the counted bytes.

    References:
        MathWorks, "MAT-File Format", version 5 (tags, page 1-10; compressed elements, page 1-14; arrays, page 1-15).
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if len(head) < _HEAD or head[124:128] not in (b"\x00\x01IM", b"\x01\x00MI"):
            return path.stat().st_size
        order = "<" if head[126:128] == b"IM" else ">"
        unpacked = numbers = 0
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            start = file.tell()
            first = b""
            if kind == _COMPRESSED:
                for piece in _unpacked(file, size):
                    unpacked += len(piece)
                    first += piece[: max(0, 256 - len(first))]
            else:
                unpacked += size
                first = tag + file.read(min(size, 256))
            numbers += _numbers(first, order)
            file.seek(start + size)
        return max(unpacked, 8 * numbers)


def _unpacked(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The content of a compressed element of ``size`` bytes, in pieces."""
    inflate = zlib.decompressobj()
    while size > 0 and (packed := file.read(min(size, _AT_ONCE))):
        size -= len(packed)
        while packed:
            yield inflate.decompress(packed, _AT_ONCE)
            packed = inflate.unconsumed_tail


def _numbers(first: bytes, order: str) -> int:
    """The number of elements that a matrix declares in its tag, flags and dimensions; 0 if it is not a full matrix."""
    if len(first) < 32 or struct.unpack(f"{order}I", first[:4])[0] != _MATRIX:
        return 0
    flags = struct.unpack(f"{order}I", first[16:20])[0]
    length = struct.unpack(f"{order}I", first[28:32])[0]
    if flags & 0xFF not in _NUMBERS or len(first) < 32 + length:
        return 0
    total = 1
    for side in struct.unpack(f"{order}{length // 4}i", first[32 : 32 + length // 4 * 4]):
        total *= max(side, 0)
    return total
