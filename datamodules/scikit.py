"""The data that ship inside scikit-learn: no download, good for a first run."""

from collections.abc import Mapping

import numpy as np
import torch

from .base import SplitName, VerticalDataModule
from .normalise import Normaliser, StandardiseParty
from .partition import ContiguousColumns, Layout, Partitioner, RowStrips
from .records import Split
from .split import split_rows


class Digits(VerticalDataModule):
    """Handwritten digits: 1,797 images of 8 x 8 pixels, ten classes; 20 % test, 10 % validation, stratified.

    Arguments are ``VerticalDataModule``'s; by default four parties hold two rows of pixels each.
    """

    known_bounds = (0.0, 16.0)

    @property
    def layout(self) -> Layout:
        return Layout((1, 8, 8))

    @property
    def num_classes(self) -> int:
        return 10

    def default_partitioner(self) -> Partitioner:
        return RowStrips(4)

    def default_normaliser(self) -> Normaliser:
        return StandardiseParty()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        from sklearn.datasets import load_digits  # 0.9 s, where it is used

        data = load_digits()
        return _thirds(data.images[:, None], data.target, self.seed, names)


class BreastCancer(VerticalDataModule):
    """Breast cancer in Wisconsin: 569 records of 30 measurements, two classes; 20 % test, 10 % validation, stratified.

    Arguments are ``VerticalDataModule``'s; by default three parties hold ten columns each: means, errors, extremes.
    """

    @property
    def layout(self) -> Layout:
        from sklearn.datasets import load_breast_cancer

        return Layout((30,), tuple(load_breast_cancer().feature_names))

    @property
    def num_classes(self) -> int:
        return 2

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(3)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        from sklearn.datasets import load_breast_cancer

        data = load_breast_cancer()
        return _thirds(data.data, data.target, self.seed, names)


def _thirds(x: np.ndarray, y: np.ndarray, seed: int, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
    """70 % train, 10 % validation, 20 % test, stratified by class; prediction is on the test records."""
    rows = split_rows(np.arange(len(x)), seed, val=0.1, test=0.2, stratify=y)
    features, labels = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64))
    return {name: Split(features[rows[name]], labels[rows[name]], rows[name]) for name in names}
