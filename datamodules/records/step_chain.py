"""A chain of steps by which one column of a table becomes numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .category_steps import FillText, OneHotCategories, OrdinalCategories
from .column_encoder import ColumnEncoder
from .column_steps import NumberStep, Reader, Step, TextFill, fields_of
from .date_steps import DateParts
from .number_steps import Fill, Log, Quantile, ReadBooleans, ReadNumbers, Texts, refuse_cells
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
        seen: the least and the greatest number of the training rows in each column of numbers, which are compared with
            those of new tables and change nothing; empty: not kept.

    Guarantee: the same cell gives the same numbers, bit for bit, whatever the other cells are.
    """

    column: str
    filling: TextFill | None
    reader: Reader
    after: tuple[NumberStep, ...] = ()
    seen: tuple[tuple[float, float], ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        return (*([] if self.filling is None else [self.filling]), self.reader, *self.after)

    @property
    def of_texts(self) -> bool:
        """Whether it reads texts, among them numbers that pandas reads otherwise: 1.234 with the decimal mark ','."""
        return reads_text(self.reader)

    @property
    def names(self) -> tuple[str, ...]:
        marks = sum(getattr(step, "indicator", False) for step in self.steps)
        return (*self.reader.names(self.column), *[f"{self.column}=(missing)"] * marks)

    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        marks: list[NDArray[np.float64]] = []
        if self.filling is not None:
            marks += [np.asarray(values.isna(), dtype=np.float64)] * self.filling.indicator
            values = self.filling.fill(values)
        numbers = self.reader.read(values, party)
        for step in self.after:
            marks += step.marks(numbers)
            numbers = step.apply(numbers)
        if numbers.size and np.isnan(numbers.min()):  # NaN if one of them is
            gaps: NDArray[np.bool_] = np.any(np.isnan(numbers), axis=1)
            refuse_cells(values, gaps, party, "are missing", "add impute to its steps, or fill them in")
        return np.column_stack([numbers, *marks]) if marks else numbers

    def state(self) -> dict[str, Any]:
        seen = [list(ends) for ends in self.seen]
        return {"kind": "chain", "column": self.column, "steps": [step.state() for step in self.steps], "seen": seen}

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

    def missing(self, values: "pd.Series[Any]", party: str) -> float:
        """The share of the cells that are missing or read as missing."""
        read = getattr(self.reader, "text", Texts.ERROR) is not Texts.ERROR and self.filling is None
        gaps = np.isnan(self.reader.read(values, party)).any(1) if read else values.isna()
        return float(gaps.mean())

    def describe(self) -> str:
        """What the steps do, for the table that is printed before training."""
        return ", ".join(step.describe() for step in self.steps)

    def taken(self) -> tuple[str, ...]:
        """What the steps have taken from the values of the training rows."""
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


def reads_text(reader: Reader) -> bool:
    """Whether a column of a CSV file must be text for this reader."""
    if isinstance(reader, ReadNumbers):
        return reader.decimal == ","
    return not isinstance(reader, ReadBooleans)


def fit_chain(
    steps: Sequence[Step],
    column: "pd.Series[Any]",
    party: str,
    ranges: bool = False,
    counts: "Counts | None" = None,
) -> Chain:
    """The chain of these steps, each fitted to what the steps before it make of the training rows of the column.

    Args:
        steps: at most one that fills in text, one reader, and steps on numbers, in this order.
        column: the training rows.
        party: the name of the party, for errors.
        ranges: whether to keep the ends of numbers and dates.
        counts: counts the labels of the training rows by bins; None: the labels are not here.

    Raises:
        ConfigurationError: for cells that a step cannot use, and for steps that need labels which are not here.
    """
    filling: TextFill | None = None
    reader: Reader = ReadNumbers()
    after: list[NumberStep] = []
    numbers: NDArray[np.float64] = np.empty((0, 0))
    for step in steps:
        if isinstance(step, TextFill):
            filling = step.fit(column, party)
            column = filling.fill(column)
        elif isinstance(step, Reader):
            reader = step.fit(column, party)
            if step is not steps[-1] or not isinstance(reader, OneHotCategories):  # whose columns nobody reads here
                numbers = reader.read(column, party)
        elif isinstance(step, WeightOfEvidence) and counts is not None:
            after.append(step.fit_to(numbers, str(column.name), party, counts))
            numbers = after[-1].apply(numbers)
        elif isinstance(step, NumberStep):
            after.append(step.fit(numbers, str(column.name), party))
            numbers = after[-1].apply(numbers)
    seen: tuple[tuple[float, float], ...] = ()
    if ranges and isinstance(reader, ReadNumbers | DateParts) and not np.isnan(numbers).all(0).any():
        ends = zip(np.nanmin(numbers, 0).tolist(), np.nanmax(numbers, 0).tolist(), strict=True)
        seen = tuple(ends)
    return Chain(str(column.name), filling, reader, tuple(after), seen)


def chain_of(state: Mapping[str, Any]) -> Chain:
    """The chain of a state."""
    kinds = {kind.__name__: kind for kind in STEPS}
    steps = [kinds[one["step"]](**fields_of(one)) for one in state["steps"]]
    (reader,) = (step for step in steps if isinstance(step, Reader))
    filling = next((step for step in steps if isinstance(step, TextFill)), None)
    after = tuple(step for step in steps if isinstance(step, NumberStep))
    seen = tuple((low, high) for low, high in state.get("seen", ()))
    return Chain(state["column"], filling, reader, after, seen)
