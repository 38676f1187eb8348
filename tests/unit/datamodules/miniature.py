"""Tiny files in the raw formats of the file-based data sets, and tiny data held in memory."""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.io import savemat

from lightning_vfl.datamodules import ContiguousColumns, Layout, Partitioner, Split, VerticalDataModule
from lightning_vfl.datamodules.base import SplitName

TRAIN, TEST = 120, 40
WIDTHS = {"fac": 216, "fou": 76, "kar": 64, "mor": 6, "pix": 240, "zer": 47}


def idx(array: np.ndarray) -> bytes:
    """The bytes of an IDX file of unsigned bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_idx(folder: Path) -> Mapping[str, np.ndarray]:
    """The four files of MNIST and its kin with 120 training and 40 test images; returns what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.Generator(np.random.PCG64(1))
    arrays = {}
    for name, records in (("train", TRAIN), ("t10k", TEST)):
        images = draw.integers(0, 256, (records, 28, 28), dtype=np.uint8)
        labels = np.arange(records, dtype=np.uint8) % 10
        for file, array in ((f"{name}-images-idx3-ubyte.gz", images), (f"{name}-labels-idx1-ubyte.gz", labels)):
            (folder / file).write_bytes(gzip.compress(idx(array), 1))
            arrays[file] = array
    return arrays


def write_csv(path: Path, columns: Mapping[str, Any], separator: str = ",") -> Path:
    """A CSV file; None is an empty field."""
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    lines = [separator.join("" if value is None else str(value) for value in row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def credit(records: int = 200) -> dict[str, list[Any]]:
    """Clients as in the CSV file of UCI: ids that are not sorted, whole numbers, every fifth with a default."""
    draw = np.random.Generator(np.random.PCG64(2))
    features = draw.integers(-2000, 500_000, (23, records)).tolist()
    ids = [(7 * i) % records + 1 for i in range(records)]  # 7 does not divide any size used here
    return (
        {"ID": ids} | {f"X{i}": column for i, column in enumerate(features, 1)} | {"Y": [int(i % 5 == 0) for i in ids]}
    )


def views(records: int, names: Sequence[str] = tuple(WIDTHS)) -> dict[str, np.ndarray]:
    """Views of handwritten numerals, every number a digit."""
    draw = np.random.Generator(np.random.PCG64(3))
    return {name: draw.integers(0, 10, (records, WIDTHS[name]), dtype=np.uint8) for name in names}


def cell_array(values: Sequence[Any]) -> np.ndarray:
    """What scipy writes as a MATLAB cell array in a column."""
    cells = np.empty((len(values), 1), dtype=object)
    for i, value in enumerate(values):
        cells[i, 0] = value
    return cells


def write_mat(path: Path, **variables: Any) -> Path:
    """The views and labels of 200 numerals, classes numbered from 1, and whatever a test wants otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    usual = {"X": cell_array(list(views(200).values())), "y": (np.arange(200) // 20 + 1)[:, None]}
    savemat(path, {name: value for name, value in (usual | variables).items() if value is not None})
    return path


def write_mfeat(folder: Path) -> dict[str, np.ndarray]:
    """The six text files of UCI with all their 2,000 records; returns what is in them."""
    arrays = views(2000)
    for name, array in arrays.items():
        text = np.full((len(array), 2 * array.shape[1]), ord(" "), dtype=np.uint8)
        text[:, ::2] = array + ord("0")
        text[:, -1] = ord("\n")
        (folder / f"mfeat-{name}").write_bytes(text.tobytes())
    return arrays


class InMemory(VerticalDataModule):
    """Whatever splits a test gives it."""

    def __init__(
        self,
        splits: Mapping[SplitName, Split],
        classes: int | None = 2,
        partitioner: Partitioner | None = None,
        columns: tuple[str, ...] = (),
        batch_size: int = 4,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner or ContiguousColumns(2), batch_size=batch_size, **settings)
        self.splits = splits
        self.classes = classes
        self.columns = columns

    @property
    def layout(self) -> Layout:
        return Layout(tuple(self.splits["train"].features.shape[1:]), self.columns)

    @property
    def num_classes(self) -> int | None:
        return self.classes

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(2)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        return {name: self.splits[name] for name in names if name in self.splits}


def table(records: int, columns: int, seed: int = 0) -> Split:
    """A split of random features and alternating labels, ids r0, r1, ..."""
    features = torch.randn(records, columns, generator=torch.Generator().manual_seed(seed))
    return Split(features, torch.arange(records) % 2, np.array([f"r{i}" for i in range(records)]))
