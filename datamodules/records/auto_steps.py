"""Choose the steps for a column from its training rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .category_steps import FillText, OneHotCategories, different_texts, texts_of
from .column_steps import Step
from .date_steps import DatePart, DateParts, dates_of, formats_of, has_times
from .number_steps import Fill, ReadBooleans, ReadNumbers, Strategy, Texts
from .party_tables import CODE, TRUTHS, as_numbers, refuse_several
from .written_numbers import MARKS, decimal_of, looks_numeric, of_one_form, written_numbers

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

MOST = 30
"""A text column with more different texts keeps the most frequent ones."""
_MOSTLY = 0.8  # share of numbers from which on words among them are read as missing
_PARTLY = 0.5  # the same, for a column that would otherwise lose its numbers
_MISSING = "(missing)"
_TIMES_EACH = 20  # records for each different whole number from which on the numbers may be codes


class ColumnKind(StrEnum):
    """What the training rows of a column hold."""

    NUMBERS = "numbers"
    BOOLEAN = "true or false"
    DATE = "dates"
    CONSTANT = "always the same"
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


def choose_steps(
    column: "pd.Series[Any]", decimal: str = "", party: str = "", other_rows: "pd.Series[Any] | None" = None
) -> Chosen:
    """The steps for a column with these training rows; they also accept missing cells that only other rows have.

    Numbers: missing ones become the median; if training rows have missing ones, an indicator is added. Numbers are
    read as people write them, see ``read_number``. True and false: 1 and 0, missing cells as the most frequent. Dates:
    days, month, weekday, and the hour if there are times; cells that are no dates are missing. Among numbers, marks
    such as ``-`` are missing, and so are other words if at least 80 % are numbers; but numbers of which some are
    written like 007 are codes, which are texts. Texts: one-hot with a column for others, and ``(missing)`` is a
    category; of more than 30 different texts the most frequent are kept, and a column in which more than half of the
    records have texts of their own is left out. A column that has one value in all training rows is left out too.

    Args:
        column: the training rows.
        decimal: the decimal mark of numbers as people write them; empty: found in the column.
        party: the name of the party, for errors.
        other_rows: the rows of validation and tests, from which nothing but the form of numbers is taken.

    Raises:
        ConfigurationError: for numbers that can be read in two ways, texts with digits among numbers, and a column that
            looks numeric and would be left out.
    """
    from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

    filled = column.dropna()
    refuse_several(filled, party, "write each number into a column of its own, or give drop")
    indicator = len(filled) < len(column)
    if filled.empty:
        return Chosen(ColumnKind.EMPTY, None, "left out: no training record has a value")
    if (filled == filled.iloc[0]).all():
        return _constant(str(texts_of(filled.iloc[:1])[0]), indicator)
    median = Fill(Strategy.MEDIAN, indicator=indicator)
    if is_bool_dtype(column):
        return Chosen(ColumnKind.BOOLEAN, [ReadBooleans(), Fill(Strategy.MOST_FREQUENT, indicator=indicator)])
    if is_numeric_dtype(column):
        return Chosen(ColumnKind.NUMBERS, [ReadNumbers(), median], _perhaps_codes(filled, len(filled)))
    if is_datetime64_any_dtype(column):
        return _dates(column, [""], median, 1)
    cells = _Cells.of(filled)
    if {text.lower() for text in cells.different} <= TRUTHS.keys() - {"1", "0", "1.0", "0.0"}:
        return Chosen(ColumnKind.BOOLEAN, [ReadBooleans(), Fill(Strategy.MOST_FREQUENT, indicator=indicator)])
    every = cells.different if other_rows is None else cells.different | different_texts(other_rows.dropna())
    return _of_texts(cells, every, indicator, decimal, f"column '{column.name}' of party '{party}'")


class _Cells(NamedTuple):
    """The different cells of a column of texts in the order in which they come; a decision needs no more of it.

    Args:
        first: the different cells; the index is the id of the first record that has each.
        counts: how many records have each.
        texts: as ``first``, as text without spaces around it.
    """

    first: "pd.Series[Any]"
    counts: "NDArray[np.int64]"
    texts: "pd.Series[str]"

    @classmethod
    def of(cls, filled: "pd.Series[Any]") -> "_Cells":
        """Of the cells that are not missing."""
        import pandas as pd

        if filled.dtype == object:  # 1 and True are equal, and different texts
            filled = pd.Series(texts_of(filled), filled.index, dtype=str, name=filled.name)
        places, _ = pd.factorize(filled)
        counts = np.bincount(places)
        rows = np.empty(len(counts), np.int64)
        rows[places[::-1]] = np.arange(len(places))[::-1]  # of several records the first is written last
        first = filled.iloc[rows]
        return cls(first, counts, pd.Series(texts_of(first), first.index, dtype=str))

    @property
    def different(self) -> set[str]:
        """The different texts."""
        return set(self.texts)

    @property
    def records(self) -> int:
        """The number of records."""
        return int(self.counts.sum())


def _constant(value: str, gaps: bool) -> Chosen:
    """Leave out a column with one value, because a scale cannot be fitted; keep where it is missing."""
    if not gaps:
        return Chosen(ColumnKind.CONSTANT, None, f"left out: every training record has '{value}'")
    return Chosen(ColumnKind.CONSTANT, [FillText(Strategy.CONSTANT, _MISSING), OneHotCategories()])


def _of_texts(cells: _Cells, every: set[str], indicator: bool, decimal: str, where: str) -> Chosen:
    """The steps for a column of texts.

    Args:
        cells: the texts.
        every: the different texts of all rows, those of validation and tests among them.
        indicator: whether other cells are missing.
        decimal: the decimal mark; empty: found here.
        where: the column and the party, for errors.
    """
    texts = cells.texts
    counts = cells.counts
    different = len(cells.different)
    marks = texts.str.lower().isin(MARKS).to_numpy(dtype=np.bool_)
    codes = texts.str.match(CODE).to_numpy(dtype=np.bool_)
    numbers, mark = _numbers(cells.first, every, decimal, where)
    if (codes & ~np.isnan(numbers)).any() and not np.isnan(numbers[~marks]).any():
        return _categories(different, cells.records)
    numeric = ~np.isnan(numbers) & ~codes
    digits = ~numeric & ~marks & texts.str.contains(r"\d").to_numpy(dtype=np.bool_)
    share = float(counts[numeric].sum()) / max(int(counts[~marks].sum()), 1)
    dropped = different > MOST  # categories would be left out, or share a column
    if share >= _MOSTLY or (share >= _PARTLY and dropped and not digits.any()):
        if digits.any():
            raise ConfigurationError(
                f"{where} has {counts[numeric].sum()} numbers and {counts[digits].sum()} other texts with digits, such "
                f"as '{texts[digits].iloc[0]}' of record {texts.index[digits][0]}; correct them, or give the column "
                "steps: numbers: {text: missing}, one_hot or drop"
            )
        return _written(cells, numeric, mark, indicator)
    if forms := formats_of(cells.first):
        return _dates(cells.first, forms, Fill(Strategy.MEDIAN, indicator=indicator), counts)
    chosen = _categories(different, cells.records)
    numeric_like = [text for text in cells.different if looks_numeric(text)]
    if chosen.steps is None and len(numeric_like) >= _MOSTLY * different and of_one_form(numeric_like):
        raise ConfigurationError(
            f"{where} has {different} different texts in {cells.records} training records, such as "
            f"'{cells.first.iloc[0]}', and would be left out; if these are numbers or dates, write them in one form or "
            'give numbers: {decimal: ","} or date: {format: "%d.%m.%Y"}; else give drop or one_hot'
        )
    return chosen


def _numbers(cells: "pd.Series[Any]", every: set[str], decimal: str, where: str) -> "tuple[NDArray[np.float64], str]":
    """(N,) the numbers of the texts, NaN for others; and the decimal mark, empty for numbers of Python alone."""
    plain = as_numbers(cells).to_numpy(dtype=np.float64, na_value=np.nan)
    written = {text for text in every if not (text.isascii() and text.isdecimal())}
    texts = every if decimal or "." in "".join(every) else written
    if not any(looks_numeric(text) for text in texts):
        return plain, ""
    mark = decimal or decimal_of(sorted(every), where)  # a set has another order in each process
    if mark == "." and _are_plain(sorted(every)):
        return plain, ""
    return written_numbers(cells, mark), mark


def _are_plain(texts: list[str]) -> bool:
    """Whether Python reads the same numbers as people do who write a decimal point."""
    import pandas as pd

    column = pd.Series(texts, dtype=str)
    plain = as_numbers(column).to_numpy(dtype=np.float64, na_value=np.nan)
    return np.array_equal(plain, written_numbers(column, "."), equal_nan=True)


def _written(cells: _Cells, numeric: "NDArray[np.bool_]", decimal: str, indicator: bool) -> Chosen:
    """Steps for numbers among which there may be words, which are missing."""
    notes = []
    texts = cells.texts
    if decimal:
        strange = texts[numeric & as_numbers(texts).isna().to_numpy()]
        notes += [f"such as '{text}'" for text in strange.iloc[:1]]
    if numeric.all():
        notes += [note] if not decimal and (note := _perhaps_codes(as_numbers(texts), cells.records)) else []
        return Chosen(
            ColumnKind.NUMBERS, [ReadNumbers(decimal=decimal), Fill(Strategy.MEDIAN, indicator=indicator)],
            "; ".join(notes),
        )  # fmt: skip
    words = texts[~numeric].repeat(cells.counts[~numeric].tolist())
    examples = " and ".join(f"'{word}'" for word in words.value_counts().index[:3])
    notes.append(f"{len(words)} texts such as {examples} are missing")
    steps = [ReadNumbers(Texts.WORDS, decimal), Fill(Strategy.MEDIAN, indicator=True)]
    return Chosen(ColumnKind.MIXED, steps, "; ".join(notes))


def _dates(column: "pd.Series[Any]", forms: Sequence[str], median: Fill, counts: "NDArray[np.int64] | int") -> Chosen:
    """Steps for dates, of which each cell stands for so many records."""
    usual = tuple(DateParts().parts)
    if len(forms) > 1:  # the step refuses them and names both
        return Chosen(ColumnKind.DATE, [DateParts(), median])
    parts = (*usual, DatePart.HOUR) if has_times(column, forms[0]) else usual
    wrong = dates_of(column, forms[0]).isna().to_numpy()
    if not wrong.any():
        return Chosen(ColumnKind.DATE, [DateParts(parts, forms[0]), median])
    told = f"{(wrong * counts).sum()} texts such as '{column[wrong].iloc[0]}' are missing"
    steps = [DateParts(parts, forms[0], text=Texts.MISSING), Fill(Strategy.MEDIAN, indicator=True)]
    return Chosen(ColumnKind.DATE, steps, told)


def _categories(different: int, records: int) -> Chosen:
    missing = FillText(Strategy.CONSTANT, _MISSING)
    if different > max(MOST, records / 2):
        return Chosen(ColumnKind.IDENTIFIER, None, f"left out: {different} different texts in {records} records")
    if different > MOST:
        told = f"{MOST - 1} of {different} texts have a column, see one_hot: {{most: {MOST}}}"
        return Chosen(ColumnKind.CATEGORIES, [missing, OneHotCategories(most=MOST)], told)
    return Chosen(ColumnKind.CATEGORIES, [missing, OneHotCategories()])


def _perhaps_codes(numbers: "pd.Series[Any]", records: int) -> str:
    """What to tell about numbers of so many records: that a few whole ones come often; empty for others."""
    few = numbers.iloc[:10_000].unique()
    if not (2 < len(few) <= MOST) or (few != few.round()).any():
        return ""
    different = numbers.nunique()
    if different > MOST or records < _TIMES_EACH * different:
        return ""
    return f"only {different} different numbers: if they are codes, give one_hot"
