"""Forms of data sets that are published: what one data set says in attributes, and files in a folder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner
from ..records.folders import data_folder
from ..records.labelled import Labelled
from ..records.layout import Layout
from ..records.normalise import Normaliser, Standardise, StandardiseParty
from ..records.records import Split, SplitName
from ..split import check_shares, check_val_records, draw_validation, split_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

PublishedPart = Literal["train", "test"]


class PublishedSet(VerticalDataModule, ABC):
    """A data set whose files are in a folder. A subclass has the attributes below, and implements the rest.

    Args:
        partitioner: who gets which columns; None: ``usual_partitioner``.
        data_dir: folder of the files; None: ``$LIGHTNING_VFL_DATA/NAME``, else ``data/NAME``.
        loader: further settings of ``VerticalDataModule``: ``normaliser``, ``batch_size``, ``seed`` and so on.
    """

    ids_are_places = True
    folder: ClassVar[str]
    """NAME, the subfolder of the data folder."""
    usual_partitioner: ClassVar[Partitioner]
    """The partitioner that is used when none is given."""
    usual_normaliser: ClassVar[Normaliser] = Standardise()
    """The scaling that is used when none is given."""

    def __init__(
        self, partitioner: Partitioner | None = None, *, data_dir: str | Path | None = None, **loader: Any
    ) -> None:
        super().__init__(partitioner, **loader)
        self.data_dir = data_folder(data_dir, self.folder)

    def default_partitioner(self) -> Partitioner:
        return self.usual_partitioner

    def default_normaliser(self) -> Normaliser:
        return self.usual_normaliser


class PublishedWhole(PublishedSet, ABC):
    """Records that are read together and divided into splits. A subclass implements ``read``.

    Args:
        partitioner: who gets which columns; None: ``usual_partitioner``.
        val_share: share of all records for validation, taken from those for training; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        settings: further settings of ``PublishedSet`` and ``VerticalDataModule``.

    Guarantee: the splits are stratified by class, unless ``read`` decides them.
    """

    data_settings: ClassVar[tuple[str, ...]] = ("val_share", "test_share")

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        val_share: float = 0.1,
        test_share: float = 0.2,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, **settings)
        check_shares(val_share, test_share)
        self.val_share = val_share
        self.test_share = test_share

    @abstractmethod
    def read(self) -> Labelled:
        """The checked records of the files."""

    @property
    def layout(self) -> Layout:
        return self._data.layout

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        data = self._data
        rows = self.draw(data.labels) if data.rows is None else data.rows
        return {name: data.split(rows[name]) for name in names if len(rows[name])}

    def draw(self, classes: "NDArray[np.integer[Any]]") -> "Mapping[SplitName, NDArray[np.int64]]":
        """The positions in each split, stratified by these (N,) classes."""
        return split_rows(np.arange(len(classes)), self.seed, self.val_share, self.test_share, classes)

    @cached_property
    def _data(self) -> Labelled:
        return self.read()


class PublishedParts(PublishedSet, ABC):
    """Validation records are drawn from the training part; test and predict records are those of the test part.

    A subclass implements ``read`` and ``draw``. Arguments are those of ``PublishedSet``.
    """

    tests_apart = True

    @abstractmethod
    def read(self, part: PublishedPart) -> Labelled:
        """The checked records of a part."""

    @abstractmethod
    def draw(self, train: Labelled) -> "Mapping[SplitName, NDArray[np.int64]]":
        """The positions of ``train`` and ``val`` records in the training part."""

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        splits: dict[SplitName, Split] = {}
        if "train" in names or "val" in names:
            train = self.read("train")
            rows = self.draw(train)
            splits = {name: train.split(rows[name]) for name in ("train", "val") if name in names and len(rows[name])}
        if "test" in names or "predict" in names:
            tests = self.read("test").split()
            splits |= {name: tests for name in names if name in ("test", "predict")}
        return splits


class PublishedShare(PublishedParts, ABC):
    """Parts of which a share of the training part is for validation, stratified by class.

    Args:
        partitioner: who gets which columns; None: ``usual_partitioner``.
        val_share: share of the published training records for validation; 0: none.
        settings: further settings of ``PublishedSet`` and ``VerticalDataModule``.
    """

    def __init__(self, partitioner: Partitioner | None = None, *, val_share: float = 0.1, **settings: Any) -> None:
        super().__init__(partitioner, **settings)
        check_shares(val_share)
        self.val_share = val_share

    def draw(self, train: Labelled) -> "Mapping[SplitName, NDArray[np.int64]]":
        return split_rows(np.arange(len(train)), self.seed, self.val_share, 0.0, train.labels)


class PublishedImages(PublishedParts, ABC):
    """Images in two parts, with pixels in [0, 1], scaled to mean 0 and deviation 1 over all pixels of a party.

    Args:
        partitioner: who gets which pixels; None: ``usual_partitioner``.
        val_records: records drawn from the training part for validation; 0: no validation.
        settings: further settings of ``PublishedSet`` and ``VerticalDataModule``.
    """

    known_bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    usual_normaliser: ClassVar[Normaliser] = StandardiseParty()
    data_settings: ClassVar[tuple[str, ...]] = ("val_records",)

    def __init__(self, partitioner: Partitioner | None = None, *, val_records: int = 5000, **settings: Any) -> None:
        super().__init__(partitioner, **settings)
        check_val_records(val_records)
        self.val_records = val_records

    def draw(self, train: Labelled) -> "Mapping[SplitName, NDArray[np.int64]]":
        return draw_validation(len(train), self.val_records, self.seed, type(self).__name__)
