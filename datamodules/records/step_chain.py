"""A chain of steps by which one column of a table becomes numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .category_steps import FillText, OneHotCategories, OrdinalCategories
from .column_encoder import ColumnEncoder
from .column_steps import NumberStep, Reader, Step, fields_of
from .date_steps import DatePart, DateParts
from .number_steps import Fill, Log, Quantile, ReadBooleans, ReadNumbers, refuse_cells
from .weight_of_evidence import WeightOfEvidence

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from .weight_of_evidence import Counts

STEPS: tuple[type[Step], ...] = (
    Fill, FillText, ReadNumbers, ReadBooleans, OneHotCategories, OrdinalCategories, DateParts, Log, Quantile,
    WeightOfEvidence
)  # fmt: skip


@dataclass(frozen=True)
class Chain(ColumnEncoder):
    """One column, read as numbers after missing cells are filled in, and changed by further steps.

    Args:
        column: the name of the column.
        filling: fills in missing cells before they are read; None: nothing does.
        reader: reads the cells as numbers.
        after: change the numbers, one after the other.
        seen: the least and the greatest number of the training rows in each column of numbers; empty: not kept.
        missing: the share of the training rows in which the cell is missing, or read as missing; None: not kept.

    ``seen`` and ``missing`` are compared with new tables and change nothing.

    Guarantee: the same cell gives the same numbers, bit for bit, whatever the other cells are.
    """

    column: str
    filling: FillText | None
    reader: Reader
    after: tuple[NumberStep, ...] = ()
    seen: tuple[tuple[float, float], ...] = ()
    missing: float | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return (*([] if self.filling is None else [self.filling]), self.reader, *self.after)

    @property
    def of_texts(self) -> bool:
        return reads_text(self.reader)

    @property
    def names(self) -> tuple[str, ...]:
        marks = sum(getattr(step, "indicator", False) for step in self.steps)
        return (*self.reader.names(self.column), *[f"{self.column}=(missing)"] * marks)

    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        return self.with_gaps(values, party)[0]

    def with_gaps(self, values: "pd.Series[Any]", party: str) -> "tuple[NDArray[np.float64], NDArray[np.bool_]]":
        """``encode``, and (N,) which cells are missing or read as missing."""
        marks: list[NDArray[np.float64]] = []
        absent = np.zeros(len(values), dtype=np.bool_)
        if self.filling is not None:
            absent = values.isna().to_numpy()
            marks += [absent.astype(np.float64)] * self.filling.indicator
            values = self.filling.fill(values)
        numbers = self.reader.read(values, party)
        absent = absent | _gaps(numbers)
        for step in self.after:
            marks += step.marks(numbers)
            numbers = step.apply(numbers)
        refuse_cells(values, _gaps(numbers), party, "are missing", "fill them in, or use preprocess: auto or impute")
        return np.column_stack([numbers, *marks]) if marks else numbers, absent

    def state(self) -> dict[str, Any]:
        seen = [list(ends) for ends in self.seen]
        steps = [step.state() for step in self.steps]
        return {"kind": "chain", "column": self.column, "steps": steps, "seen": seen, "missing": self.missing}

    def outside(self, encoded: "NDArray[np.float64]") -> int:
        """How many of the N records have a number outside those of the training rows.

        Args:
            encoded: (N, K), what ``encode`` gives.
        """
        if not self.seen:
            return 0
        low, high = np.array(self.seen).T
        numbers = encoded[:, : len(self.seen)]
        return int(((numbers < low) | (numbers > high)).any(1).sum())

    @property
    def has_times(self) -> bool:
        """Whether it reads the hour of dates, which the training rows have at different times."""
        return self._hours is not None

    @property
    def _hours(self) -> int | None:
        """The column of the hour, if the training rows have different ones."""
        if not isinstance(self.reader, DateParts) or not self.seen or DatePart.HOUR not in self.reader.parts:
            return None
        place = list(self.reader.parts).index(DatePart.HOUR)
        low, high = self.seen[place]
        return place if low < high else None

    def later(self, encoded: "NDArray[np.float64]") -> int:
        """How many of the N records have an hour after the first one of the training rows, which midnight never is.

        Args:
            encoded: (N, K), what ``encode`` gives.
        """
        return 0 if self._hours is None else int((encoded[:, self._hours] > self.seen[self._hours][0]).sum())

    def describe(self) -> str:
        """What the steps do, for the table that is printed before training."""
        return ", ".join(step.describe() for step in self.steps)

    def taken(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for step in self.steps if (word := step.taken())))


@dataclass(frozen=True)
class LeftOut(ColumnEncoder):
    """A column that is not used; new tables may lack it.

    Args:
        column: the name of the column.
    """

    column: str

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        return np.empty((len(values), 0))

    def state(self) -> dict[str, Any]:
        return {"kind": "left_out", "column": self.column}


def plain_numbers(column: str) -> Chain:
    """The encoder of a column of numbers that stay as they are."""
    return Chain(column, None, ReadNumbers())


def reads_text(reader: Reader) -> bool:
    """Whether a column of a CSV file must be text for this reader, as 1.234 with the decimal mark ',' must."""
    if isinstance(reader, ReadNumbers):
        return reader.decimal == ","
    return not isinstance(reader, ReadBooleans)


def _gaps(numbers: "NDArray[np.float64]") -> "NDArray[np.bool_]":
    """(N,) which rows of numbers (N, K) have a missing one."""
    gaps = np.zeros(len(numbers), dtype=np.bool_)
    if numbers.size and np.isnan(numbers.min()):  # NaN if one of them is
        np.isnan(numbers).any(1, out=gaps)
    return gaps


def fit_chain(
    steps: Sequence[Step],
    column: "pd.Series[Any]",
    party: str,
    counts: "Counts | None" = None,
) -> Chain:
    """The chain of these steps, each fitted to what the steps before it make of the training rows of the column.

    Args:
        steps: at most one that fills in text, one reader, and steps on numbers, in this order.
        column: the training rows.
        party: the name of the party, for errors.
        counts: counts the labels of the training rows by bins; None: the labels are not here.

    Raises:
        ConfigurationError: for cells that a step cannot use, and for steps that need labels which are not here.
    """
    filling: FillText | None = None
    reader: Reader = ReadNumbers()
    after: list[NumberStep] = []
    gaps = column.isna().to_numpy()
    numbers: NDArray[np.float64] = np.empty((0, 0))
    for step in steps:
        if isinstance(step, FillText):
            filling = step.fit(column, party)
            column = filling.fill(column)
        elif isinstance(step, Reader):
            reader = step.fit(column, party)
            if step is not steps[-1] or not isinstance(reader, OneHotCategories):  # whose columns nobody reads here
                numbers = reader.read(column, party)
                gaps = gaps | _gaps(numbers)
        elif isinstance(step, WeightOfEvidence) and counts is not None:
            after.append(step.fit_to(numbers, str(column.name), party, counts))
            numbers = after[-1].apply(numbers)
        elif isinstance(step, NumberStep):
            after.append(step.fit(numbers, str(column.name), party))
            numbers = after[-1].apply(numbers)
    seen: tuple[tuple[float, float], ...] = ()
    if isinstance(reader, ReadNumbers | DateParts) and not np.isnan(numbers).all(0).any():
        ends = zip(np.nanmin(numbers, 0).tolist(), np.nanmax(numbers, 0).tolist(), strict=True)
        seen = tuple(ends)
    return Chain(str(column.name), filling, reader, tuple(after), seen, float(gaps.mean()))


def chain_of(state: Mapping[str, Any]) -> Chain:
    """The chain of a state."""
    kinds = {kind.__name__: kind for kind in STEPS}
    steps = [kinds[one["step"]](**fields_of(one)) for one in state["steps"]]
    (reader,) = (step for step in steps if isinstance(step, Reader))
    filling = next((step for step in steps if isinstance(step, FillText)), None)
    after = tuple(step for step in steps if isinstance(step, NumberStep))
    seen = tuple((low, high) for low, high in state.get("seen", ()))
    return Chain(state["column"], filling, reader, after, seen, state.get("missing"))
