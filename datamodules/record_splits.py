"""Divide records into training, validation and test by a column, by groups, by time or into folds."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rebuildable import printed
from lightning_vfl.streams import permutation, seed_of

from .records.date_steps import DateParts
from .records.party_tables import as_numbers, refuse_missing
from .records.records import SplitName
from .split import split_rows

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

Rows = Mapping[SplitName, "NDArray[np.int64]"]


@dataclass(frozen=True)
class ToDivide:
    """The records that a rule divides.

    Args:
        records: N.
        column: (N,) the values of the rule's column; None: the tables do not have it, or the rule reads none.
        party: the party whose column it is, for errors.
        classes: (N,) the classes of the labels; None: the labels are real numbers.
        seed: names the draw.
        val: share of the records for validation.
        test: share of the records for testing.
        flags: (N, L), 0 and 1, if a record has several labels that are true or false; else None.
    """

    records: int
    column: "pd.Series[Any] | None"
    party: str
    classes: "NDArray[np.int64] | None"
    seed: int
    val: float
    test: float
    flags: "NDArray[np.int64] | None" = None

    def needed(self, name: str | None) -> "pd.Series[Any]":
        """The values of the column.

        Raises:
            ConfigurationError: if there is no column, or values are missing.
        """
        if self.column is None:
            raise ConfigurationError(
                f"the tables have no column '{name}', which divides the records; add it, or give new_records: true"
            )
        refuse_missing(self.column, self.party)
        return self.column


class RecordSplit(ABC):
    """A rule that divides records. It is fitted to nothing: the same records and settings give the same splits.

    Law: the splits are disjoint, and together they are all records.
    """

    column: str | None = None
    """The column of the label party's table that the rule reads, which is then no feature; None: it reads none."""

    @abstractmethod
    def rows(self, given: ToDivide) -> Rows:
        """The sorted positions of each split.

        Raises:
            ConfigurationError: for values that the rule cannot use, and too few records.
        """

    def __repr__(self) -> str:
        return printed(self)


class GivenSplit(RecordSplit):
    """A column says which split a record is in; the shares of the data set are not used.

    Args:
        column: the name of the column.
        train: the value of training records.
        val: the value of validation records; a file may have none.
        test: the value of test records; a file may have none.
    """

    def __init__(self, column: str, train: str = "train", val: str = "val", test: str = "test") -> None:
        self.column = column
        self.train, self.val, self.test = str(train), str(val), str(test)

    def rows(self, given: ToDivide) -> Rows:
        column = given.needed(self.column)
        texts = column.astype(str).str.strip().to_numpy(dtype=np.str_)
        known: dict[SplitName, str] = {"train": self.train, "val": self.val, "test": self.test, "predict": self.test}
        if other := sorted(set(texts.tolist()) - set(known.values())):
            raise ConfigurationError(
                f"the split column '{self.column}' has the value '{other[0]}'; write {self.train}, {self.val} or "
                f"{self.test}, or set train, val and test to the values of the file"
            )
        found: Rows = {name: np.flatnonzero(texts == word) for name, word in known.items()}
        if not len(found["train"]):
            raise ConfigurationError(f"no record has '{self.train}' in the split column '{self.column}'; correct train")
        return found


class GroupedSplit(RecordSplit):
    """Records with the same value in a column, such as visits of a patient, are in the same split.

    The shares of the data set are shares of the groups.

    Args:
        column: the name of the column.
    """

    def __init__(self, column: str) -> None:
        self.column = column

    def rows(self, given: ToDivide) -> Rows:
        column = given.needed(self.column)
        texts = column.astype(str).to_numpy(dtype=np.str_)
        groups, member = np.unique(texts, return_inverse=True)
        drawn = split_rows(np.arange(len(groups)), given.seed, given.val, given.test)
        return {name: np.flatnonzero(np.isin(member, own)) for name, own in drawn.items()}


class TimeSplit(RecordSplit):
    """The latest records are for testing, the latest of the others for validation; no training record is later.

    Args:
        column: the name of a column of dates or numbers; records of the same time are in the order of their ids.
    """

    def __init__(self, column: str) -> None:
        self.column = column

    def rows(self, given: ToDivide) -> Rows:
        order = _ordered(given.needed(self.column), given.party)
        tests = ceil(round(given.test * len(order), 6))
        vals = ceil(round(given.val * len(order), 6))
        first = len(order) - tests
        if first - vals < 1:
            raise ConfigurationError(f"{len(order)} records leave none for training with these shares; lower them")
        parts = np.split(order, [first - vals, first])
        train, held, last = (np.sort(part) for part in parts)
        return {"train": train, "val": held, "test": last, "predict": last}


class StratifiedLabels(RecordSplit):
    """Records with several labels are divided so that every combination of the labels has its share in every split.

    The number of records of a combination in a split differs by at most one from its share. A combination of one record
    goes to one of the splits.
    """

    def rows(self, given: ToDivide) -> Rows:
        if given.flags is None:
            raise ConfigurationError(
                "StratifiedLabels divides records that have several labels which are true or false; give label_column "
                "a list, or leave split out: one label is stratified without it"
            )
        _, combinations = np.unique(given.flags, axis=0, return_inverse=True)
        rest, tests = _spread(np.arange(given.records), combinations.ravel(), given.test, given.seed, "test split")
        share = given.val / (1 - given.test)
        train, vals = _spread(rest, combinations.ravel()[rest], share, given.seed, "validation split")
        if not len(train):
            raise ConfigurationError(f"{given.records} records leave none for training with these shares; lower them")
        return {"train": train, "val": vals, "test": tests, "predict": tests}


class Folds(RecordSplit):
    """Cross-validation: fold number ``fold`` of ``folds`` is for testing; together the folds test every record once.

    Folds are stratified by class. Validation records are drawn from the other folds, with the validation share of all
    records; the test share is not used.

    Args:
        fold: from 0 to ``folds`` - 1.
        folds: how many folds.
        column: records with the same value in this column are in the same fold; None: every record is alone.
    """

    def __init__(self, fold: int = 0, folds: int = 5, column: str | None = None) -> None:
        if folds < 2 or not 0 <= fold < folds:
            raise ConfigurationError(f"fold {fold} of {folds} folds is impossible; use 2 or more folds, counted from 0")
        self.fold = fold
        self.folds = folds
        self.column = column

    def rows(self, given: ToDivide) -> Rows:
        from sklearn.model_selection import KFold, StratifiedGroupKFold, StratifiedKFold

        every = np.arange(given.records)
        settings = {"n_splits": self.folds, "shuffle": True, "random_state": seed_of(given.seed, "folds") % 2**32}
        alike = np.zeros(len(every), dtype=np.int64) if given.classes is None else given.classes
        try:
            if self.column is not None:
                column = given.needed(self.column)
                members = column.astype(str).to_numpy(dtype=np.str_)
                parts = list(StratifiedGroupKFold(**settings).split(every, alike, members))
            elif given.classes is not None:
                parts = list(StratifiedKFold(**settings).split(every, alike))
            else:
                parts = list(KFold(**settings).split(every))
        except ValueError as error:
            raise ConfigurationError(
                f"{len(every)} records give no {self.folds} folds ({error}); use fewer folds"
            ) from error
        rest, tests = parts[self.fold]
        share = min(given.val * self.folds / (self.folds - 1), 0.99)
        if self.column is not None:
            part = given.needed(self.column).iloc[rest]
            own = GroupedSplit(self.column).rows(replace(given, records=len(rest), column=part, val=share, test=0.0))
        else:
            own = split_rows(
                np.arange(len(rest)), given.seed, share, 0.0, None if given.classes is None else given.classes[rest]
            )
        return {"train": rest[own["train"]], "val": rest[own["val"]], "test": tests, "predict": tests}


def _ordered(column: "pd.Series[Any]", party: str) -> "NDArray[np.int64]":
    """(N,) the positions of dates or numbers in ascending order, equal ones in their own order.

    Raises:
        ConfigurationError: for other values.
    """
    values: pd.Series[Any] = as_numbers(column)
    if values.isna().any():
        values = DateParts().fit(column, party).dates(column, party)
    return np.argsort(values.to_numpy(), kind="stable")


def _spread(
    rows: "NDArray[np.int64]", kinds: "NDArray[np.int64]", share: float, seed: int, what: str
) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """The other rows, and a share of them, both sorted: systematic sampling of the rows in the order of their kinds."""
    count = ceil(round(share * len(rows), 6))
    drawn = permutation(len(rows), seed, what)
    order = drawn[np.argsort(kinds[drawn], kind="stable")]
    steps = (np.arange(len(rows) + 1) * count) // max(len(rows), 1)
    taken = np.zeros(len(rows), dtype=np.bool_)
    taken[order] = np.diff(steps) > 0
    return rows[~taken], rows[taken]
