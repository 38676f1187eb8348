"""Data sets that are part of scikit-learn: no download, good for a first run."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from ..base import VerticalDataModule
from ..partitioners.partition import ContiguousColumns, Partitioner, RowStrips
from ..records.labelled import Labelled
from ..records.layout import Layout
from ..records.normalise import Normaliser, StandardiseParty
from ..records.records import Split, SplitName
from ..split import split_rows


class Digits(VerticalDataModule):
    """Handwritten digits: 1,797 images of 8 x 8 pixels, ten classes; 20 % test, 10 % validation, stratified.

    Arguments are those of ``VerticalDataModule``. By default four parties hold two rows of pixels each, and each party
    scales its pixels to mean 0 and deviation 1.
    """

    known_bounds = (0.0, 16.0)
    layout = Layout((1, 8, 8))
    num_classes = 10

    def default_partitioner(self) -> Partitioner:
        return RowStrips(4)

    def default_normaliser(self) -> Normaliser:
        return StandardiseParty()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        data = _digits()
        return _divided(data.images[:, None], data.target, self.seed, names)


class BreastCancer(VerticalDataModule):
    """Breast cancer in Wisconsin: 569 records of 30 measurements, two classes; 20 % test, 10 % validation, stratified.

    Arguments are those of ``VerticalDataModule``. By default three parties hold ten columns each: means, errors,
    extremes.
    """

    num_classes = 2
    class_names = ("malignant", "benign")

    @property
    def layout(self) -> Layout:
        return Layout((30,), tuple(_breast_cancer().feature_names.tolist()))

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(3)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        data = _breast_cancer()
        return _divided(data.data, data.target, self.seed, names)


@cache
def _digits() -> Any:
    """The records of ``sklearn.datasets.load_digits``, read once; nobody writes into them."""
    from sklearn.datasets import load_digits  # 0.9 s, where it is used

    return load_digits()


@cache
def _breast_cancer() -> Any:
    """The records of ``sklearn.datasets.load_breast_cancer``, read once; nobody writes into them."""
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer()


def _divided(x: np.ndarray, y: np.ndarray, seed: int, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
    """70 % train, 10 % validation, 20 % test, stratified by class; the test records are also those to predict."""
    data = Labelled(x.astype(np.float32), y, np.arange(len(x)))
    rows = split_rows(data.ids, seed, val=0.1, test=0.2, stratify=y)
    return {name: data.split(rows[name]) for name in names}
