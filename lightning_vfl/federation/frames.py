"""Frames: the form in which messages travel between processes; JSON and raw tensors, and nothing that is run.

A frame is ``"LVFL" | u16 version | u16 flags | u32 length of the header | header | tensors``, all little-endian. The
header is a JSON object of ASCII characters; its last key, ``tensors``, has the dtype code and the shape of each tensor.
The tensors follow in this order, without gaps.

torch is imported where tensors are read: predictions in production exchange arrays of numpy in the same frames.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import MalformedFrame

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

VERSION = 1
HEADER_LIMIT = 2**16  # bytes of a header
DEPTH_LIMIT = 16  # objects and lists inside each other
SHAPE_LIMIT = 2**40  # product of the sizes of a shape, empty axes left out
AXES_LIMIT = 16

_START = Struct("<4sHHI")
_MAGIC = b"LVFL"
_DTYPES = {
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "b1": "bool",
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_NUMPY = {code: np.dtype(np.bool_ if code == "b1" else f"<{code}") for code in _DTYPES}
_WIDTHS = {code: 8 * dtype.itemsize for code, dtype in _NUMPY.items()}
_PACKED = {  # "p31:i8": int64 numbers of 31 bits each
    f"p{bits}:{code}": (code, bits)
    for code in _DTYPES
    if code[0] != "f"
    for bits in range(1, 2 if code == "b1" else _WIDTHS[code])
}
_MEMORY = {code: _WIDTHS[code] // 8 for code in _DTYPES} | dict.fromkeys(_PACKED, 8)  # unpacked in 64-bit words
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, eq=False)  # comparing tensors gives no single truth value
class Frame:
    """The content of a frame.

    Args:
        header: what the sender says, without the key ``tensors``; JSON values with texts as keys.
        tensors: in the order of the sender; they own their memory.
        size: bytes of the frame.
    """

    header: Mapping[str, Any]
    tensors: "tuple[Tensor, ...]"
    size: int = 0


def pack(
    header: Mapping[str, Any],
    tensors: "Sequence[Tensor | NDArray[Any]]" = (),
    bits: Sequence[int | None] | None = None,
) -> bytes:
    """The frame of a header and tensors.

    Shapes: any, 0-d and empty ones included; any strides and devices.
    Units: number k of a tensor that is packed to b bits has the bits kb to kb + b - 1 of its part of the frame, lowest
        bit first; the last byte is filled up with zeros.
    Guarantee: ``unpack`` gives an equal header (with lists in place of tuples) and tensors of the same dtypes, shapes
        and bits. Equal contents give equal frames.

    Args:
        header: a JSON object of at most 64 KiB.
        tensors: of dtypes float16, float32, float64, int32, int64, uint8, uint16, uint32 and bool.
        bits: the size of a number of each tensor in the frame; None, or the width of the dtype: as in memory.

    Raises:
        MalformedFrame: for a header that is not JSON or too long, another dtype, and numbers that have more bits.

    Examples:
        >>> import torch
        >>> content = pack({"kind": "shares", "round": 3}, [torch.tensor([1, 2, 127])], bits=[7])
        >>> frame = unpack(content)
        >>> dict(frame.header), frame.tensors
        ({'kind': 'shares', 'round': 3}, (tensor([  1,   2, 127]),))
    """
    return pack_alike({}, [(header, tensors, bits)])[0]


def pack_alike(
    shared: Mapping[str, Any],
    each: "Iterable[tuple[Mapping[str, Any], Sequence[Tensor | NDArray[Any]], Sequence[int | None] | None]]",
) -> list[bytes]:
    """The frames of one round's answers, whose headers begin alike: ``pack({**shared, **header}, tensors, bits)``.

    What is shared is checked and written once.

    Args:
        shared: the beginning of every header.
        each: the rest of the header, the tensors and their bits, as in ``pack``; its keys are not in ``shared``.

    Raises:
        MalformedFrame: as in ``pack``.
    """
    beginning = _encoded(_checked(shared))[:-1]
    frames = []
    for header, tensors, bits in each:
        sizes = [None] * len(tensors) if bits is None else list(bits)
        if len(sizes) != len(tensors):
            raise MalformedFrame(f"bits has {len(sizes)} entries for {len(tensors)} tensors; give one for each")
        if twice := shared.keys() & header.keys():
            raise MalformedFrame(f"the key {min(twice)!r} of a header is given twice; give it once")
        written = [_written(tensor, size) for tensor, size in zip(tensors, sizes, strict=True)]
        listed = [[code, list(tensor.shape)] for (code, _), tensor in zip(written, tensors, strict=True)]
        for _, shape in listed:
            _count(shape)
        rest = _encoded({**_checked(header), "tensors": listed})[1:]
        text = b"".join((beginning, b"," if shared else b"", rest))
        if len(text) > HEADER_LIMIT:
            raise MalformedFrame(f"the header of a frame must have at most {HEADER_LIMIT} bytes; got {len(text)}")
        frames.append(b"".join((_START.pack(_MAGIC, VERSION, 0, len(text)), text, *(part for _, part in written))))
    return frames


Check = Callable[[Mapping[str, Any], int], None]


def unpack(content: bytes | bytearray | memoryview, limit: float = inf) -> Frame:
    """The header and the tensors of a frame.

    Guarantee: accepted frames are those that ``pack`` writes: ``pack`` of the result, with the same bits, gives the
        frame again. Sizes are compared with the length of the frame, and with ``limit``, before memory is allocated for
        them: numbers that are packed to b bits take up to 64 / b times the memory of their part of the frame.

    Args:
        content: what has arrived.
        limit: the largest number of bytes of a frame, and of its tensors in memory.

    Raises:
        MalformedFrame: for everything else; the message is one line.
    """
    return _framed(*_unpack(_Source([content]), len(content), limit))


def unpack_arrays(content: bytes | bytearray | memoryview, limit: int) -> "tuple[dict[str, Any], list[NDArray[Any]]]":
    """As ``unpack``, the header and the tensors as arrays, without torch.

    Examples:
        >>> unpack_arrays(pack({"say": "ids"}, [np.array([3, 5])]), limit=100)
        ({'say': 'ids'}, [array([3, 5])])
    """
    header, arrays, _ = _unpack(_Source([content]), len(content), limit)
    return header, arrays


def unpack_pieces(pieces: Iterable[bytes], limit: int, check: Check | None = None) -> Frame:
    """As ``unpack``, of a frame that comes in pieces: they are written where the numbers of the tensors stay.

    ``check`` is called with the header and the number of tensors, before these are read.

    Guarantee: besides the tensors, a piece and the packed form of one tensor are in memory. A frame that is refused is
        not read to its end.

    Examples:
        >>> import torch
        >>> content = pack({"kind": "shares"}, [torch.tensor([1, 2])])
        >>> unpack_pieces((content[at : at + 5] for at in range(0, len(content), 5)), limit=100).tensors
        (tensor([1, 2]),)
    """
    return _framed(*_unpack(_Source(pieces), None, limit, check))


def _framed(header: Mapping[str, Any], arrays: "Sequence[NDArray[Any]]", size: int) -> Frame:
    import torch

    return Frame(header, tuple(map(torch.from_numpy, arrays)), size)


class _Source:
    """Bytes that come in pieces, each of which is taken once.

    Attributes:
        taken: how many bytes have been taken.
    """

    def __init__(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")
        self.taken = 0

    def fill(self, room: "memoryview | NDArray[np.uint8]") -> bool:
        """Write the next bytes into all of ``room``; False: there were not so many."""
        filled = 0
        size = len(room)
        while filled < size:
            if not len(self._rest):
                piece = next(self._pieces, None)
                if piece is None:
                    return False
                self._rest = memoryview(piece)
                continue
            part = self._rest[: size - filled]
            room[filled : filled + len(part)] = part
            filled += len(part)
            self.taken += len(part)
            self._rest = self._rest[len(part) :]
        return True


def _unpack(
    source: _Source, size: int | None, limit: float, check: Check | None = None
) -> "tuple[dict[str, Any], list[NDArray[Any]], int]":
    """Header, arrays and bytes of the frame of a source; ``size``: of all its bytes, None: it is not known yet."""
    header, start = _header(source)
    listed = header.pop("tensors")
    if not isinstance(listed, list):
        raise MalformedFrame("the key 'tensors' of a frame must be a list")
    parts = [_part(entry) for entry in listed]
    end = start + sum(length for _, _, _, length in parts)
    if max(end, size or 0) > limit:
        raise MalformedFrame(f"the frame has {max(end, size or 0)} bytes; at most {limit} are allowed here")
    if size is not None and end != size:
        raise MalformedFrame(f"the frame has {size} bytes, but its header says {end}")
    memory = sum(count * _MEMORY[code] for code, _, count, _ in parts)
    if memory > limit:
        raise MalformedFrame(f"the tensors of the frame would take {memory} bytes; at most {limit} are allowed here")
    if check is not None:
        check(header, len(parts))
    arrays = []
    for part in parts:
        array = _read(source, *part)
        if array is None:
            raise MalformedFrame(f"the frame has {source.taken} bytes, but its header says {end}")
        arrays.append(array)
    if source.fill(memoryview(bytearray(1))):
        raise MalformedFrame(f"the frame has more than the {end} bytes that its header says")
    return header, arrays, end


def _header(source: _Source) -> tuple[dict[str, Any], int]:
    """The JSON object of a frame, with ``tensors`` as its last key, and the place of its end."""
    beginning = bytearray(_START.size)
    if not source.fill(memoryview(beginning)):
        raise MalformedFrame(f"the frame has {source.taken} bytes; it needs at least {_START.size}")
    magic, version, flags, length = _START.unpack(beginning)
    if magic != _MAGIC:
        raise MalformedFrame("these bytes are not a frame of lightning-vfl")
    if version != VERSION:
        older = "on this host" if version > VERSION else "at its sender"
        raise MalformedFrame(f"the frame has version {version}, {VERSION} is read here; upgrade lightning-vfl {older}")
    if flags:
        raise MalformedFrame(f"the flags of a frame must be 0; got {flags}")
    text = bytearray(min(length, HEADER_LIMIT))
    if length > HEADER_LIMIT or not source.fill(memoryview(text)):
        raise MalformedFrame(f"the frame is too short for, or cannot have a header of {length} bytes")
    try:
        header = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError):
        raise MalformedFrame("the header of the frame is not JSON of ASCII characters") from None
    if not isinstance(header, dict) or next(reversed(header), None) != "tensors":
        raise MalformedFrame("the header of a frame must be an object with the last key 'tensors'")
    _check_values(header, 0)
    if _encoded(header) != text:  # blanks, keys given twice, other forms of a number
        raise MalformedFrame("the header of the frame is not in the form that lightning-vfl writes")
    return header, _START.size + length


def _encoded(header: Mapping[str, Any]) -> bytes:
    try:
        return _JSON.encode(header).encode("ascii")
    except (TypeError, ValueError) as error:
        raise MalformedFrame(f"the header of a frame must be JSON: {error}") from None


def _checked(header: Mapping[str, Any]) -> dict[str, Any]:
    """A header, or a part of one, that can be written."""
    if "tensors" in header:
        raise MalformedFrame("the key 'tensors' of a header is written by pack; give the tensors as an argument")
    plain = dict(header)
    _check_values(plain, 0)
    return plain


def _check_values(value: Any, depth: int) -> None:
    """Refuse keys that are not texts, texts that cannot be encoded, and deep nesting."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise MalformedFrame(f"keys in the header of a frame must be texts; got {key!r}")
            _check_text(key)
        inner: Any = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    else:
        if isinstance(value, str):
            _check_text(value)
        return
    if depth == DEPTH_LIMIT:
        raise MalformedFrame(f"the header of a frame may have at most {DEPTH_LIMIT} levels")
    for one in inner:
        if type(one) is not int:  # most values of a round are numbers of parties
            _check_values(one, depth + 1)


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedFrame("a text in the header of the frame is not Unicode") from None


def _part(entry: Any) -> tuple[str, list[int], int, int]:
    """Code, shape, number of elements and bytes of a tensor, from its entry in the header."""
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], list)):
        raise MalformedFrame("an entry of 'tensors' must be [dtype, shape]")
    code, shape = entry
    count = _count(shape)
    if code in _DTYPES:
        return code, shape, count, count * _WIDTHS[code] // 8
    if code in _PACKED:
        return code, shape, count, (count * _PACKED[code][1] + 7) // 8
    raise MalformedFrame(f"dtype {code[:20]!r} is not allowed in a frame; use {', '.join(_DTYPES)} or p1:i8 to p63:i8")


def _count(shape: Sequence[Any]) -> int:
    """The number of elements of a shape."""
    if len(shape) > AXES_LIMIT or any(type(size) is not int or size < 0 for size in shape):
        raise MalformedFrame(f"a shape in a frame must have at most {AXES_LIMIT} whole numbers from 0")
    if prod(size or 1 for size in shape) > SHAPE_LIMIT:  # also of empty tensors: numpy computes strides
        raise MalformedFrame(f"a shape in a frame must have at most {SHAPE_LIMIT} elements")
    return prod(shape)


def _written(tensor: "Tensor | NDArray[Any]", bits: int | None) -> tuple[str, memoryview]:
    """The code of a tensor and its part of the frame."""
    code = _CODES.get(str(tensor.dtype).removeprefix("torch."))
    layout = str(getattr(tensor, "layout", "torch.strided"))
    if code is None or layout != "torch.strided":
        raise MalformedFrame(f"a tensor of {tensor.dtype} ({layout}) cannot be sent; use {', '.join(_DTYPES)}")
    array = tensor if isinstance(tensor, np.ndarray) else tensor.numpy(force=True)
    numbers = np.ascontiguousarray(array, _NUMPY[code])
    if bits is None or bits == _WIDTHS[code]:
        return code, numbers.data
    if f"p{bits}:{code}" not in _PACKED:
        raise MalformedFrame(f"numbers of {tensor.dtype} cannot be packed to {bits} bits")
    words = numbers.reshape(-1).astype(np.int64).view(np.uint64)
    if (words >> np.uint64(bits)).any():
        raise MalformedFrame(f"numbers that are packed to {bits} bits must be from 0 to {2**bits - 1}")
    single = np.unpackbits(words.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, count=bits, bitorder="little")
    return f"p{bits}:{code}", np.packbits(single, bitorder="little").data


def _read(source: _Source, code: str, shape: list[int], count: int, size: int) -> "NDArray[Any] | None":
    """The next array of a source, in memory of its own; None: its bytes have not all come."""
    numbers: NDArray[Any]
    if code in _PACKED:
        kind, bits = _PACKED[code]
        room = np.zeros(_groups(count) * bits + 16, np.uint8)  # words are read behind the last number
        if not source.fill(room[:size]):
            return None
        if (filled := count * bits % 8) and room[size - 1] >> filled:
            raise MalformedFrame("the unused bits of a packed tensor must be 0")
        words = _unpacked(room, count, bits)
        numbers = words.view(np.int64) if kind == "i8" else words.astype(_NUMPY[kind])
    else:
        numbers = np.empty(count, _NUMPY[code])
        raw = numbers.view(np.uint8)
        if not source.fill(raw):
            return None
        if code == "b1" and count and raw.max() > 1:
            raise MalformedFrame("a bool in a frame must be 0 or 1")
        numbers = numbers.astype(_NUMPY[code].newbyteorder("="), copy=False)
    return numbers.reshape(shape)


def _groups(count: int) -> int:
    """How many times eight numbers there are, the last ones filled up."""
    return max(-(-count // 8), 1)


def _unpacked(room: "NDArray[np.uint8]", count: int, bits: int) -> "NDArray[np.uint64]":
    """Numbers of ``bits`` bits each. Eight of them take whole bytes, so number 8g + i is at byte gb + ib / 8."""
    groups = _groups(count)
    numbers = np.empty((groups, 8), np.uint64)
    for i in range(8):
        start, shift = divmod(i * bits, 8)
        words = np.ndarray((groups,), "<u8", room, start, (bits,))
        np.right_shift(words, np.uint64(shift), out=numbers[:, i])
        if shift + bits > 64:
            ends = np.ndarray((groups,), np.uint8, room, start + 8, (bits,)).astype(np.uint64)
            numbers[:, i] |= ends << np.uint64(64 - shift)
    numbers &= np.uint64(2**bits - 1)
    return numbers.reshape(-1)[:count]
