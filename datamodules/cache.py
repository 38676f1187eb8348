"""Records as they come out of ``setup``, kept on the disk and opened again without reading, cutting or scaling."""

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

from .partition import Part, Partitioner
from .records import VerticalRecords

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT = 1  # a higher number makes everything that was kept before another key
_ABOUT = "about.json"  # written last: without it, nothing else counts
_MAPPED = "features"  # the others are small and read whole


class Kept(NamedTuple):
    """What was kept of a split: its records, None if the data have none; and the parts that they were cut into."""

    records: VerticalRecords | None
    parts: tuple[Part, ...]


class RecordCache:
    """Prepared records of splits in a folder, a subfolder for each split of each key.

    Args:
        folder: where to keep them; it is made if it is not there.
        name: begins the names of the subfolders.
        key: what decides about the records, by name: plain numbers, texts and lists of them.

    Units: disk, 4 bytes a feature and 16 to 24 a record: 188 MB for the 60,000 training and validation images of
        FashionMNIST and 32 MB for the test images, for every key anew. Nothing is ever deleted.
    Shapes: features (N, Σ F_m), mapped: a page of the file is read when a batch asks for it, and shared by all
        processes of the machine. Whoever writes to it changes a copy of their own, never the file.
    Guarantee: what is read is what was written, bit for bit, for this very key and split. Files take their names when
        they are complete, the one that vouches for the others last: a writer that is killed leaves nothing that is
        read. What is cut short, of another form or of another key counts as not there, and is written anew.
    Not guaranteed: that a file whose numbers were changed in place is noticed. That file systems without atomic
        renaming, or a power cut, keep these promises.
    """

    def __init__(self, folder: Path, name: str, key: Mapping[str, Any]) -> None:
        self.folder = folder
        self.name = name
        self.key = json.loads(json.dumps({"format": _FORMAT, **key}, default=str))  # as it is read again

    def read(self, split: str) -> Kept | None:
        """What was kept of this split; None: nothing that can be used."""
        place = self._place(split)
        try:
            about = json.loads((place / _ABOUT).read_text())
            if about["key"] != self.key:
                return None
            shapes = [tuple(shape) for shape in about["shapes"]]
            arrays = {name: _opened(place / f"{name}.npy", said) for name, said in about["arrays"].items()}
            positions = np.split(arrays.pop("positions"), np.cumsum(about["widths"])[:-1])
            parts = tuple(Part(own, shape) for own, shape in zip(positions, shapes, strict=True))
            return Kept(_records(arrays, shapes) if _MAPPED in arrays else None, parts)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, EOFError):
            return None  # not there, cut short, or not ours: whatever it is, it is written anew

    def write(self, split: str, records: VerticalRecords | None, parts: Sequence[Part]) -> None:
        """Keep these; where that cannot be done, warn and go on."""
        arrays: dict[str, NDArray[Any]] = {"positions": np.concatenate([part.positions for part in parts])}
        if records is not None:
            arrays |= {_MAPPED: records.features.numpy(), "ids": records.ids}
            for name in ("labels", "present", "label_holders"):
                if (own := getattr(records, name)) is not None:
                    arrays[name] = own.numpy()
        about = {
            "key": self.key,
            "arrays": {name: [list(array.shape), array.dtype.str] for name, array in arrays.items()},
            "shapes": [list(part.shape) for part in parts],
            "widths": [len(part.positions) for part in parts],
        }
        place = self._place(split)
        try:
            place.mkdir(parents=True, exist_ok=True)
            for name, array in arrays.items():
                with _Complete(place / f"{name}.npy") as file:
                    np.save(file, array, allow_pickle=False)
            with _Complete(place / _ABOUT) as file:
                file.write(json.dumps(about, indent=1).encode())
        except (OSError, ValueError) as error:  # no such folder, no right, a full disk; ids that are objects
            rank_zero_warn(
                f"the prepared {split} records cannot be kept in {self.folder} ({type(error).__name__}: {error}) and "
                "will be prepared again next time; name a folder that can be written with cache_dir, or leave it out"
            )

    def _place(self, split: str) -> Path:
        digest = blake2b(json.dumps([self.key, split], sort_keys=True).encode(), digest_size=8).hexdigest()
        return self.folder / f"{self.name}-{split}-{digest}"


def state_of(files: Sequence[Path]) -> list[list[Any]]:
    """Path, size and time of change of each file, for a key; size and time are None where there is none."""
    said: list[list[Any]] = []
    for file in files:
        try:
            state = file.stat()
            said.append([str(file.absolute()), state.st_size, state.st_mtime_ns])
        except OSError:
            said.append([str(file.absolute()), None, None])
    return said


def files_named(partitioner: Partitioner) -> list[Path]:
    """The files that a partitioner's settings name, and those of the one that it is over: they decide as well."""
    found = []
    for setting in vars(partitioner).values():
        if isinstance(setting, Partitioner):
            found += files_named(setting)
        elif isinstance(setting, str | Path) and os.path.isfile(setting):
            found.append(Path(setting))
    return found


def described(thing: object) -> str:
    """Class and settings of a partitioner, for a key; two of one name are told by their modules.

    Examples:
        >>> from lightning_vfl.datamodules import RowStrips
        >>> described(RowStrips(4))
        'lightning_vfl.datamodules.partition.RowStrips: RowStrips(parties=4)'
    """
    return f"{type(thing).__module__}.{type(thing).__qualname__}: {thing!r}"


class _Complete:
    """A file that takes its name when it is complete and closed, and is gone if anything goes wrong before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f"{path.name}.{token_hex(8)}.tmp")  # several may write at once

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
    """The array in this file, refused with a ``ValueError`` if it is not of the form that was said."""
    # "c": written pages are copied, which torch, that knows no read-only memory, may do; also refuses short files
    array: NDArray[Any] = np.load(path, mmap_mode="c" if path.stem == _MAPPED else None, allow_pickle=False)
    if [list(array.shape), array.dtype.str] != list(said):
        raise ValueError(f"{path} holds other numbers than were written")
    return array


def _records(arrays: "Mapping[str, NDArray[Any]]", shapes: Sequence[tuple[int, ...]]) -> VerticalRecords:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if name != "ids"}
    return VerticalRecords(
        tensors[_MAPPED],
        shapes,
        tensors.get("labels"),
        arrays["ids"],
        tensors.get("present"),
        tensors.get("label_holders"),
    )
