"""Read dates as numbers: year, month, day of the week and so on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from lightning_vfl.errors import ConfigurationError, nearest

from .column_steps import Reader
from .number_steps import Texts, refuse_cells

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_ISO = "ISO8601"
_DATES: tuple[str, ...] = ("%d.%m.%Y", "%Y/%m/%d", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
_DATES += ("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y")  # the year is never first if it has two digits
_NAMED: tuple[str, ...] = ("%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")
_FORMATS, _NAMED_FORMATS = (
    tuple(f"{date}{time}" for date in dates for time in ("", " %H:%M", " %H:%M:%S")) for dates in (_DATES, _NAMED)
)
_LIKE_A_DATE = re.compile(
    r"\s*(\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{8}T\d{2,6}"
    r"|\d{1,2}[- ][A-Za-z]{3,9}[- ]\d{2}|[A-Za-z]{3,9} \d{1,2}, \d{4})"
)
_OFFSET = r"(?::|T\d{0,4})\d{2}(?:\.\d+)?\s*([-+])(\d{2}):?(\d{2})?\s*$"  # behind a time of the day
_MOSTLY = 0.8  # share of the texts that a format must fit
_SAMPLE = 200  # texts by which formats are tried first


class DatePart(StrEnum):
    """What is read of a date: ``days`` are those since 1970, ``weekday`` is 0 on Monday, ``hour`` has fractions."""

    YEAR = "year"
    QUARTER = "quarter"
    MONTH = "month"
    DAY = "day"
    WEEKDAY = "weekday"
    DAY_OF_YEAR = "day_of_year"
    HOUR = "hour"
    DAYS = "days"


@dataclass(frozen=True)
class DateParts(Reader):
    """One column for each part of a date, of the clock with which it was written: the hour of 09:30+02:00 is 9.5.

    Args:
        parts: the parts.
        format: as of ``datetime.strptime``, or ``ISO8601``; empty: found in the training rows.
        found: the format that is used; empty: the file has dates, not texts.
        text: what to do with cells that are no dates of the format: ``error`` or ``missing``.
    """

    word: ClassVar[str] = "date"
    main: ClassVar[str] = "parts"
    settings: ClassVar[tuple[str, ...]] = ("parts", "format", "text")
    parts: Sequence[DatePart] = (DatePart.DAYS, DatePart.MONTH, DatePart.WEEKDAY)
    format: str = ""
    found: str = ""
    text: Texts = Texts.ERROR

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = (self.parts,) if isinstance(self.parts, str) else self.parts
        if not isinstance(given, Sequence) or not given:
            raise ConfigurationError(f"date needs a list of parts, such as [year, month]; got {self.parts!r}")
        for part in given:
            if part not in list(DatePart):
                raise ConfigurationError(f"date has no part '{part}'; {nearest(str(part), list(DatePart))}")
        object.__setattr__(self, "parts", tuple(DatePart(part) for part in given))

    def fit(self, column: "pd.Series[Any]", party: str) -> Self:
        if self.format or _holds_dates(column):
            return replace(self, found=self.format)
        fits = formats_of(column)
        if not fits:
            raise ConfigurationError(
                f"the dates in column '{column.name}' of party '{party}' are in no known form or in several, first "
                f"'{column.dropna().iloc[:1].to_list()}'; write them as 2024-12-31, or give date: "
                '{format: "%d.%m.%Y"}'
            )
        if len(fits) > 1:
            raise ConfigurationError(
                f"the dates in column '{column.name}' of party '{party}' can be read as {' and as '.join(fits)}; "
                f'give one of them, as date: {{format: "{fits[0]}"}}'
            )
        return replace(self, found=fits[0])

    def names(self, column: str) -> tuple[str, ...]:
        return tuple(f"{column}.{part}" for part in self.parts)

    def dates(self, column: "pd.Series[Any]", party: str) -> "pd.Series[pd.Timestamp]":
        """The dates in UTC, NaT for missing cells.

        Raises:
            ConfigurationError: for cells that are not of the form that was found.
        """
        dates = dates_of(column, self.found)
        wrong = (dates.isna() & column.notna()).to_numpy()
        span = " and of the years 1678 to 2261" if dates.dt.unit == "ns" else ""  # pandas 2, or parts of microseconds
        if self.text is Texts.ERROR:
            told = f"are no dates of the form {self.found or _ISO}{span}"
            refuse_cells(column, wrong, party, told, "correct them, or use date: {text: missing}")
        return dates

    def read(self, column: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        import pandas as pd

        dates = _on_its_clock(self.dates(column, party), column)
        epoch = pd.Timestamp("1970-01-01", tz="UTC")  # not in nanoseconds, which end in 2262
        read: dict[DatePart, Any] = {
            DatePart.WEEKDAY: lambda: dates.dt.day_of_week,
            DatePart.HOUR: lambda: dates.dt.hour + dates.dt.minute / 60,
            DatePart.DAYS: lambda: (dates.dt.floor("D") - epoch) / pd.Timedelta(days=1),
        }
        columns = [read[part]() if part in read else getattr(dates.dt, str(part)) for part in self.parts]
        return np.column_stack([one.to_numpy(dtype=np.float64, na_value=np.nan) for one in columns])

    def describe(self) -> str:
        found = f" ({self.found})" if self.found else ""
        return ", ".join(self.parts) + found + ("" if self.text is Texts.ERROR else ", other text is missing")


def formats_of(column: "pd.Series[Any]") -> list[str]:
    """The formats in which most texts of the column are dates, at least 80 %; empty if it holds other texts or none.

    Texts without a digit and dates of zeros do not count. Several formats only if they fit the same number of texts.

    Examples:
        >>> import pandas as pd
        >>> formats_of(pd.Series(["01.02.2024", "31.12.2024", "unknown"])), formats_of(pd.Series(["A-17"]))
        (['%d.%m.%Y'], [])
    """
    import pandas as pd

    every = pd.Series(column.dropna().astype(str).unique())
    texts = every[every.str.contains("[1-9]")]
    if not len(texts) or texts.head(_SAMPLE).str.match(_LIKE_A_DATE).mean() < _MOSTLY:
        return []
    sample = texts.iloc[:: max(1, len(texts) // _SAMPLE)]
    named = texts.head(_SAMPLE).str.contains("[A-Za-z]{3}").mean() >= _MOSTLY
    forms = _NAMED_FORMATS if named else (_ISO, *_FORMATS)
    likely = [one for one in forms if dates_of(sample, one).notna().any()]
    fitting = {one: int(dates_of(texts, one).notna().sum()) for one in likely}
    most = max(fitting.values(), default=0)
    fits = [one for one, count in fitting.items() if count == most >= _MOSTLY * len(texts)]
    return [one for one in fits if "%B" not in one or one.replace("%B", "%b") not in fits]  # May is May in both


def has_times(column: "pd.Series[Any]", form: str) -> bool:
    """Whether dates of this format have times of the day other than midnight."""
    dates = _on_its_clock(dates_of(column, form), column).dropna()
    return bool((dates != dates.dt.floor("D")).any())


def _holds_dates(column: "pd.Series[Any]") -> bool:
    """Whether the file has dates, and not texts."""
    from pandas.api.types import is_datetime64_any_dtype

    return is_datetime64_any_dtype(column)


def _on_its_clock(dates: "pd.Series[pd.Timestamp]", column: "pd.Series[Any]") -> "pd.Series[pd.Timestamp]":
    """What the clock showed where the cells were written, which have an offset or a zone; others stay.

    Args:
        dates: the cells as dates in UTC.
        column: the cells.
    """
    import pandas as pd

    if _holds_dates(column):
        return dates if column.dt.tz is None else column.dt.tz_localize(None).dt.tz_localize("UTC")
    parts = column.astype(str).str.extract(_OFFSET)
    if parts[0].isna().all():
        return dates
    minutes = pd.to_numeric(parts[1]) * 60 + pd.to_numeric(parts[2]).fillna(0.0)
    signed = minutes.where(parts[0] == "+", -minutes).fillna(0.0).to_numpy(dtype=np.int64)
    clock: pd.Series[pd.Timestamp] = dates + pd.Series(signed.astype("timedelta64[m]"), index=dates.index)
    return clock


def dates_of(column: "pd.Series[Any]", form: str) -> "pd.Series[pd.Timestamp]":
    """The dates in UTC; NaT for missing cells and other texts."""
    import pandas as pd

    if _holds_dates(column):
        return pd.to_datetime(column, utc=True)
    texts = column.astype(str).str.strip().where(column.notna())
    return pd.to_datetime(texts, format=form or _ISO, errors="coerce", utc=True)
