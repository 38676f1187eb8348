"""What endpoints and the gateway send each other: frames, with arrays of numpy.

An endpoint begins with ``Hello``. The gateway answers with ``Keys`` if embeddings are masked, and then sends one
``Ask`` after the other; the endpoint answers each of them, in this order, with ``Embeddings`` or ``Withheld``.
"""

import json
from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import MalformedFrame
from lightning_vfl.federation.frames import pack, unpack_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

SERVICE = "lightning_vfl.Predictions"
METHOD = "Answer"
MOST_IDS = 2**16  # records of one ``Ask``


@dataclass(frozen=True)
class Hello:
    """The first message of an endpoint.

    Args:
        model: the hash of the model of its half.
        ids: ``whole numbers`` or ``text``, the kind of the ids of its table.
        public: the public key of this connection, in hexadecimal digits; empty: embeddings are not masked.
        signature: of the public key, by the key of the party's certificate.
    """

    model: str
    ids: str
    public: str = ""
    signature: str = ""


@dataclass(frozen=True)
class Keys:
    """The keys with which the next sums are masked.

    Args:
        publics: party -> its public key and its signature.
    """

    publics: "Mapping[str, tuple[str, str]]"


@dataclass(frozen=True, eq=False)
class Ask:
    """A request for embeddings.

    Args:
        number: greater than that of the request before.
        model: the hash of the model whose embeddings are asked for.
        ids: (B,) int64 or text.
    """

    number: int
    model: str
    ids: "NDArray[Any]"

    @property
    def content(self) -> "NDArray[Any]":
        """The ids as they travel: numbers, or the bytes of a JSON list."""
        if self.ids.dtype.kind == "i":
            return self.ids
        return np.frombuffer(json.dumps(self.ids.tolist(), ensure_ascii=False).encode(), np.uint8)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The answer to a request.

    Args:
        number: of the request.
        values: (B, D) float32 embeddings, or uint32 if they are masked.
        known: (B,) bool, the records that the party has and answers for; rows of others have no meaning.
        withheld: (B,) bool, the records that it has and does not answer for.
        budget_left: how much ε the party's budget has left; None: it has no budget.
    """

    number: int
    budget_left: float | None
    values: "NDArray[Any]"
    known: "NDArray[np.bool_]"
    withheld: "NDArray[np.bool_]"


@dataclass(frozen=True)
class Withheld:
    """A request is not answered.

    Args:
        number: of the request.
        why: one line.
    """

    number: int
    why: str


Message = Hello | Keys | Ask | Embeddings | Withheld

_KINDS = {"hello": Hello, "keys": Keys, "ask": Ask, "embeddings": Embeddings, "withheld": Withheld}
_SAY = {kind: say for say, kind in _KINDS.items()}
_ARRAYS = {Ask: ("ids",), Embeddings: ("values", "known", "withheld")}


def written(message: Message) -> bytes:
    """The frame of a message.

    Examples:
        >>> read(written(Withheld(3, "no")), 100)
        Withheld(number=3, why='no')
        >>> read(written(Ask(4, "5f0c", np.array(["a7", "b"]))), 200).ids.tolist()
        ['a7', 'b']
    """
    kind = type(message)
    of_arrays = _ARRAYS.get(kind, ())
    header = {one.name: getattr(message, one.name) for one in fields(kind) if one.name not in of_arrays}
    arrays = [message.content] if isinstance(message, Ask) else [getattr(message, name) for name in of_arrays]
    return pack({"say": _SAY[kind], **header}, arrays)


def read(content: bytes, limit: int) -> Message:
    """The message of a frame.

    Args:
        content: the frame.
        limit: the largest number of its bytes.

    Raises:
        MalformedFrame: for everything that ``written`` does not write.
    """
    header, arrays = unpack_arrays(content, limit)
    kind = _KINDS.get(str(header.pop("say", "")))
    if kind is None or len(arrays) != len(_ARRAYS.get(kind, ())):
        raise MalformedFrame("the frame is no message of a prediction; install equal versions")
    expected = {one.name: one.type for one in fields(kind) if one.name not in _ARRAYS.get(kind, ())}
    if header.keys() != expected.keys():
        raise MalformedFrame(f"a message of a prediction must have the fields {', '.join(expected)}")
    for name, value in header.items():
        if not _CHECKS[name](value):
            raise MalformedFrame(f"the field {name} of a message of a prediction has another type")
    if kind is Ask:
        return Ask(header["number"], header["model"], _ids(arrays[0]))
    if kind is Embeddings:
        return Embeddings(header["number"], header["budget_left"], *_embeddings(*arrays))
    if kind is Keys:
        return Keys({name: (pair[0], pair[1]) for name, pair in header["publics"].items()})
    made: Message = kind(**header)
    return made


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_left(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and isfinite(value))


def _are_publics(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_is_text, pair)) for pair in value.values()
    )


_CHECKS = {
    "model": _is_text,
    "ids": _is_text,
    "public": _is_text,
    "signature": _is_text,
    "why": _is_text,
    "number": _is_number,
    "budget_left": _is_left,
    "publics": _are_publics,
}


def _ids(content: "NDArray[Any]") -> "NDArray[Any]":
    """The ids of a request, from numbers or the bytes of a JSON list."""
    ids: Any = content
    if content.dtype == np.uint8 and content.ndim == 1:
        try:
            ids = json.loads(content.tobytes())
        except (ValueError, RecursionError):
            raise MalformedFrame("the ids of a request are not a list in JSON") from None
        if not isinstance(ids, list) or not all(map(_is_text, ids)):
            raise MalformedFrame("the ids of a request must be texts or whole numbers")
        ids = np.array(ids, dtype=np.str_)
    elif content.dtype != np.int64 or content.ndim != 1:
        raise MalformedFrame("the ids of a request must be texts or whole numbers")
    if not 1 <= len(ids) <= MOST_IDS:
        raise MalformedFrame(f"a request must have 1 to {MOST_IDS} ids; got {len(ids)}")
    checked: NDArray[Any] = ids
    return checked


def _embeddings(values: "NDArray[Any]", *marks: "NDArray[Any]") -> "Iterator[NDArray[Any]]":
    fitting = all(mark.shape == values.shape[:1] and mark.dtype == np.bool_ for mark in marks)
    if not fitting or values.ndim != 2 or values.dtype not in (np.float32, np.uint32):
        raise MalformedFrame("an answer must have embeddings (B, D) and B times whether the party has the record")
    yield from (values, *marks)
