"""Prepared records on the disk, opened again without reading, dividing or scaling the data."""

import json
import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.rebuildable import printed
from lightning_vfl.trained.fitted import Fitted

from .layout import Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT = 3  # another number changes every key, so that nothing stored before is used
_ABOUT = "about.json"  # written last: without it, the other files are not used
_MAPPED = "features"  # memory-mapped; the others are small and read into memory


class Kept(NamedTuple):
    """The stored records of a split: their scaled features (N, Σ F_m), labels and ids, and the parts of the parties.

    ``shift`` and ``scale``, each (Σ F_m,), are the scaling that the features have.
    """

    features: Tensor
    labels: Tensor | None
    ids: "NDArray[np.generic]"
    parts: tuple[Part, ...]
    shift: Tensor
    scale: Tensor


class RecordCache:
    """Prepared records of splits in a folder, with a subfolder for each split of each key.

    Args:
        folder: the folder; it is created if it is not there.
        name: the start of the subfolders' names.
        key: everything that decides about the records, by name: plain numbers, texts and lists of them.

    Units: disk, 4 bytes a feature and 16 a record: 188 MB for the 60,000 training and validation images of
        FashionMNIST and 32 MB for the test images, again for every key. Nothing is deleted.
    Shapes: features (N, Σ F_m), memory-mapped: a page of the file is read when a batch needs it, and shared by all
        processes of the machine. Writing to the features changes a private copy, never the file.
    Guarantee: the records are bit for bit those that were written for the same key and split. Files get their names
        when they are complete, ``about.json`` last, so the files of a killed writer are not read. Files that are cut
        short, have another form or another key are ignored and written anew.
    Not guaranteed: that numbers changed inside a file are noticed. These guarantees on file systems without atomic
        renaming, or after a power cut.
    """

    def __init__(self, folder: Path, name: str, key: Mapping[str, Any]) -> None:
        self.folder = folder
        self.name = name
        self.key = json.loads(
            json.dumps({"format": _FORMAT, **key}, default=str)
        )  # in the form in which it is read again

    def read(self, split: str) -> Kept | None:
        """The stored records of this split; None: there are none that can be used."""
        place = self._place(split)
        try:
            about = json.loads((place / _ABOUT).read_text())
            if about["key"] != self.key:
                return None
            shapes = [tuple(shape) for shape in about["shapes"]]
            arrays = {name: _opened(place / f"{name}.npy", said) for name, said in about["arrays"].items()}
            ids, positions = arrays.pop("ids"), np.split(arrays.pop("positions"), np.cumsum(about["widths"])[:-1])
            parts = tuple(Part(own, shape) for own, shape in zip(positions, shapes, strict=True))
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            return Kept(tensors[_MAPPED], tensors.get("labels"), ids, parts, tensors["shift"], tensors["scale"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, EOFError):
            return None  # not there, cut short, or of another program: it is written anew

    def write(
        self, split: str, features: Tensor, labels: Tensor | None, ids: "NDArray[np.generic]", fitted: Fitted
    ) -> None:
        """Store the records; if that fails, warn and continue."""
        tensors = {_MAPPED: features, "labels": labels, "shift": fitted.shift, "scale": fitted.scale}
        arrays = {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None} | {"ids": ids}
        arrays["positions"] = np.concatenate([party.positions.numpy() for party in fitted.parties])
        about = {
            "key": self.key,
            "arrays": {name: [list(array.shape), array.dtype.str] for name, array in arrays.items()},
            "shapes": [list(party.shape) for party in fitted.parties],
            "widths": [len(party.positions) for party in fitted.parties],
        }
        place = self._place(split)
        try:
            place.mkdir(parents=True, exist_ok=True)
            for name, array in arrays.items():
                with _Complete(place / f"{name}.npy") as file:
                    np.save(file, array, allow_pickle=False)
            with _Complete(place / _ABOUT) as file:
                file.write(json.dumps(about, indent=1).encode())
        except (OSError, ValueError) as error:  # no such folder, no permission, a full disk; ids that are objects
            rank_zero_warn(
                f"the prepared {split} records cannot be stored in {self.folder} ({type(error).__name__}: {error}) and "
                "will be prepared again next time; set cache_dir to a folder with write permission, or leave it out"
            )

    def _place(self, split: str) -> Path:
        digest = blake2b(json.dumps([self.key, split], sort_keys=True).encode(), digest_size=8).hexdigest()
        return self.folder / f"{self.name}-{split}-{digest}"


def stat_files(files: Sequence[Path]) -> list[list[Any]]:
    """Path, size and modification time of each file, for a key; size and time are None for a missing file."""
    said: list[list[Any]] = []
    for file in files:
        try:
            state = file.stat()
            said.append([str(file.absolute()), state.st_size, state.st_mtime_ns])
        except OSError:
            said.append([str(file.absolute()), None, None])
    return said


def describe(thing: object) -> str:
    """Class and settings of a partitioner or normaliser, for a key; the module tells two classes of one name apart.

    Examples:
        >>> from lightning_vfl.datamodules import RowStrips
        >>> describe(RowStrips(4))
        'lightning_vfl.datamodules.partitioners.partition.RowStrips: RowStrips(parties=4)'
    """
    return f"{type(thing).__module__}.{type(thing).__qualname__}: {thing!r}"


def contents(value: object) -> object:
    """A setting in plain form, for a key: arrays by all their numbers, which their printed form leaves out or rounds.

    Examples:
        >>> contents([2.5, {"rows": torch.ones(3)}])
        ['2.5', [["'rows'", ['Tensor', 'torch.float32', [3], '0b1215fa0ebea5d4']]]]
    """
    if isinstance(value, Tensor | np.ndarray):
        numbers = blake2b(repr(value.tolist()).encode(), digest_size=8).hexdigest()
        return [type(value).__name__, str(value.dtype), list(value.shape), numbers]
    if isinstance(value, Mapping):
        return [[repr(key), contents(inner)] for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [contents(inner) for inner in value]
    return [describe(value), contents(vars(value))] if type(value).__repr__ is printed else repr(value)


class _Complete:
    """A file that gets its name when it is complete and closed, and is removed after an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f"{path.name}.{token_hex(8)}.tmp")  # several processes may write at once

    def __enter__(self) -> IO[bytes]:
        self._file = self._temporary.open("xb")
        return self._file

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self._file.close()
            if kind is None:
                os.replace(self._temporary, self.path)
        finally:
            self._temporary.unlink(missing_ok=True)


def _opened(path: Path, said: Sequence[Any]) -> "NDArray[Any]":
    """The array in this file.

    Raises:
        ValueError: if it does not have the expected shape and dtype.
    """
    # "c" (copy on write) because torch has no read-only memory; np.load also refuses short files
    array: NDArray[Any] = np.load(path, mmap_mode="c" if path.stem == _MAPPED else None, allow_pickle=False)
    if [list(array.shape), array.dtype.str] != list(said):
        raise ValueError(f"{path} does not have the expected shape and dtype")
    return array
