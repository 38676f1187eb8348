"""Choose the steps for a column from its training rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from .category_steps import FillText, OneHotCategories, texts_of
from .column_steps import Step
from .date_steps import DatePart, DateParts, formats_of, has_times
from .number_steps import Fill, ReadBooleans, ReadNumbers, Strategy, Texts
from .party_tables import TRUTHS, as_numbers

if TYPE_CHECKING:
    import pandas as pd

MOST = 30
"""A text column with more different texts keeps the most frequent ones."""
_MOSTLY = 0.8  # share of numbers from which on texts among them are read as missing
_MISSING = "(missing)"
_CODE = r"\s*[-+]?0[0-9]"  # 007 is a code, no number
_TIMES_EACH = 20  # records for each different whole number from which on the numbers may be codes


class ColumnKind(StrEnum):
    """What the training rows of a column hold."""

    NUMBERS = "numbers"
    BOOLEAN = "true or false"
    DATE = "dates"
    MIXED = "numbers and text"
    CATEGORIES = "text"
    IDENTIFIER = "text, hardly twice the same"
    EMPTY = "nothing"


@dataclass(frozen=True)
class Chosen:
    """Steps that fit a column, and why.

    Args:
        kind: what the column holds.
        steps: the steps; None: leave the column out.
        note: what a user should know about the choice.
    """

    kind: ColumnKind
    steps: Sequence[Step] | None
    note: str = ""


def choose_steps(column: "pd.Series[Any]") -> Chosen:
    """The steps for a column with these training rows; they also accept missing cells that only other rows have.

    Numbers: missing ones become the median; if training rows have missing ones, an indicator is added. True and false:
    1 and 0, missing cells as the most frequent. Dates: days, month, weekday, and the hour if there are times. Numbers
    with a few texts: texts are missing; but numbers of which some are written like 007 are codes, which are texts.
    Texts: one-hot with a column for others, and ``(missing)`` is a category; of more than 30 different texts the most
    frequent are kept, and a column in which more than half of the records have texts of their own is left out.
    """
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    filled = column.dropna()
    indicator = len(filled) < len(column)
    median = Fill(Strategy.MEDIAN, indicator=indicator)
    if filled.empty:
        return Chosen(ColumnKind.EMPTY, None, "left out: no training record has a value")
    if is_bool_dtype(column):
        return Chosen(ColumnKind.BOOLEAN, [ReadBooleans(), Fill(Strategy.MOST_FREQUENT, indicator=indicator)])
    if is_numeric_dtype(column):
        return Chosen(ColumnKind.NUMBERS, [ReadNumbers(), median], _perhaps_codes(filled))
    if is_datetime64_any_dtype(column):
        return _dates(column, [""], median)
    different = set(texts_of(filled).tolist())
    if {text.lower() for text in different} <= TRUTHS.keys() - {"1", "0", "1.0", "0.0"}:
        return Chosen(ColumnKind.BOOLEAN, [ReadBooleans(), Fill(Strategy.MOST_FREQUENT, indicator=indicator)])
    read, codes = as_numbers(filled), filled.astype(str).str.match(_CODE)
    numbers = read.notna() & ~codes
    if numbers.all():
        return Chosen(ColumnKind.NUMBERS, [ReadNumbers(), median], _perhaps_codes(read))
    if codes.any() and read.notna().all():
        return _texts(len(different), len(filled))
    if numbers.mean() >= _MOSTLY:
        told = f"{int((~numbers).sum())} texts such as '{filled[~numbers].iloc[0]}' are missing"
        return Chosen(ColumnKind.MIXED, [ReadNumbers(Texts.MISSING), Fill(Strategy.MEDIAN, indicator=True)], told)
    if forms := formats_of(column):
        return _dates(column, forms, median)
    return _texts(len(different), len(filled))


def _dates(column: "pd.Series[Any]", forms: Sequence[str], median: Fill) -> Chosen:
    usual = tuple(DateParts().parts)
    if len(forms) > 1:  # the step refuses them and names both
        return Chosen(ColumnKind.DATE, [DateParts(), median])
    parts = (*usual, DatePart.HOUR) if has_times(column, forms[0]) else usual
    return Chosen(ColumnKind.DATE, [DateParts(parts, forms[0]), median])


def _texts(different: int, records: int) -> Chosen:
    missing = FillText(Strategy.CONSTANT, _MISSING)
    if different > max(MOST, records / 2):
        return Chosen(ColumnKind.IDENTIFIER, None, f"left out: {different} different texts in {records} records")
    if different > MOST:
        told = f"{MOST - 1} of {different} texts have a column, see one_hot: {{most: {MOST}}}"
        return Chosen(ColumnKind.CATEGORIES, [missing, OneHotCategories(most=MOST)], told)
    return Chosen(ColumnKind.CATEGORIES, [missing, OneHotCategories()])


def _perhaps_codes(numbers: "pd.Series[Any]") -> str:
    """What to tell about a column of a few whole numbers that come often; empty for others."""
    few = numbers.iloc[:10_000].unique()
    if not (2 < len(few) <= MOST) or (few != few.round()).any():
        return ""
    different = numbers.nunique()
    if different > MOST or len(numbers) < _TIMES_EACH * different:
        return ""
    return f"only {different} different numbers: if they are codes, give one_hot"
