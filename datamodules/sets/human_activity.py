"""Human Activity Recognition Using Smartphones: the text files of UCI, or the two CSV files of Kaggle."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import ContiguousColumns, Partitioner
from ..records.cells import as_table, check_count, numbers, read_rows, refuse
from ..records.folders import missing_files
from ..records.labelled import Labelled
from ..records.layout import Layout
from ..records.normalise import Unchanged
from ..records.view_files import read_text
from .published import PublishedPart, PublishedShare

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
COLUMNS = 561
UCI = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"
KAGGLE = "https://www.kaggle.com/datasets/uciml/human-activity-recognition-with-smartphones"


class HumanActivity(PublishedShare):
    """Human activity from smartphones: 10,299 records of 561 columns, six classes.

    The folder holds the files of UCI (``features.txt``, ``train/X_train.txt``, ``train/y_train.txt`` and those of
    ``test``), itself or in its folder ``UCI HAR Dataset``, or the two of Kaggle (``train.csv``, ``test.csv``); UCI's
    are preferred. Columns keep their order and UCI's names; a repeated name gets ``.1`` or ``.2`` appended. Labels 0 to
    5 are the activities in UCI's order: walking, walking upstairs, walking downstairs, sitting, standing, laying. The
    7,352 records published for training are those for training and validation, the 2,947 others those for testing and
    prediction; a record's id is its position in its file.

    PBM-VFL gives 112 columns to each of 5 parties (the default), or 56 to each of 10, and leaves out the last column,
    the angle between the Z axis and gravity; so do ``ContiguousColumns(5)`` and ``ContiguousColumns(10)`` here. It
    keeps no records for validation: ``val_share=0``. Values are not scaled: the authors have scaled every column to
    [-1, 1].

    Args:
        partitioner: who gets which columns; None: the default.
        drop_last_column: leave out the last of the 561 columns, as PBM-VFL does.
        expected_records: the numbers of records published for training and testing, so that a file cut short is
            noticed; None: any numbers.
        settings: further settings of ``PublishedShare`` and ``VerticalDataModule``.

    Guarantee: the validation records are stratified by class. No person is in both published parts: 21 people are
        recorded for training, 9 others for testing.
    Not guaranteed: that validation records are new to the model: recordings of one person are in both, and each shares
        half of its time with the next. That the files are the published ones; only their form and the numbers of their
        records are checked.

    Examples:
        >>> HumanActivity().default_partitioner()
        ContiguousColumns(parties=5)

    References:
        Anguita, Ghio, Oneto, Parra and Reyes-Ortiz, "A public domain dataset for human activity recognition using
        smartphones", ESANN 2013; UCI Machine Learning Repository, https://doi.org/10.24432/C54S4K. Parties: Tran,
        Castiglia, Patterson and Milanova, "PBM-VFL: Vertical Federated Learning with Feature and Sample Privacy",
        appendix B.
    """

    known_bounds = (-1.0, 1.0)  # of the published files, in which the authors have scaled every column
    data_settings = ("val_share", "drop_last_column")
    folder = "human_activity"
    usual_partitioner = ContiguousColumns(5)
    usual_normaliser = Unchanged()
    num_classes = len(ACTIVITIES)

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        drop_last_column: bool = True,
        expected_records: tuple[int, int] | None = (7_352, 2_947),
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, **settings)
        self.drop_last_column = drop_last_column
        self.expected_records = expected_records

    @property
    def layout(self) -> Layout:
        return self.read("train").layout

    def read(self, part: PublishedPart) -> Labelled:
        own = self._data[part]
        kept = COLUMNS - self.drop_last_column
        return replace(own, features=own.features[:, :kept], columns=own.columns[:kept])

    @cached_property
    def _data(self) -> Mapping[PublishedPart, Labelled]:
        """The records of both parts."""
        trains, tests = self.expected_records or (None, None)
        for folder in (self.data_dir / "UCI HAR Dataset", self.data_dir):
            if (folder / "features.txt").is_file():
                return {"train": read_texts(folder, "train", trains), "test": read_texts(folder, "test", tests)}
        files = [self.data_dir / "train.csv", self.data_dir / "test.csv"]
        if missing := [path.name for path in files if not path.is_file()]:
            what = f"features.txt of UCI's {type(self).__name__} and no {' and no '.join(missing)} of Kaggle's"
            raise missing_files(self.data_dir, what, f"the folder 'UCI HAR Dataset' from {UCI}")
        train, test = read_csv(files[0], trains), read_csv(files[1], tests)
        if train.columns != test.columns:
            first = next(a for a, b in zip(train.columns, test.columns, strict=True) if a != b)
            raise ConfigurationError(
                f"the columns of {files[1]} are not those of {files[0]}, first '{first}'; give both files the same "
                "columns in the same order"
            )
        return {"train": train, "test": test}


def read_texts(folder: Path, part: str, expected: int | None) -> Labelled:
    """The records of a part (``train`` or ``test``), from three text files of UCI.

    Raises:
        ConfigurationError: for files that cannot be read, or do not hold these data.
    """
    path = folder / "features.txt"
    names = as_table(path, read_rows(path, " ", UCI), ("number", "name"), None, UCI)["name"]
    if len(names) != COLUMNS:
        raise ConfigurationError(f"{path} has {len(names)} names instead of {COLUMNS}; fetch it again from {UCI}")
    path = folder / part / f"y_{part}.txt"
    activities = as_table(path, read_rows(path, " ", UCI), ("activity",), expected, UCI)["activity"]
    labels = _labels(path, activities, [str(i) for i in range(1, len(ACTIVITIES) + 1)])
    features = read_text(folder / part / f"X_{part}.txt", len(labels), COLUMNS)
    return Labelled(features.astype(np.float32), labels, np.arange(len(labels)), _unique(names))


def read_csv(path: Path, expected: int | None) -> Labelled:
    """The records of a CSV file of Kaggle.

    Raises:
        ConfigurationError: for a file that cannot be read, or does not hold these data.
    """
    import pandas as pd  # 0.5 s, where it is used

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # pandas only warns when it drops surplus fields
            table = pd.read_csv(path, index_col=False, encoding="utf-8-sig", low_memory=False)
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({str(error).strip()}); fetch it again from {KAGGLE}"
        ) from error
    table.index += 1  # the line, counted from 0
    names = [str(name) for name in table if name not in ("subject", "Activity")]
    if len(names) != COLUMNS or "Activity" not in table:
        raise ConfigurationError(
            f"{path} must have {COLUMNS} columns of features, 'Activity' and perhaps 'subject'; got {len(names)} "
            f"columns of features, {'with' if 'Activity' in table else 'without'} 'Activity'; fetch it again from "
            f"{KAGGLE}"
        )
    check_count(path, len(table), expected, KAGGLE)
    for name in table[names].select_dtypes(exclude="number"):
        numbers(path, table[name].astype(str), "correct or remove the records")
    labels = _labels(path, table["Activity"].astype(str), ACTIVITIES)
    return Labelled(table[names].to_numpy(dtype=np.float32), labels, np.arange(len(labels)), tuple(names))


def _labels(path: Path, activities: "pd.Series[str]", known: Iterable[str]) -> "NDArray[np.int64]":
    """The activities as numbers from 0, in the order of the known ones."""
    number = {activity: label for label, activity in enumerate(known)}
    wrong = activities[~activities.isin(list(number))]
    refuse(path, str(activities.name), wrong, f"are none of {', '.join(number)}", "correct or remove the records")
    return np.array([number[activity] for activity in activities], dtype=np.int64)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    """The names as pandas makes them unique: x, x, x become x, x.1, x.2."""
    seen: Counter[str] = Counter()
    told = []
    for name in names:
        told.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return tuple(told)
