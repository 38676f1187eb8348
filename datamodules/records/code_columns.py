"""Columns of a CSV file that pandas would read as other numbers: codes such as 007, and 1.234 beside 987."""

from collections.abc import Collection, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.limits import unpacked

from .party_tables import PARQUET, csv_options, csv_warnings

if TYPE_CHECKING:
    import pandas as pd

_BYTES, _ROWS, _FIRST = 1 << 24, 1 << 17, 1000


def coded_columns(path: Path, separator: str, others: Collection[str]) -> list[str]:
    """The columns of a CSV file that must be read as text; empty for Parquet.

    They hold digits only, some with a zero in front; or they hold, in the first 1,000 rows, whole numbers from 100 to
    999 beside numbers with three digits behind a point, which may be thousands. Only a file with columns of digits is
    read once more, as bytes; if a field begins with a zero, also as text.

    Args:
        path: the file.
        separator: between its fields.
        others: columns that are not asked for.
    """
    if path.suffix in PARQUET or not path.is_file():
        return []
    try:
        first = _text(path, separator, nrows=_FIRST)
        thousands = [name for name in map(str, first) if name not in others and _perhaps_thousands(first[name])]
        found = _joined([first]).keys() - others
        if not found or not _has_leading_zero(path, separator):
            return thousands
        digits = _digits(path, separator, usecols=found.__contains__)
    except (ValueError, Warning):  # the reader of the table tells it better
        return []
    return [name for name, zeros in digits.items() if zeros] + thousands


def _text(path: Path, separator: str, nrows: int) -> "pd.DataFrame":
    """The first rows, as text."""
    import pandas as pd  # 0.5 s, where it is used

    with csv_warnings(), unpacked(path) as content:
        table: pd.DataFrame = pd.read_csv(content, **csv_options(separator), dtype=str, nrows=nrows)
        return table


def _perhaps_thousands(column: "pd.Series[Any]") -> bool:
    """Whether the cells are numbers below 1,000, some from 100 without a point, some with three digits behind one."""
    cells = column.dropna().str.strip().str.lstrip("+-")
    dotted = cells.str.fullmatch(r"[1-9][0-9]{0,2}\.[0-9]{3}")
    plain = cells.str.fullmatch("[0-9]{1,3}")
    return bool(dotted.any() and (dotted | plain).all() and cells[plain].str.len().eq(3).any())


def _digits(path: Path, separator: str, **more: Any) -> dict[str, bool]:
    """The columns that hold digits only -> whether some cells begin with a zero and another digit."""
    import pandas as pd  # 0.5 s, where it is used

    with csv_warnings(), unpacked(path) as content:
        options = {**csv_options(separator), **more}
        with pd.read_csv(content, **options, dtype=str, chunksize=_ROWS) as chunks:
            return _joined(chunks)


def _joined(chunks: "Iterable[pd.DataFrame]") -> dict[str, bool]:
    zeros: dict[str, bool] = {}
    others: set[str] = set()
    for chunk in chunks:
        for name in (name for name in map(str, chunk) if name not in others):
            cells = chunk[name].dropna().str.strip()
            if cells.str.fullmatch("[0-9]+").all():
                zeros[name] = zeros.get(name, False) or bool(cells.str.match("0[0-9]").any())
            else:
                others.add(name)
    return {name: some for name, some in zeros.items() if name not in others}


def _has_leading_zero(path: Path, separator: str) -> bool:
    """Whether a field begins with a zero and another digit."""
    before = b"\n"
    with ExitStack() as opened:
        content = opened.enter_context(unpacked(path))
        if isinstance(content, Path):
            content = opened.enter_context(content.open("rb"))
        while block := content.read(_BYTES):
            text = np.frombuffer(before + block, np.uint8)
            zeros = np.flatnonzero(text[1:-1] == ord("0")) + 1
            zeros = zeros[(text[zeros + 1] >= ord("0")) & (text[zeros + 1] <= ord("9"))]
            if np.isin(text[zeros - 1], np.frombuffer(b'\n\r" ' + separator.encode(), np.uint8)).any():
                return True
            before = block[-2:]
    return False
