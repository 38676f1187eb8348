"""The files of Human Activity Recognition: the text files of UCI, and the CSV files of Kaggle."""

import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .cells import as_table, check_count, numbers, read_rows, refuse
from .labelled import Labelled
from .view_files import read_text

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
COLUMNS = 561
UCI = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"
KAGGLE = "https://www.kaggle.com/datasets/uciml/human-activity-recognition-with-smartphones"


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
