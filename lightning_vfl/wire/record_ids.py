"""Ids of records on their way between processes: as a tensor, and as a digest that tells only whether lists are equal.

Ids are int64 numbers or texts, as ``own_ids`` of the data returns them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class IdDigest:
    """All that is told of a list of ids under ``alignment: given``.

    Args:
        count: how many ids there are.
        sha256: 64 hexadecimal digits; equal lists in any order have equal digits.
    """

    count: int
    sha256: str

    @classmethod
    def of(cls, ids: "Sequence[str] | NDArray[np.generic]") -> "IdDigest":
        """The digest of a list.

        Examples:
            >>> IdDigest.of(["b", "a"]) == IdDigest.of(["a", "b"]), IdDigest.of([7]) == IdDigest.of(["7"])
            (True, False)
        """
        values = np.sort(as_ids(ids))
        return cls(len(values), sha256(f"{values.dtype.kind}\n".encode() + as_bytes(values)).hexdigest())


def refuse_other_ids(own: IdDigest, told: Mapping[str, IdDigest]) -> None:
    """Accept parties whose lists of ids are equal to one's own.

    Args:
        own: the digest of this process's ids.
        told: party -> its digest.

    Raises:
        ConfigurationError: for the first party with another list; the error tells the counts alone.
    """
    for party, digest in told.items():
        if digest != own:
            both = f"{digest.count} ids, the server {own.count}"
            raise ConfigurationError(
                f"party '{party}' has {both}" + (", but not the same ones" if digest.count == own.count else "") + "; "
                "alignment: given needs equal lists: give all tables the same records, or use alignment: clear"
            )


def as_ids(ids: "Sequence[object] | NDArray[np.generic]") -> "NDArray[np.generic]":
    """The ids as int64 numbers, or as texts.

    Raises:
        ConfigurationError: for values that are neither.
    """
    values: NDArray[np.generic] = np.asarray(ids)
    if not len(values):
        return values.astype(np.str_ if values.dtype.kind == "U" else np.int64)
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    if values.dtype.kind == "U" or all(isinstance(value, str) for value in values.tolist()):
        return values.astype(np.str_)
    raise ConfigurationError(f"ids of records must be whole numbers or texts; got {values.dtype}")


def known_ids(ids: "NDArray[np.generic]", own: "NDArray[np.generic]") -> "NDArray[np.generic]":
    """The ids of a list that are among one's own, and a stand-in for every other id.

    A stand-in is of the same kind, and is in neither list, so that it tells nothing but its place. Not
    guaranteed: that a place tells no id; between the numbers 5 and 7 there is only 6.

    Args:
        ids: (n,) different ids.
        own: those that may be told.

    Examples:
        >>> known_ids(np.array([5, 7, 9]), np.array([7, -1])).tolist()
        [-2, 7, -4]
        >>> known_ids(np.array(["ann", "bob"]), np.array(["bob"])).tolist()
        ['not held 1', 'bob']
    """
    numbers = np.arange(1, 2 * len(ids) + len(own) + 1)
    names = -numbers if ids.dtype.kind == "i" else np.char.add("not held ", numbers.astype(np.str_))
    unused = names[~np.isin(names, np.concatenate([ids, own]))]
    return np.where(np.isin(ids, own), ids, unused[: len(ids)])


def ids_to_tensor(ids: "Sequence[str] | NDArray[np.generic]") -> Tensor:
    """(n,) int64 numbers; or texts as one uint8 tensor of bytes."""
    values = as_ids(ids)
    if values.dtype == np.int64:
        return torch.from_numpy(values.copy())
    return torch.frombuffer(bytearray(as_bytes(values)), dtype=torch.uint8)


def ids_from_tensor(tensor: Tensor) -> "NDArray[np.generic]":
    """The ids that ``ids_to_tensor`` has packed.

    Raises:
        ConfigurationError: for tensors that it does not make.

    Examples:
        >>> ids_from_tensor(ids_to_tensor(["a7", "007"])).tolist(), ids_from_tensor(ids_to_tensor([3, 1])).tolist()
        (['a7', '007'], [3, 1])
    """
    if tensor.ndim == 1 and tensor.dtype == torch.int64:
        return tensor.numpy()
    try:
        texts = json.loads(tensor.numpy().tobytes().decode()) if tensor.dtype == torch.uint8 else None
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)} is not a list of ids")
    return np.array(texts, dtype=np.str_)


def as_bytes(values: "NDArray[np.generic]") -> bytes:
    """Numbers as 8 bytes each, little-endian; texts as a JSON list in UTF-8."""
    if values.dtype.kind == "i":
        return values.astype("<i8").tobytes()
    return json.dumps(values.tolist(), ensure_ascii=False).encode()
