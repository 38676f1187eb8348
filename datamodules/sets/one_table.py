"""Forms of data sets that are tables with labels of two classes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from ..partitioners.partition import Partitioner
from ..records.cells import check_classes, refuse
from ..records.folders import missing_files
from ..records.layout import Layout
from ..records.records import Split, SplitName
from ..records.tables import Table
from ..split import check_shares, split_rows
from .published import PublishedSet

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


class TwoClassTable(PublishedSet, ABC):
    """Records of a table with labels of two classes. A subclass implements ``read``.

    Arguments are those of ``PublishedSet``.
    """

    num_classes = 2
    source: ClassVar[str]
    """Where to get the files."""
    label: ClassVar[str]
    """The name of the label column."""
    classes: ClassVar[tuple[Any, Any]] = (0, 1)
    """The labels as the files have them, numbers or texts: label c of a batch is ``classes[c]``."""
    positive: ClassVar[str]
    """What a record of class 1 is, in messages: ``with a default``."""

    @abstractmethod
    def read(self) -> Table:
        """The checked records of the files, divided into splits."""

    @property
    def class_names(self) -> tuple[int | str, ...]:
        return self.classes

    def forget(self) -> None:
        super().forget()
        self.__dict__.pop("_table", None)

    @property
    def layout(self) -> Layout:
        columns = self._table.columns
        return Layout((len(columns),), columns)

    @property
    def pos_weight(self) -> float:
        """The number of training records of class 0 for each one of class 1, a weight that balances the classes.

        For example ``Binary(torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(data.pos_weight)))``.

        Raises:
            ConfigurationError: if no training record is of class 1.
        """
        return self._table.pos_weight(type(self).__name__, self.positive)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        return self._table.splits(names)

    def read_labels(self, path: Path, cells: "pd.DataFrame") -> "NDArray[np.int64]":
        """(N,) the labels as 0 and 1, from the label column of a file; prints how many are 1.

        Raises:
            ConfigurationError: for labels that are none of ``classes``, or all of one class.
        """
        import pandas as pd  # 0.5 s, where it is used

        no, yes = self.classes
        text = cells[self.label]
        values = text if isinstance(yes, str) else pd.to_numeric(text, errors="coerce")
        fix = f"write {yes} for a record {self.positive}, else {no}"
        refuse(path, self.label, text[~values.isin(self.classes)], f"are neither {no} nor {yes}", fix)
        check_classes(path, values, self.source)
        labels = np.asarray(values == yes, dtype=np.int64)
        rank_zero_info(
            f"{type(self).__name__}: {len(labels)} records of {path.name}, {labels.sum()} of them "
            f"({labels.mean():.1%}) {self.positive}"
        )
        return labels

    @cached_property
    def _table(self) -> Table:
        return self.read()


class OneTable(TwoClassTable, ABC):
    """One file of numbers, from which validation and test records are drawn, stratified by class.

    Args:
        partitioner: who gets which columns; None: the data set's default.
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        expected_records: the number of records that the file must hold, so that a file cut short is noticed; None: any
            number.
        settings: further settings of ``TwoClassTable`` and ``VerticalDataModule``.

    Raises:
        ConfigurationError: for impossible shares; in ``setup``, if there is no file, or the file cannot be read or does
            not hold these data.
    """

    data_settings: ClassVar[tuple[str, ...]] = ("val_share", "test_share")
    files: ClassVar[tuple[str, ...]]
    """Possible names of the file; the first that is in the folder is read."""

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        val_share: float = 0.1,
        test_share: float = 0.2,
        expected_records: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, **settings)
        check_shares(val_share, test_share)
        self.val_share = val_share
        self.test_share = test_share
        self.expected_records = expected_records

    def path(self) -> Path:
        """The file.

        Raises:
            ConfigurationError: if there is none.
        """
        for file in self.files:
            if (self.data_dir / file).is_file():
                return self.data_dir / file
        named = " or ".join(f"'{file}'" for file in self.files)
        raise missing_files(self.data_dir, f"data of {type(self).__name__}", f"{named} from {self.source}")

    def draw(self, drawn: "NDArray[np.int64]") -> "Mapping[SplitName, NDArray[np.int64]]":
        """The positions in each split, stratified by these (N,) classes."""
        return split_rows(np.arange(len(drawn)), self.seed, self.val_share, self.test_share, drawn)

    def table(
        self,
        columns: Sequence[str],
        features: "NDArray[Any]",
        labels: "NDArray[np.int64]",
        ids: "NDArray[np.int64] | None" = None,
        rows: "Mapping[SplitName, NDArray[np.int64]] | None" = None,
    ) -> Table:
        """The table of N records.

        Args:
            columns: F names.
            features: (N, F).
            labels: (N,), 0 or 1.
            ids: (N,) record ids; None: the positions in the file.
            rows: the positions in each split; None: drawn, stratified by the labels.
        """
        ids = np.arange(len(labels)) if ids is None else ids
        drawn = self.draw(labels) if rows is None else rows
        return Table(tuple(columns), ids, torch.from_numpy(features), torch.from_numpy(labels), drawn)
