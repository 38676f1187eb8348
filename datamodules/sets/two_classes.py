"""Forms of data sets that are tables with labels of two classes: of numbers, and of numbers and categories."""

from abc import ABC
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from lightning.pytorch.utilities import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import NamedColumns, Partitioner
from ..records.cells import check_classes, numbers, refuse
from ..records.folders import missing_files
from ..records.labelled import Labelled
from ..records.normalise import Normaliser, StandardiseNumbers
from ..records.one_hot import categories_of, one_hot
from ..records.records import SplitName
from .published import PublishedWhole

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


class TwoClassTable(PublishedWhole, ABC):
    """Records of a table with labels of two classes. A subclass implements ``read``.

    Args:
        partitioner: who gets which columns; None: the data set's default.
        expected_records: the number of records that the file must hold, so that a file cut short is noticed; None: any
            number.
        settings: further settings of ``PublishedWhole``, ``PublishedSet`` and ``VerticalDataModule``.

    Raises:
        ConfigurationError: for impossible shares; in ``setup``, if there is no file, or the file cannot be read or does
            not hold these data.
    """

    num_classes = 2
    files: ClassVar[tuple[str, ...]]
    """Possible names of the file; the first that is in the folder is read."""
    source: ClassVar[str]
    """Where to get the files."""
    label: ClassVar[str]
    """The name of the label column."""
    classes: ClassVar[tuple[Any, Any]] = (0, 1)
    """The labels as the files have them, numbers or texts: label c of a batch is ``classes[c]``."""
    positive: ClassVar[str]
    """What a record of class 1 is, in messages: ``with a default``."""

    def __init__(
        self, partitioner: Partitioner | None = None, *, expected_records: int | None = None, **settings: Any
    ) -> None:
        super().__init__(partitioner, **settings)
        self.expected_records = expected_records

    @property
    def class_names(self) -> tuple[int | str, ...]:
        return self.classes

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


class MixedTable(TwoClassTable, ABC):
    """Records of numbers and categories with labels of two classes. A subclass implements ``read``.

    A categorical column becomes one column of 0 and 1 for each of its categories, called ``column=category``, at the
    place of the column and in sorted order; ``NamedColumns`` takes the column's name for all of them.

    Args:
        partitioner: who gets which columns; None: ``groups``, without the dropped columns.
        drop: columns that no party gets.
        categorical: columns to encode one-hot; all others must hold numbers.
        public_categories: declare the training records' categories public, see ``private_statistics``.
        settings: further settings of ``TwoClassTable``. Numbers are scaled to mean 0 and
            deviation 1 by default, categories are not scaled.

    Guarantee: categories, like scaling, come from the training records alone; a category that only other records have
        is encoded as zeros. A mark for an unknown value is a category like any other; no value is filled in.

    Raises:
        ConfigurationError: for columns that the data do not have, and if all are dropped; in ``setup``, if a file is
            not there, cannot be read or does not hold these data.
    """

    usual_normaliser: ClassVar[Normaliser] = StandardiseNumbers()
    columns: ClassVar[tuple[str, ...]]
    """All columns, in the order of the layout."""
    groups: ClassVar[Mapping[str, tuple[str, ...]]]
    """Party -> its columns in the default partition; together these are all columns."""

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        drop: Sequence[str] = (),
        categorical: Sequence[str] = (),
        public_categories: bool = False,
        **settings: Any,
    ) -> None:
        self.drop = tuple(drop)  # before the base class, which asks for the default partitioner
        self.categorical = tuple(categorical)
        self.public_categories = public_categories
        for argument, names in (("drop", self.drop), ("categorical", self.categorical)):
            if unknown := [name for name in names if name not in self.columns]:
                raise ConfigurationError(
                    f"{argument} names column '{unknown[0]}', which {type(self).__name__} does not have; it has "
                    f"{', '.join(self.columns)}"
                )
        if not self._kept:
            raise ConfigurationError(f"drop names all {len(self.columns)} columns of {type(self).__name__}; keep some")
        self._categories: dict[str, list[str]] = {}
        super().__init__(partitioner, **settings)

    def forget(self) -> None:
        super().forget()
        self.__dict__.pop("_data", None)  # its columns are the categories

    def own_fitted(self) -> Mapping[str, Any]:
        """Column -> its categories."""
        return {"categories": self._categories}

    def default_partitioner(self) -> Partitioner:
        kept = {party: [name for name in names if name not in self.drop] for party, names in self.groups.items()}
        return NamedColumns({party: names for party, names in kept.items() if names})

    def read_columns(self, path: Path, cells: "pd.DataFrame") -> "dict[str, NDArray[Any]]":
        """The columns of a file that are not dropped: (N,) texts of a categorical column, else (N,) numbers.

        Raises:
            ConfigurationError: for empty fields, and texts in columns of numbers.
        """
        columns: dict[str, NDArray[Any]] = {}
        for name in self._kept:
            text = cells[name]
            refuse(path, name, text[text == ""], "are empty", "fill them in or remove the records")
            if name in self.categorical:
                columns[name] = text.to_numpy(dtype=np.str_)
            else:
                columns[name] = numbers(path, text, "correct or remove the records, or name the column in categorical")
        return columns

    def encode(
        self,
        columns: "Mapping[str, NDArray[Any]]",
        labels: "NDArray[np.int64]",
        ids: "NDArray[np.int64]",
        rows: "Mapping[SplitName, NDArray[np.int64]]",
    ) -> Labelled:
        """The records, with their categories as columns of 0 and 1.

        Args:
            columns: name -> (N,) numbers or texts.
            labels: (N,), 0 or 1.
            ids: (N,) record ids.
            rows: the positions in each split.
        """
        names: list[str] = []
        blocks = []
        for name, values in columns.items():
            if name in self.categorical:
                fitted = None if self.fitted is None else self.fitted.own["categories"][name]
                self._categories[name] = categories_of(values[rows["train"]]) if fitted is None else fitted
                names += [f"{name}={category}" for category in self._categories[name]]
                blocks.append(one_hot(values, self._categories[name]))
            else:
                names.append(name)
                blocks.append(values[:, None])
        return Labelled(np.hstack(blocks), labels, ids, tuple(names), rows=rows)

    @property
    def _kept(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.drop)
