"""The records of the golden runs: four parties, three classes, partly held records where a case asks for them."""

from collections.abc import Mapping

import numpy as np
import torch

from lightning_vfl.datamodules import Layout, Partitioner, RowStrips, Split, VerticalDataModule
from lightning_vfl.datamodules.base import SplitName

TRAIN, VAL, PARTIES = 60, 12, 4


class Tiles(VerticalDataModule):
    """Pictures of 8 x 4 around three corners; 60 to train on, 12 to validate on. Values lie between -1 and 1."""

    partly_held = False

    @property
    def layout(self) -> Layout:
        return Layout((1, 8, 4), tuple(f"p{i}" for i in range(32)))

    @property
    def num_classes(self) -> int | None:
        return 3

    def default_partitioner(self) -> Partitioner:
        return RowStrips(PARTIES)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        generator = np.random.Generator(np.random.PCG64(11))
        everything = TRAIN + VAL
        y = np.arange(everything) % 3
        x = np.tanh(generator.integers(-4, 5, (3, 32))[y] / 4 + generator.integers(-8, 9, (everything, 32)) / 8)
        present = torch.ones(everything, PARTIES, dtype=torch.bool)
        present[:, 2] = torch.arange(everything) % 5 == 0
        rows = {"train": slice(0, TRAIN), "val": slice(TRAIN, None), "test": slice(TRAIN, None)}
        return {
            name: Split(
                torch.from_numpy(x[rows[name]]).float().view(-1, 1, 8, 4),
                torch.from_numpy(y[rows[name]]),
                np.arange(everything)[rows[name]],
                present[rows[name]] if self.partly_held else None,
            )
            for name in names
            if name in rows
        }


class PartlyHeldTiles(Tiles):
    """Party 2 holds one record of five."""

    partly_held = True
