"""Tell in which columns new records of a party, or those of a split, are unlike the training records."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lightning_utilities.core.rank_zero import rank_zero_info

from .column_encoder import ColumnEncoder
from .party_tables import listed
from .step_chain import Chain

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

_MORE = 0.1  # by so much a share of missing values must be above that of the training, where some were missing
_FEWEST = 2  # dates; the time of a single one may be midnight
_MORE_IN_SPLIT = 0.2  # as _MORE, in records that were divided from the training records, and so differ by chance
_FEWEST_IN_SPLIT = 10  # of these
_OUTSIDE_IN_SPLIT = 0.5


class NewRecords:
    """Encodes the columns of a party's records in any number of batches, and counts what the training did not have.

    Args:
        party: its name.
        split: the name of the split that the records are of, such as val; empty: they are new, and more is told.
    """

    def __init__(self, party: str, split: str = "") -> None:
        self.party = party
        self._split = split
        self._chains: dict[str, Chain] = {}
        self._records: Counter[str] = Counter()  # all counts are by column
        self._outside: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()
        self._later: Counter[str] = Counter()

    def encode(self, encoder: ColumnEncoder, values: "pd.Series[Any]") -> "NDArray[np.float64]":
        """(N, K) what ``encoder.encode`` gives."""
        if not isinstance(encoder, Chain):
            return encoder.encode(values, self.party)
        encoded, gaps = encoder.with_gaps(values, self.party)
        self.count(encoder, encoded, gaps)
        return encoded

    def count(self, encoder: Chain, encoded: "NDArray[np.float64]", gaps: "NDArray[np.bool_]") -> None:
        """Count records.

        Args:
            encoder: of the column.
            encoded: (N, K), what it gives.
            gaps: (N,), which cells are missing or read as missing.
        """
        column = encoder.column
        self._chains[column] = encoder
        self._records[column] += len(gaps)
        self._outside[column] += encoder.outside(encoded)
        self._missing[column] += int(gaps.sum())
        if encoder.has_times:
            self._later[column] += encoder.later(encoded[~gaps])

    def tell(self) -> None:
        """Print what is unlike the training records in the records so far, a line for each kind; nothing for none."""
        self._tell(
            "numbers lie outside those of the training records in",
            (f"{column} {count}" for column, count in self._outside.items() if count > self._usually_outside(column)),
        )
        self._tell(
            "values are missing, more than in the training records, in",
            (self._gaps(column) for column in self._chains if self._has_more_gaps(column)),
        )
        self._tell(
            "no date has a time of the day, as dates of the training records have, in",
            (column for column in self._chains if self._has_no_times(column)),
        )

    def _tell(self, what: str, columns: Iterable[str]) -> None:
        if found := list(columns):
            records = max(self._records.values())
            records_of = f"{self._split} records" if self._split else "records"
            rank_zero_info(f"of {records} {records_of} of party '{self.party}', {what}: {listed(found)}")

    def _usually_outside(self, column: str) -> float:
        return _OUTSIDE_IN_SPLIT * self._records[column] if self._split else 0

    def _has_more_gaps(self, column: str) -> bool:
        count = self._missing[column]
        records = self._records[column]
        trained = self._chains[column].missing
        if self._split:
            return count >= _FEWEST_IN_SPLIT and count > ((trained or 0.0) + _MORE_IN_SPLIT) * records
        if trained is None:
            return 0 < count == records
        return count > (trained + _MORE if trained else 0.0) * records

    def _gaps(self, column: str) -> str:
        trained = self._chains[column].missing
        told = "" if trained is None else f" (training {trained:.1%})".replace("%", " %")
        return f"{column} {self._missing[column]}{told}"

    def _has_no_times(self, column: str) -> bool:
        dates = self._records[column] - self._missing[column]
        fewest = _FEWEST_IN_SPLIT if self._split else _FEWEST
        return self._chains[column].has_times and dates >= fewest and not self._later[column]
