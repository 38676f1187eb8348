"""Form of data sets that are published in a training part and a test part."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from ..base import VerticalDataModule
from ..records.labelled import Labelled
from ..records.records import Split, SplitName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PublishedPart = Literal["train", "test"]


class PublishedParts(VerticalDataModule, ABC):
    """Validation records are drawn from the training part; test and predict records are those of the test part.

    A subclass implements ``read`` and ``draw``. Arguments are those of ``VerticalDataModule``.
    """

    ids_are_places = True
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
