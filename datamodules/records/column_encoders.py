"""Encode the columns of a party's table as numbers, with what was fitted to its training rows."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from .one_hot import categories_of, one_hot
from .party_tables import listed, numbers_of, refuse_missing

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


class Unseen(StrEnum):
    """What to do with a category that no training row has: encode it as zeros, give it a column, or refuse it."""

    IGNORE = "ignore"
    OWN = "own"
    ERROR = "error"


class ColumnEncoder(ABC):
    """One column of a table as numbers. A subclass is fitted: it holds plain values and never looks at other rows.

    A subclass is a frozen dataclass whose fields are plain values.
    """

    column: str
    """The name of the column in the file."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the K columns of numbers."""

    @abstractmethod
    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        """(N, K) numbers of N values.

        Args:
            values: the column; its index is the ids.
            party: the name of the party, for errors.

        Raises:
            ConfigurationError: for values of another kind than those of the training rows.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain values, among them the ``kind`` by which ``encoder_of`` finds the class."""


@dataclass(frozen=True)
class Numbers(ColumnEncoder):
    """A column of numbers, unchanged.

    Args:
        column: the name of the column.
        fix: what else can be done about text in the column, for errors.
    """

    column: str
    fix: str = "list the column under categorical"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column,)

    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        refuse_missing(values, party)
        return numbers_of(values, party, self.fix)[:, None]

    def state(self) -> dict[str, Any]:
        return {"kind": "numbers", "column": self.column}


@dataclass(frozen=True)
class OneHot(ColumnEncoder):
    """A column of categories, one column of 0 and 1 for each category of the training rows.

    Args:
        column: the name of the column.
        categories: the categories of the training rows as text, sorted.
        unseen: what to do with another category. ``own``: a further column is 1 for it, which is 0 in all training
            rows, so the network has learned nothing from it.
    """

    column: str
    categories: tuple[str, ...]
    unseen: Unseen = Unseen.IGNORE

    @property
    def names(self) -> tuple[str, ...]:
        own = (f"{self.column}=(unseen)",) if self.unseen is Unseen.OWN else ()
        return (*(f"{self.column}={category}" for category in self.categories), *own)

    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        refuse_missing(values, party)
        text = values.astype(str).to_numpy(dtype=np.str_)
        columns = one_hot(text, self.categories)
        other = columns.sum(1) == 0
        if other.any():
            self._tell(Counter(text[other].tolist()), party)
        return np.column_stack([columns, other]) if self.unseen is Unseen.OWN else columns

    def state(self) -> dict[str, Any]:
        categories = list(self.categories)
        return {"kind": "one_hot", "column": self.column, "categories": categories, "unseen": str(self.unseen)}

    def _tell(self, other: Mapping[str, int], party: str) -> None:
        records = sum(other.values())
        what = f"{records} records of party '{party}' have categories of column '{self.column}' that no training " + (
            f"record has: {listed(f'{name} ({count})' for name, count in other.items())}"
        )
        if self.unseen is Unseen.ERROR:
            raise ConfigurationError(f"{what}; correct them, or train with unseen: ignore or own")
        rank_zero_info(f"{what}; they are encoded as {'unseen' if self.unseen is Unseen.OWN else 'zeros'}")


def encoder_of(state: Mapping[str, Any]) -> ColumnEncoder:
    """The encoder of a state."""
    values = {name: value for name, value in state.items() if name != "kind"}
    if state["kind"] == "numbers":
        return Numbers(**values)
    return OneHot(values["column"], tuple(values["categories"]), Unseen(values["unseen"]))


def fit_encoders(
    tables: "Mapping[str, pd.DataFrame]",
    train_ids: "NDArray[np.generic]",
    categorical: Collection[str],
    unseen: Unseen = Unseen.IGNORE,
) -> tuple[ColumnEncoder, ...]:
    """The encoder of each column, fitted to the training rows of all tables of a group.

    Args:
        tables: party -> its table, its ids as the index; all have the same columns in the same order.
        train_ids: the ids of the training records.
        categorical: columns to encode one-hot.
        unseen: what to do with categories that no training row has.

    Raises:
        ConfigurationError: for a party without training records, for missing values and for text among numbers.
    """
    trained = {party: table.index.isin(train_ids) for party, table in tables.items()}
    if idle := [party for party, rows in trained.items() if not rows.any()]:
        raise ConfigurationError(
            f"party '{idle[0]}' holds none of the {len(train_ids)} training records; use another seed or overlap, "
            "or leave its table out"
        )
    encoders: list[ColumnEncoder] = []
    for name in next(iter(tables.values())):
        if str(name) not in categorical:
            encoders.append(Numbers(str(name)))
            continue
        seen = []
        for party, table in tables.items():
            refuse_missing(table[name], party)
            seen.append(table[name][trained[party]].astype(str).to_numpy(dtype=np.str_))
        encoders.append(OneHot(str(name), tuple(categories_of(np.concatenate(seen))), unseen))
    return tuple(encoders)


def encode_table(table: "pd.DataFrame", encoders: Sequence[ColumnEncoder], party: str) -> "NDArray[np.float64]":
    """(N, F) the columns of the table as numbers, in the order of the encoders.

    Raises:
        ConfigurationError: for missing and unknown columns, and values of another kind than those of the training rows.
    """
    wanted, given = [encoder.column for encoder in encoders], [str(name) for name in table.columns]
    missing, extra = [n for n in wanted if n not in given], [n for n in given if n not in wanted]
    if missing or extra:
        told = [f"without {listed(missing)}"] * bool(missing) + [f"with the further {listed(extra)}"] * bool(extra)
        raise ConfigurationError(
            f"the table of party '{party}' is {' and '.join(told)}, unlike the table that the model was trained on, "
            f"which has {listed(wanted)}; give it the same columns"
        )
    blocks = [encoder.encode(table[encoder.column], party) for encoder in encoders]
    return np.hstack(blocks) if blocks else np.empty((len(table), 0))
