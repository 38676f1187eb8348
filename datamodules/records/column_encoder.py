"""The base class of fitted encoders of columns, and what they do with categories that no training row has."""

from abc import ABC, abstractmethod
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from .party_tables import listed

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


class Unseen(StrEnum):
    """What to do with a category that no training row has: encode it as zeros, give it a column, or refuse it."""

    IGNORE = "ignore"
    OWN = "own"
    ERROR = "error"


class ColumnEncoder(ABC):
    """One column of a table as numbers. A subclass is fitted: it holds plain values and never looks at other rows.

    A subclass is a frozen dataclass.
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

    @property
    def of_texts(self) -> bool:
        """Whether it reads texts, so that its column is read as text from a CSV file; default: no."""
        return False

    def taken(self) -> tuple[str, ...]:
        """What was taken from the values of the training rows; default: nothing."""
        return ()


def tell_unseen(texts: "NDArray[np.str_]", column: str, party: str, unseen: Unseen, encoded: str) -> None:
    """Print how many records have categories that no training record has; nothing for no texts.

    Args:
        texts: these categories, one for each record.
        column: the name of the column.
        party: the name of the party.
        unseen: what is done with them.
        encoded: what they are encoded as.

    Raises:
        ConfigurationError: if they are to be refused.
    """
    if not len(texts):
        return
    counts = Counter(texts.tolist())
    what = f"{len(texts)} records of party '{party}' have categories of column '{column}' that no training record " + (
        f"has: {listed(f'{name} ({count})' for name, count in counts.items())}"
    )
    if unseen is Unseen.ERROR:
        raise ConfigurationError(f"{what}; correct them, or train with unseen: ignore or own")
    rank_zero_info(f"{what}; they are encoded as {encoded}")
