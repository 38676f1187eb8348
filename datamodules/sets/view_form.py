"""Form of data sets whose records come in several views."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from ..partitioners.partition import Partitioner, Views
from ..records.layout import Layout
from ..records.records import Split, SplitName
from ..records.tables import Table
from ..records.view_files import ViewData
from ..split import check_shares, split_rows
from .published import PublishedSet


class ViewFiles(PublishedSet, ABC):
    """Records in several views. A subclass implements ``read`` and ``num_classes``.

    Args:
        partitioner: who gets which columns; None: one view for each party.
        val_share: share of all records for validation, taken from those for training; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        settings: further settings of ``PublishedSet`` and ``VerticalDataModule``.

    Guarantee: the splits are stratified by class. A record's id is its position in the files, and column i of a view is
        called ``view.i``.

    Raises:
        ConfigurationError: for impossible shares; in ``setup``, if the files are not there, cannot be read, or do not
            hold these views.
    """

    data_settings: ClassVar[tuple[str, ...]] = ("val_share", "test_share")
    usual_partitioner: ClassVar[Partitioner] = Views()

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
    def read(self) -> ViewData:
        """All records of the files."""

    @property
    def layout(self) -> Layout:
        return self._data.layout

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        data, every = self._data, np.arange(len(self._data.labels))
        rows = split_rows(every, self.seed, self.val_share, self.test_share, data.labels)
        features = torch.from_numpy(np.hstack([matrix for _, matrix in data.views]))
        return Table((), every, features, torch.from_numpy(data.labels), rows).splits(names)

    @cached_property
    def _data(self) -> ViewData:
        data = self.read()
        sizes = np.bincount(data.labels)
        rank_zero_info(
            f"{type(self).__name__}: {len(data.labels)} records in {len(data.views)} views "
            f"({', '.join(name for name, _ in data.views)}), {len(sizes)} classes of {sizes.min()} to {sizes.max()}"
        )
        return data
