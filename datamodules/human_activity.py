"""Human Activity Recognition Using Smartphones: the text files of UCI, or the two CSV files of Kaggle."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from lightning_vfl.errors import ConfigurationError

from .base import SplitName, VerticalDataModule, data_folder
from .cells import as_table, check_count, numbers, read_rows, refuse
from .normalise import Normaliser, Unchanged
from .partition import ContiguousColumns, Layout, Partitioner
from .records import Split
from .split import check_shares, split_rows
from .view_files import read_text

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
_COLUMNS = 561
_UCI = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"
_KAGGLE = "https://www.kaggle.com/datasets/uciml/human-activity-recognition-with-smartphones"


@dataclass(frozen=True)
class _Recordings:
    """N records of one published part: names and (N, 561) of the columns, and (N,) labels."""

    columns: tuple[str, ...]
    features: "NDArray[np.float32]"
    labels: "NDArray[np.int64]"


class HumanActivity(VerticalDataModule):
    """Human activity from smartphones: 10,299 records of 561 columns, six classes.

    The folder holds the files of UCI (``features.txt``, ``train/X_train.txt``, ``train/y_train.txt`` and those of
    ``test``), itself or in its folder ``UCI HAR Dataset``, or the two of Kaggle (``train.csv``, ``test.csv``); UCI's go
    first. Columns keep their order and UCI's names; one that has the name of an earlier column gets ``.1`` or ``.2``
    behind it. Labels 0 to 5 are the activities in UCI's order: walking, walking upstairs, walking downstairs, sitting,
    standing, laying. The 7,352 records that are published for training are those for training and validation, the
    2,947 others those for testing and prediction; a record's id is its position in its file.

    PBM-VFL gives 112 columns to each of 5 parties, or 56 to each of 10, and nobody the last column, the angle between
    the Z axis and gravity: so do ``ContiguousColumns(5)`` and ``ContiguousColumns(10)`` here. It keeps no records for
    validation, which is ``val_share=0``.

    Values stay as they are: the authors have scaled every column to [-1, 1].

    Args:
        partitioner: who gets which columns; None: five parties with 112 columns each.
        normaliser: how each party scales its features; None: not at all.
        batch_size: rows of a batch in each process.
        seed: names the validation records and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the files; None: ``$LIGHTNING_VFL_DATA/human_activity``, else ``data/human_activity``.
        val_share: share of the published training records for validation; 0: none.
        drop_last_column: leave out the last of the 561 columns, as PBM-VFL does.
        expected_records: records that are published for training and testing, so that a file cut short is noticed;
            None: any numbers.

    Guarantee: the validation records are stratified by class. Nobody is in both published parts: 21 people are recorded
        for training, 9 others for testing.
    Not guaranteed: that validation records are new to the model: the recordings of one person lie on both sides, and
        each shares half of its time with the next. That the files are the published ones; only their form and the
        numbers of their records are checked.

    Raises:
        ConfigurationError: if a file is not there, cannot be read or does not hold these data.

    Examples:
        >>> HumanActivity().default_partitioner()
        ContiguousColumns(parties=5)

    References:
        Anguita, Ghio, Oneto, Parra and Reyes-Ortiz, "A public domain dataset for human activity recognition using
        smartphones", ESANN 2013; UCI Machine Learning Repository, https://doi.org/10.24432/C54S4K. Parties: Tran,
        Castiglia, Patterson and Milanova, "PBM-VFL: Vertical Federated Learning with Feature and Sample Privacy",
        appendix B.
    """

    known_bounds = (-1.0, 1.0)  # of the published files, whose authors have scaled every column
    data_settings = ("val_share", "drop_last_column")

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        normaliser: Normaliser | None = None,
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        data_dir: str | Path | None = None,
        val_share: float = 0.1,
        drop_last_column: bool = True,
        expected_records: tuple[int, int] | None = (7_352, 2_947),
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_shares(val_share)
        self.data_dir = data_folder(data_dir, "human_activity")
        self.val_share = val_share
        self.drop_last_column = drop_last_column
        self.expected_records = expected_records

    @property
    def layout(self) -> Layout:
        columns = self._data[0].columns[: self._kept]
        return Layout((len(columns),), columns)

    @property
    def num_classes(self) -> int:
        return len(_ACTIVITIES)

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(5)

    def default_normaliser(self) -> Normaliser:
        return Unchanged()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        train, test = self._data
        rows = split_rows(np.arange(len(train.labels)), self.seed, self.val_share, 0.0, train.labels)
        drawn = {name: rows[name] for name in names if name in ("train", "val") and len(rows[name])}
        splits = {name: self._split(train, r) for name, r in drawn.items()}
        tests = self._split(test, np.arange(len(test.labels)))
        return splits | {name: tests for name in names if name in ("test", "predict")}

    # ---- inside

    @property
    def _kept(self) -> int:
        return _COLUMNS - self.drop_last_column

    def _split(self, recordings: _Recordings, rows: "NDArray[np.int64]") -> Split:
        features = torch.from_numpy(recordings.features[rows, : self._kept])
        return Split(features, torch.from_numpy(recordings.labels[rows]), rows)

    @cached_property
    def _data(self) -> tuple[_Recordings, _Recordings]:
        """What is published for training, and for testing."""
        trains, tests = self.expected_records or (None, None)
        for folder in (self.data_dir / "UCI HAR Dataset", self.data_dir):
            if (folder / "features.txt").is_file():
                return _texts(folder, "train", trains), _texts(folder, "test", tests)
        files = [self.data_dir / "train.csv", self.data_dir / "test.csv"]
        if absent := [path.name for path in files if not path.is_file()]:
            raise ConfigurationError(
                f"{self.data_dir.absolute()} holds neither features.txt of UCI's {type(self).__name__} nor "
                f"{' and '.join(absent)} of Kaggle's; put the folder 'UCI HAR Dataset' from {_UCI} there, or name "
                "another folder with data_dir or LIGHTNING_VFL_DATA"
            )
        train, test = _csv(files[0], trains), _csv(files[1], tests)
        if train.columns != test.columns:
            first = next(a for a, b in zip(train.columns, test.columns, strict=True) if a != b)
            raise ConfigurationError(
                f"the columns of {files[1]} are not those of {files[0]}, first '{first}'; give both files the same "
                "columns in the same order"
            )
        return train, test


def _texts(folder: Path, part: str, expected: int | None) -> _Recordings:
    """The records of three text files of UCI."""
    path = folder / "features.txt"
    names = as_table(path, read_rows(path, " ", _UCI), ("number", "name"), None, _UCI)["name"]
    if len(names) != _COLUMNS:
        raise ConfigurationError(f"{path} has {len(names)} names instead of {_COLUMNS}; fetch it again from {_UCI}")
    path = folder / part / f"y_{part}.txt"
    activities = as_table(path, read_rows(path, " ", _UCI), ("activity",), expected, _UCI)["activity"]
    labels = _labels(path, activities, [str(i) for i in range(1, len(_ACTIVITIES) + 1)])
    features = read_text(folder / part / f"X_{part}.txt", len(labels), _COLUMNS)
    return _Recordings(_unique(names), features.astype(np.float32), labels)


def _csv(path: Path, expected: int | None) -> _Recordings:
    """The records of a CSV file of Kaggle."""
    import pandas as pd  # 0.5 s, where it is used

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # of fields that are left out
            table = pd.read_csv(path, index_col=False, encoding="utf-8-sig", low_memory=False)
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({str(error).strip()}); fetch it again from {_KAGGLE}"
        ) from error
    table.index += 1  # the line, counted from 0
    names = [str(name) for name in table if name not in ("subject", "Activity")]
    if len(names) != _COLUMNS or "Activity" not in table:
        raise ConfigurationError(
            f"{path} has {len(names)} columns instead of {_COLUMNS} beside 'subject' and 'Activity', or no 'Activity'; "
            f"fetch it again from {_KAGGLE}"
        )
    check_count(path, len(table), expected, _KAGGLE)
    for name in table[names].select_dtypes(exclude="number"):
        numbers(path, table[name].astype(str), "correct or remove the records")
    labels = _labels(path, table["Activity"].astype(str), _ACTIVITIES)
    return _Recordings(tuple(names), table[names].to_numpy(dtype=np.float32), labels)


def _labels(path: Path, activities: "pd.Series[str]", known: Iterable[str]) -> "NDArray[np.int64]":
    """The activities as numbers from 0, in the order of those known."""
    number = {activity: label for label, activity in enumerate(known)}
    wrong = activities[~activities.isin(list(number))]
    refuse(path, str(activities.name), wrong, f"are none of {', '.join(number)}", "correct or remove the records")
    return np.array([number[activity] for activity in activities], dtype=np.int64)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    """The names as pandas would have them: x, x, x become x, x.1, x.2."""
    seen: Counter[str] = Counter()
    told = []
    for name in names:
        told.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return tuple(told)
