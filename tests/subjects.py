"""Small real subjects that the tests train: data in memory, and a module with dropout."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, Mean
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


class Blobs(VerticalDataModule):
    """Points around three corners of a cube; a fifth of them each to validate and to test."""

    records_in_all = 90
    columns = 8
    partly_held = False  # party 2 holds one record of 29, so that most batches hold none of its own

    @property
    def layout(self) -> Layout:
        return Layout((self.columns,), tuple(f"c{i}" for i in range(self.columns)))

    @property
    def num_classes(self) -> int | None:
        return 3

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(3)

    def default_normaliser(self) -> Normaliser:
        return Standardise(public=True)  # made-up records: aggregators that account for privacy take them

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        generator = torch.Generator().manual_seed(7)
        y = torch.arange(self.records_in_all) % 3
        corners = torch.randn(3, self.columns, generator=generator) * 2
        x = corners[y] + torch.randn(self.records_in_all, self.columns, generator=generator)
        ids = np.arange(1000, 1000 + self.records_in_all)
        n = self.records_in_all * 3 // 5
        m = self.records_in_all * 4 // 5
        rows = {"train": slice(0, n), "val": slice(n, m), "test": slice(m, None), "predict": slice(m, None)}
        present = torch.ones(self.records_in_all, 3, dtype=torch.bool)
        present[:, 2] = torch.arange(self.records_in_all) % 29 == 0
        return {
            name: Split(
                x[rows[name]],
                self.target(y)[rows[name]],
                ids[rows[name]],
                present[rows[name]] if self.partly_held else None,
            )
            for name in names
        }

    def target(self, y: torch.Tensor) -> torch.Tensor:
        return y


class YesNo(Blobs):
    """Two classes."""

    @property
    def num_classes(self) -> int | None:
        return 2

    def target(self, y: torch.Tensor) -> torch.Tensor:
        return (y > 0).long()


class Values(Blobs):
    """Real-valued labels."""

    @property
    def num_classes(self) -> int | None:
        return None

    def target(self, y: torch.Tensor) -> torch.Tensor:
        return y.float() * 1.5 - 1.0


def dropping(shape: tuple[int, ...], width: int) -> nn.Module:
    """A bottom that draws from torch's global generator."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 6), nn.Dropout(0.3), nn.Linear(6, width))


def split(aggregator: Aggregator | None = None, dropout: bool = False, **settings: Any) -> SplitVFL:
    """A small SplitVFL whose weights depend on nothing but the seed here."""
    torch.manual_seed(0)
    bottom = dropping if dropout else None
    settings.setdefault("optimizer", partial(torch.optim.Adam, lr=1e-2))
    if bottom is not None:
        settings["bottom"] = bottom
    return SplitVFL(aggregator or Mean(), **{"width": 5, "seed": 0} | settings)


def trainer(folder: object, **settings: Any) -> Trainer:
    """A quiet trainer on the CPU."""
    settings = {
        "accelerator": "cpu",
        "max_epochs": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": str(folder),
        **settings,
    }
    return Trainer(**settings)


def same(a: Any, b: Any) -> bool:
    """Whether two nests of tensors and plain values are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
