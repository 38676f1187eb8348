"""Text files with one record a line: rows, column names, numbers, and the errors for wrong fields."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

Row = tuple[int, list[str]]
"""The number of a row's last line in its file, counted from 1, and the fields of the row."""


def read_rows(path: Path, separator: str, source: str) -> list[Row]:
    """The rows of the file without blank lines, and their fields without surrounding blanks.

    Args:
        path: the file, UTF-8.
        separator: the character between two fields.
        source: where to get the file, for the error.

    Raises:
        ConfigurationError: if the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
            rows = [(reader.line_num, [field.strip() for field in fields]) for fields in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); fetch it again from {source}") from error
    return [(line, fields) for line, fields in rows if fields not in ([], [""])]


def read_names(
    path: Path,
    rows: Sequence[Row],
    known: Sequence[str],
    within: int,
    source: str,
    others: Mapping[str, str] | None = None,
) -> tuple[list[str], Sequence[Row]]:
    """The names of the columns and the rows below them.

    The names are in the last of the first rows that holds a known name.

    Args:
        path: the file, for the error.
        rows: all rows of the file.
        known: names of columns; a row of names holds at least one of them.
        within: how many rows at the top may hold names.
        source: where to get the file, for the error.
        others: other name -> known name.

    Raises:
        ConfigurationError: if no such row is there.
    """
    renamed = [[(others or {}).get(field, field) for field in fields] for _, fields in rows[:within]]
    heads = [i for i, names in enumerate(renamed) if not {*names}.isdisjoint(known)]
    if not heads:
        where = "its first row" if within == 1 else f"its first {within} rows"
        raise ConfigurationError(
            f"{path} has no column names such as {', '.join(known[:3])} in {where}; check the separator between the "
            f"fields, or fetch the file again from {source}"
        )
    return renamed[heads[-1]], rows[heads[-1] + 1 :]


def check_columns(
    path: Path,
    names: Sequence[str],
    wanted: Sequence[str],
    source: str,
    codes: Mapping[str, str] | None = None,
) -> None:
    """Accept the wanted columns, each once and in any order, and no others.

    Args:
        path: the file, for the error.
        names: the names of its columns.
        wanted: the names of the data set's columns.
        source: where to get the file, for the error.
        codes: name -> another name of the same column, for the error.

    Raises:
        ConfigurationError: for missing, unknown and repeated columns.
    """
    counts = Counter(names)
    faults = {
        "missing": [
            f"{name} ({codes[name]})" if codes and name in codes else name for name in wanted if not counts[name]
        ],
        "unknown": [name or "a column without a name" for name in counts if name not in wanted],
        "more than once": [name for name in wanted if counts[name] > 1],
    }
    if told := [f"{what}: {', '.join(which)}" for what, which in faults.items() if which]:
        raise ConfigurationError(
            f"{path} has {len(names)} columns that are not the {len(wanted)} columns of this data set "
            f"({'; '.join(told)}); correct the columns or fetch the file again from {source}"
        )


def as_table(
    path: Path, rows: Sequence[Row], names: Sequence[str], expected: int | None, source: str
) -> "pd.DataFrame":
    """The fields of the rows as text, in columns with these names; the index is the line, counted from 0.

    Raises:
        ConfigurationError: for a number of records that is not the expected one (None: any number), and for rows that
            do not have a field for each name.
    """
    import pandas as pd  # 0.5 s, where it is used

    check_count(path, len(rows), expected, source)
    if wrong := [(line, fields) for line, fields in rows if len(fields) != len(names)]:
        line, fields = wrong[0]
        start = fields[0][:20] + ("..." if len(fields[0]) > 20 else "")
        raise ConfigurationError(
            f"{len(wrong)} rows of {path} do not have {len(names)} fields, first row {line} with {len(fields)} (the "
            f"first is '{start}'); fetch it again from {source}"
        )
    return pd.DataFrame([fields for _, fields in rows], [line - 1 for line, _ in rows], list(names), dtype=str)


def check_count(path: Path, records: int, expected: int | None, source: str) -> None:
    """Accept the expected number of records; None: any number from 1.

    Raises:
        ConfigurationError: for another number.
    """
    if not records or records != (expected or records):
        raise ConfigurationError(
            f"{path} holds {records} records instead of {expected or 'at least one'}; fetch it again from {source}, or "
            "set expected_records to the number of your own file"
        )


def check_classes(path: Path, labels: "pd.Series[int]", source: str) -> None:
    """Accept labels of two classes.

    Raises:
        ConfigurationError: for another number of classes.
    """
    if (classes := labels.nunique()) != 2:
        raise ConfigurationError(
            f"{path} holds {len(labels)} records of {classes} class(es) instead of 2; fetch it again from {source}"
        )


def numbers(path: Path, column: "pd.Series[str]", fix: str) -> "NDArray[np.float64]":
    """The column as numbers.

    Args:
        path: the file, for the error.
        column: fields as text; its index is the line, counted from 0.
        fix: what to do about other texts, for the error.

    Raises:
        ConfigurationError: for fields that are not numbers.
    """
    import pandas as pd

    values: NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    refuse(path, str(column.name), column[np.isnan(values)], "are not numbers", fix)
    return values


def number_matrix(path: Path, cells: "pd.DataFrame", fix: str) -> "NDArray[np.float64]":
    """(N, F) the columns as numbers; as ``numbers``, for many columns in one call."""
    import pandas as pd

    # 755 calls, one for each column, would take five times as long
    flat = pd.to_numeric(cells.to_numpy(dtype=object).ravel(), errors="coerce")
    values: NDArray[np.float64] = flat.astype(np.float64).reshape(cells.shape)
    for _, column in np.argwhere(np.isnan(values))[:1]:
        numbers(path, cells[str(cells.columns[column])], fix)
    return values


def refuse(path: Path, name: str, wrong: "pd.Series[str]", what: str, fix: str) -> None:
    """Accept a column without wrong values.

    Args:
        path: the file, for the error.
        name: the name of the column.
        wrong: the wrong values; their index is the line, counted from 0.
        what: what is wrong with them: ``are not numbers``.
        fix: what to do about them.

    Raises:
        ConfigurationError: if there are wrong values; it says how many and shows the first.
    """
    if len(wrong):
        raise ConfigurationError(
            f"{len(wrong)} values of column '{name}' of {path} {what}, first '{wrong.iloc[0]}' in row "
            f"{int(wrong.index[0]) + 1}; {fix}"
        )
