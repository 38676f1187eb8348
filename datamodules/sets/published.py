"""Forms of data sets that are published: what one data set says in attributes, and files in a folder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner
from ..records.folders import data_folder
from ..records.labelled import Labelled
from ..records.normalise import Normaliser, Standardise
from ..records.records import Split, SplitName

if TYPE_CHECKING:
    import numpy as np
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
