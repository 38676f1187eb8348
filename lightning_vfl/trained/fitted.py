"""What the parties have fitted to the training records: the part of a trained model that prepares new records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.trained.id_hashes import hashed_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TrainedIds:
    """Keyed hashes of the ids of the training records.

    Args:
        key: 32 hexadecimal digits.
        hashed: (n,) int64, hashes that are known.
        ids: further ids; they are hashed when the hashes are first used, which takes a second for a million ids.

    Guarantee: the same id has the same hash under a key, whether it is a number or its text. Hashes under different
        keys cannot be compared.
    Not guaranteed: secrecy of the ids. The key is in the same checkpoint, so whoever has a checkpoint can try ids.

    Examples:
        >>> trained = TrainedIds.of([7, 9])
        >>> trained.among(["9", "11"]).tolist()
        [True, False]
        >>> trained.including([11]).among(["9", "11"]).tolist()
        [True, True]
    """

    def __init__(self, key: str, hashed: Tensor, ids: "Sequence[object] | NDArray[np.generic]" = ()) -> None:
        self.key = key
        self._hashed = hashed
        self._ids = ids

    @classmethod
    def of(cls, ids: "Sequence[object] | NDArray[np.generic]") -> "TrainedIds":
        """The hashes of these ids under a new random key."""
        return cls(token_hex(16), torch.empty(0, dtype=torch.int64), ids)

    @cached_property
    def hashes(self) -> Tensor:
        """(n,) int64, sorted, each once."""
        both = np.concatenate([self._hashed.numpy(), hashed_ids(self.key, self._ids)])
        return torch.from_numpy(np.unique(both))

    def among(self, ids: "Sequence[object] | NDArray[np.generic]") -> Tensor:
        """(N,) bool, whether each of these ids is the id of a training record."""
        return torch.isin(torch.from_numpy(hashed_ids(self.key, ids)), self.hashes)

    def including(self, ids: "Sequence[object] | NDArray[np.generic]") -> "TrainedIds":
        """These hashes and those of further training records, under the same key."""
        return TrainedIds(self.key, self.hashes, ids)


@dataclass(frozen=True)
class FittedParty:
    """What one party has fitted to its own training rows.

    Args:
        positions: (F,) int64, the places of its features in a record before the features are divided.
        shape: per-record shape of its features; F is the product.
        shift: (F,), subtracted from each feature.
        scale: (F,), by which the difference is divided.
        columns: the F names of its features; empty for images.
        dtype: in which its bottom gets the features, such as ``int64``; "": float32.
    """

    positions: Tensor
    shape: tuple[int, ...]
    shift: Tensor
    scale: Tensor
    columns: tuple[str, ...] = ()
    dtype: str = ""

    def state(self) -> dict[str, Any]:
        """Plain values and tensors."""
        scaling = {"shift": _shortened(self.shift), "scale": _shortened(self.scale)}
        kept = {"positions": self.positions, "shape": list(self.shape), **scaling, "columns": list(self.columns)}
        return kept | ({"dtype": self.dtype} if self.dtype else {})

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """The party of a state."""
        positions = state["positions"].cpu()
        shift, scale = (state[name].cpu().expand(len(positions)) for name in ("shift", "scale"))
        return cls(positions, tuple(state["shape"]), shift, scale, tuple(state["columns"]), state.get("dtype", ""))


@dataclass(frozen=True)
class Fitted:
    """Everything that was fitted to the training records of a data set, party by party.

    It belongs to the trained model: checkpoints keep it as plain values and tensors, and new records are prepared with
    it. Nothing in it is fitted again when the model is tested, applied or trained further.

    Args:
        data: name of the data set's class.
        size: number of features of a record before they are divided.
        parties: what each party has fitted.
        num_classes: number of classes of the labels; None: real values.
        class_names: the classes as the files name them; class c of a prediction is ``class_names[c]``.
        trained: hashes of the ids of the training records.
        own: what the data set itself has fitted, as plain values: the categories of each column, for example.
        normaliser: the printed form of the normaliser.
    """

    data: str
    size: int
    parties: tuple[FittedParty, ...]
    num_classes: int | None
    class_names: tuple[int | str, ...]
    trained: TrainedIds
    own: Mapping[str, Any] = field(default_factory=dict)
    normaliser: str = ""

    @property
    def shift(self) -> Tensor:
        """(Σ F_m,) the shifts of all parties, side by side."""
        return torch.cat([party.shift for party in self.parties])

    @property
    def scale(self) -> Tensor:
        """(Σ F_m,) the scales of all parties, side by side."""
        return torch.cat([party.scale for party in self.parties])

    def prepares_as(self, other: "Fitted") -> bool:
        """Whether records come out the same, to the bit, with this and with the other."""
        return (self.digest(), self.class_names, self.own) == (other.digest(), other.class_names, other.own)

    def digest(self) -> str:
        """A short hash of the columns and the scaling of all parties."""
        hashed = blake2b(digest_size=8)
        for party in self.parties:
            hashed.update(party.dtype.encode())
            for numbers in (party.positions, party.shift.double(), party.scale.double()):
                hashed.update(numbers.contiguous().numpy().tobytes())
        return hashed.hexdigest()

    def state(self) -> dict[str, Any]:
        """Plain values and tensors, for a checkpoint."""
        return {
            "data": self.data,
            "size": self.size,
            "parties": [party.state() for party in self.parties],
            "num_classes": self.num_classes,
            "class_names": list(self.class_names),
            "trained": {"key": self.trained.key, "hashes": self.trained.hashes},
            "own": dict(self.own),
            "normaliser": self.normaliser,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """What a checkpoint has kept."""
        return cls(
            state["data"],
            state["size"],
            tuple(FittedParty.of(party) for party in state["parties"]),
            state["num_classes"],
            tuple(state["class_names"]),
            TrainedIds(state["trained"]["key"], state["trained"]["hashes"].cpu()),
            state["own"],
            state["normaliser"],
        )


def _shortened(numbers: Tensor) -> Tensor:
    """One number if all are equal, as those of an image's pixels often are."""
    first = numbers[:1].clone()
    return first if len(numbers) and bool((numbers == first).all()) else numbers.clone()
