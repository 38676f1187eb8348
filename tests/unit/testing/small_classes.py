"""A small data set in memory, from which data sets that break a law are made."""

from collections.abc import Mapping

import numpy as np
import torch

from lightning_vfl.datamodules import (
    ContiguousColumns,
    Layout,
    Normaliser,
    Partitioner,
    Split,
    Standardise,
    VerticalDataModule,
)
from lightning_vfl.datamodules.base import SplitName

_ENDS = {"train": (0, 54), "val": (54, 72), "test": (72, 90), "predict": (72, 90)}


class SmallClasses(VerticalDataModule):
    """90 points of 8 numbers around three corners of a cube, held by three parties; 54 are to train on."""

    num_classes = 3

    @property
    def layout(self) -> Layout:
        return Layout((8,), tuple(f"c{i}" for i in range(8)))

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(3)

    def default_normaliser(self) -> Normaliser:
        return Standardise(public=True)  # made-up records: aggregators that account for privacy take them

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        generator = torch.Generator().manual_seed(7)
        y = torch.arange(90) % 3
        x = (torch.randn(3, 8, generator=generator) * 2)[y] + torch.randn(90, 8, generator=generator)
        rows = {name: slice(*_ENDS[name]) for name in names}
        return {name: Split(x[some], y[some], np.arange(1000, 1090)[some]) for name, some in rows.items()}
