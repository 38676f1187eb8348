"""Text files with a record a line, read field by field, and what is said about fields that are wrong."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

Row = tuple[int, list[str]]
"""The line of a file that a row ends in, counted from 1, and its fields."""


def read_rows(path: Path, separator: str, source: str) -> list[Row]:
    """The rows of the file that are not blank, without the blanks around fields.

    Raises:
        ConfigurationError: if the file cannot be read; ``source`` says where to get it.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
            rows = [(reader.line_num, [field.strip() for field in fields]) for fields in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); fetch it again from {source}") from error
    return [(line, fields) for line, fields in rows if fields not in ([], [""])]


def as_table(
    path: Path, rows: Sequence[Row], names: Sequence[str], expected: int | None, source: str
) -> "pd.DataFrame":
    """The fields of the rows as text, in columns of these names; the index is the line, counted from 0.

    Raises:
        ConfigurationError: for another number of records than expected (None: any), and rows of another length.
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
    """Accept the expected number of records; None: any but 0."""
    if not records or records != (expected or records):
        raise ConfigurationError(
            f"{path} holds {records} records instead of {expected or 'at least one'}; fetch it again from {source}, or "
            "set expected_records if that is meant"
        )


def check_classes(path: Path, labels: "pd.Series[int]", source: str) -> None:
    """Accept labels of two classes."""
    if (classes := labels.nunique()) != 2:
        raise ConfigurationError(
            f"{path} holds {len(labels)} records of {classes} class(es) instead of 2; fetch it again from {source}"
        )


def numbers(path: Path, column: "pd.Series[str]", fix: str) -> "NDArray[np.float64]":
    """The column as numbers; a text among them is refused."""
    import pandas as pd

    values: NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    refuse(path, str(column.name), column[np.isnan(values)], "are not numbers", fix)
    return values


def refuse(path: Path, name: str, wrong: "pd.Series[str]", what: str, fix: str) -> None:
    """Nothing, if no value of the column is wrong.

    Raises:
        ConfigurationError: with the number of wrong values and the first of them.
    """
    if len(wrong):
        raise ConfigurationError(
            f"{len(wrong)} values of column '{name}' of {path} {what}, first '{wrong.iloc[0]}' in row "
            f"{int(wrong.index[0]) + 1}; {fix}"
        )
