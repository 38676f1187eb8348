"""Tables of numbers and categories with labels of two classes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from .base import SplitName, VerticalDataModule
from .cells import check_classes, numbers, refuse
from .divided import Divided
from .normalise import Normaliser, StandardiseNumbers
from .one_hot import one_hot
from .partition import Layout, NamedColumns, Partitioner
from .records import Split

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class MixedRecords:
    """N records as the files have them, and which of them are in which split.

    Args:
        columns: name -> (N,) float64, or texts if the column is categorical.
        labels: (N,) int64, 0 or 1.
        ids: (N,) int64.
        rows: positions of each split.
    """

    columns: "Mapping[str, NDArray[Any]]"
    labels: "NDArray[np.int64]"
    ids: "NDArray[np.int64]"
    rows: "Mapping[SplitName, NDArray[np.int64]]"


@dataclass(frozen=True)
class _Encoded:
    """The same records with their categories as columns of 0 and 1, and the names of these."""

    names: tuple[str, ...]
    table: Divided


class MixedTable(VerticalDataModule, ABC):
    """Records of numbers and categories, two classes; a subclass says what the files are and how to read them.

    A categorical column becomes one column of 0 and 1 for each of its categories, called ``column=category``, in the
    place of the column and in the categories' order as text; ``NamedColumns`` takes the column's name for all of them.

    Args:
        partitioner: who gets which columns; None: ``groups``, as far as they are not dropped.
        normaliser: how each party scales its features; None: numbers to mean 0 and deviation 1, categories not at all.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        drop: columns that nobody gets.
        categorical: columns to encode one-hot; all others must hold numbers.
        public_categories: declare the training records' categories public, as ``private_statistics`` asks for.

    Guarantee: categories, like scaling, come from the training records alone; one that only other records have is
        encoded as all zeros. What is marked as unknown is a category like any other; nothing is filled in.
    """

    columns: ClassVar[tuple[str, ...]]
    """All columns, in the order of the records here."""
    groups: ClassVar[Mapping[str, tuple[str, ...]]]
    """Party -> its columns in the usual cut; together these are all columns."""
    classes: ClassVar[tuple[str, str]]
    """The labels as the files have them: label c of a batch is ``classes[c]``."""
    label: ClassVar[str]
    """What errors call the column of the labels."""
    source: ClassVar[str]
    """Where to get the files."""

    def __init__(
        self,
        partitioner: Partitioner | None,
        normaliser: Normaliser | None,
        batch_size: int,
        seed: int,
        drop_last: bool,
        num_workers: int,
        pin_memory: bool,
        drop: Sequence[str],
        categorical: Sequence[str],
        public_categories: bool = False,
    ) -> None:
        self.drop = tuple(drop)  # before the base class, which asks for the usual cut
        self.categorical = tuple(categorical)
        self.public_categories = public_categories
        for argument, names in (("drop", self.drop), ("categorical", self.categorical)):
            if unknown := [name for name in names if name not in self.columns]:
                raise ConfigurationError(
                    f"{argument} names column '{unknown[0]}', which {type(self).__name__} does not have; it has "
                    f"{', '.join(self.columns)}"
                )
        if not self._kept:
            raise ConfigurationError(f"drop names all {len(self.columns)} columns of {type(self).__name__}; keep some")
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)

    @abstractmethod
    def read(self) -> MixedRecords:
        """The checked records of the files, split."""

    @property
    def layout(self) -> Layout:
        names = self._encoded.names
        return Layout((len(names),), names)

    @property
    def num_classes(self) -> int:
        return 2

    @property
    def pos_weight(self) -> float:
        """Training records of class 0 for each one of class 1, to even out the classes.

        Such as ``Binary(torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(data.pos_weight)))``.

        Raises:
            ConfigurationError: if no training record is of class 1.
        """
        positive = f"is of class '{self.classes[1]}'"
        return self._encoded.table.pos_weight(type(self).__name__, positive, "keep more records for training")

    def default_partitioner(self) -> Partitioner:
        kept = {party: [name for name in names if name not in self.drop] for party, names in self.groups.items()}
        return NamedColumns({party: names for party, names in kept.items() if names})

    def default_normaliser(self) -> Normaliser:
        return StandardiseNumbers()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        return self._encoded.table.splits(names)

    def check(self, path: Path, cells: "pd.DataFrame") -> "tuple[dict[str, NDArray[Any]], NDArray[np.int64]]":
        """Columns and labels of a file from its text.

        Raises:
            ConfigurationError: for empty fields, columns that are not numbers, and labels of other classes.
        """
        columns: dict[str, NDArray[Any]] = {}
        for name in self._kept:
            text = cells[name]
            refuse(path, name, text[text == ""], "are empty", "fill them in or remove the records")
            if name in self.categorical:
                columns[name] = text.to_numpy(dtype=np.str_)
            else:
                columns[name] = numbers(path, text, "correct or remove the records, or name the column in categorical")
        text, (no, yes) = cells[self.label], self.classes
        refuse(path, self.label, text[~text.isin(self.classes)], f"are neither {no} nor {yes}", "write one of these")
        check_classes(path, text, self.source)
        labels = np.asarray(text == yes, dtype=np.int64)
        rank_zero_info(
            f"{type(self).__name__}: {len(labels)} records of {path.name}, {labels.sum()} of them "
            f"({labels.mean():.1%}) with {self.label} {yes}"
        )
        return columns, labels

    # ---- inside

    @property
    def _kept(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.drop)

    @cached_property
    def _encoded(self) -> _Encoded:
        records = self.read()
        names: list[str] = []
        blocks = []
        for name, values in records.columns.items():
            if name in self.categorical:
                block, categories = one_hot(values, records.rows["train"])
                names += [f"{name}={category}" for category in categories]
                blocks.append(block)
            else:
                names.append(name)
                blocks.append(values[:, None])
        features, labels = torch.from_numpy(np.hstack(blocks)), torch.from_numpy(records.labels)
        return _Encoded(tuple(names), Divided(records.ids, features, labels, records.rows))
