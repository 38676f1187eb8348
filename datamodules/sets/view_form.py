"""Form of data sets whose records come in several views."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner, Views
from ..records.folders import data_folder
from ..records.layout import Layout
from ..records.records import Split, SplitName
from ..records.view_files import ViewData
from ..split import check_shares, split_rows


class ViewFiles(VerticalDataModule, ABC):
    """Records in several views. A subclass implements ``read`` and ``num_classes``.

    Args:
        partitioner: who gets which columns; None: one view for each party.
        data_dir: folder of the files; None: ``$LIGHTNING_VFL_DATA/NAME``, else ``data/NAME``.
        val_share: share of all records for validation, taken from those for training; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        loader: further settings of ``VerticalDataModule``: ``normaliser``, ``batch_size``, ``seed`` and so on.

    Guarantee: the splits are stratified by class. A record's id is its position in the files, and column i of a view is
        called ``view.i``.

    Raises:
        ConfigurationError: for impossible shares; in ``setup``, if the files are not there, cannot be read, or do not
            hold these views.
    """

    ids_are_places = True
    data_settings: ClassVar[tuple[str, ...]] = ("val_share", "test_share")
    folder: ClassVar[str]
    """NAME, the subfolder of the data folder."""

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        data_dir: str | Path | None = None,
        val_share: float = 0.1,
        test_share: float = 0.2,
        **loader: Any,
    ) -> None:
        super().__init__(partitioner, **loader)
        check_shares(val_share, test_share)
        self.data_dir = data_folder(data_dir, self.folder)
        self.val_share = val_share
        self.test_share = test_share

    @abstractmethod
    def read(self) -> ViewData:
        """All records of the files."""

    @property
    def layout(self) -> Layout:
        return self._data.layout

    def default_partitioner(self) -> Partitioner:
        return Views()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        data = self._data
        split = split_rows(np.arange(len(data.labels)), self.seed, self.val_share, self.test_share, data.labels)
        features, labels = torch.from_numpy(np.hstack([matrix for _, matrix in data.views])), data.labels
        rows = {name: split[name] for name in names if len(split[name])}
        return {name: Split(features[r], torch.from_numpy(labels[r]), r) for name, r in rows.items()}

    @cached_property
    def _data(self) -> ViewData:
        data = self.read()
        sizes = np.bincount(data.labels)
        rank_zero_info(
            f"{type(self).__name__}: {len(data.labels)} records in {len(data.views)} views "
            f"({', '.join(name for name, _ in data.views)}), {len(sizes)} classes of {sizes.min()} to {sizes.max()}"
        )
        return data
