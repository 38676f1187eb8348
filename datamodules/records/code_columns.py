"""Columns of a CSV file that pandas would read as other numbers: codes such as 007, and 1.234 beside 987."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.limits import TextFile

from .party_tables import CSVForm, csv_options, csv_warnings

if TYPE_CHECKING:
    import pandas as pd

_BYTES, _ROWS, _FIRST = 1 << 24, 1 << 17, 1000


def coded_columns(file: TextFile, form: CSVForm, others: Collection[str]) -> list[str]:
    """The columns of a CSV file that must be read as text.

    They hold digits only, some with a zero in front; or they hold whole numbers from 100 to 999 beside numbers with
    three digits behind a point, which may be thousands. A file whose first rows have columns of this form is read once
    more, as bytes; if a field looks like ``007`` or ``1.234``, also as text.

    Args:
        file: the file.
        form: how a CSV file is written.
        others: columns that are not asked for.
    """
    try:
        with _texts(file, form, nrows=_FIRST) as rows:
            first = _seen(rows)
        asked = {name: forms for name, forms in first.items() if name not in others}
        if not any(forms.of_codes or forms.of_thousands for forms in asked.values()):
            return []
        zero, dotted = _forms_in(file, form)
        asked = {
            name: forms for name, forms in asked.items() if (zero and forms.of_codes) or (dotted and forms.of_thousands)
        }
        if not asked:
            return []
        with _texts(file, form, usecols=asked.__contains__) as chunks:
            whole = _seen(chunks)
    except (ValueError, Warning):  # the reader of the table tells it better
        return []
    return [name for name, forms in whole.items() if forms.codes or forms.thousands]


@contextmanager
def _texts(file: TextFile, form: CSVForm, **more: Any) -> "Iterator[Iterable[pd.DataFrame]]":
    """The rows as text, some at a time."""
    import pandas as pd  # 0.5 s, where it is used

    with (
        csv_warnings(),
        pd.read_csv(file.content(), **csv_options(form), **more, dtype=str, chunksize=_ROWS) as chunks,
    ):
        yield chunks


@dataclass
class _Forms:
    """Which forms the cells of a column have.

    Args:
        of_codes: whether all cells are digits.
        of_thousands: whether all cells are at most three digits, or one to three and three more behind a point.
        zero: whether a cell has a zero in front of other digits.
        hundreds: whether a cell without a point has three digits.
        dotted: whether a cell has a point.
    """

    of_codes: bool = True
    of_thousands: bool = True
    zero: bool = False
    hundreds: bool = False
    dotted: bool = False

    @property
    def codes(self) -> bool:
        """Whether the column holds codes such as 007."""
        return self.of_codes and self.zero

    @property
    def thousands(self) -> bool:
        """Whether numbers such as 1.234 may be thousands."""
        return self.of_thousands and self.hundreds and self.dotted

    def add(self, cells: "pd.Series[str]") -> None:
        """Count further cells, of which none is missing."""
        if self.of_codes:
            self.of_codes = bool(cells.str.fullmatch("[0-9]+").all())
            self.zero |= self.of_codes and bool(cells.str.match("0[0-9]").any())
        if self.of_thousands:
            unsigned = cells.str.lstrip("+-")
            dotted = unsigned.str.fullmatch(r"[1-9][0-9]{0,2}\.[0-9]{3}")
            plain = unsigned.str.fullmatch("[0-9]{1,3}")
            self.of_thousands = bool((dotted | plain).all())
            self.dotted |= bool(dotted.any())
            self.hundreds |= bool(unsigned[plain].str.len().eq(3).any())


def _seen(chunks: "Iterable[pd.DataFrame]") -> dict[str, _Forms]:
    """Column -> the forms of its cells in all chunks."""
    seen: dict[str, _Forms] = {}
    for chunk in chunks:
        for name in map(str, chunk):
            forms = seen.setdefault(name, _Forms())
            if forms.of_codes or forms.of_thousands:
                forms.add(chunk[name].dropna().str.strip())
    return seen


def _forms_in(file: TextFile, form: CSVForm) -> tuple[bool, bool]:
    """Whether a field begins with a zero and another digit, and whether one ends with a point and three digits."""
    if "0.".encode(form.encoding) != b"0.":  # more than a byte a digit: the rows are read as text in any case
        return True, True
    ends = np.frombuffer(b'\n\r" ' + form.separator.encode(form.encoding), np.uint8)
    before = b"\n"
    zero = False
    dotted = False
    content = file.content()
    while True:
        block = content.read(_BYTES)
        text = np.frombuffer(before + (block or b"\n"), np.uint8)  # a file may end without a line break
        digits = (text >= ord("0")) & (text <= ord("9"))
        zeros = np.flatnonzero(text[1:-1] == ord("0")) + 1
        zeros = zeros[digits[zeros + 1]]
        zero = zero or bool(np.isin(text[zeros - 1], ends).any())
        points = np.flatnonzero(text[:-4] == ord("."))
        points = points[digits[points + 1] & digits[points + 2] & digits[points + 3]]
        dotted = dotted or bool(np.isin(text[points + 4], ends).any())
        if not block or (zero and dotted):
            return zero, dotted
        before = text[-5:].tobytes()
