"""A table of predictions has no cell that a spreadsheet computes, and keeps its numbers."""

import csv

import numpy as np
import pandas as pd

from lightning_vfl.trained.predictions import for_spreadsheets, prediction_table, write_predictions

EVIL = ["=a\r=b", '=HYPERLINK("http://x")', "+1+1", "-2+3", "@SUM(A1)", "\tx", "\rx"]


def test_texts_of_users_are_quoted_and_numbers_are_not(tmp_path):
    ids = np.array([*EVIL, "-5", "+4.5e3", "plain"], dtype=object)
    values = np.linspace(-1, 1, len(ids))
    names = ["=no", "-yes"]
    table = prediction_table(ids, values, names)
    write_predictions(table, tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, given, value in zip(rows, ids, values, strict=True):
        assert row["record"] == ("'" + given.replace("\r", "\n") if given in EVIL else given)
        assert float(row["probability_-yes"]) == value
        assert row["decision"] == "'" + names[int(value >= 0.5)]
    for cell in (cell for row in rows for cell in (*row, *row.values())):
        assert cell[0] not in "=@\t\r"
        assert cell[0] not in "+-" or float(cell) is not None


def test_names_of_columns_numbers_missing_values_and_the_given_table_are_safe():
    table = pd.DataFrame({"=a": [-1, -2], "b": ["=x", None], 3: pd.Categorical(["@y", "z"])})
    before = table.copy(deep=True)
    safe = for_spreadsheets(table)
    assert list(safe.columns) == ["'=a", "b", "3"]
    assert safe.iloc[:, 0].tolist() == [-1, -2]
    assert safe["b"].iloc[0] == "'=x"
    assert safe["b"].isna().tolist() == [False, True]
    assert safe["3"].tolist() == ["'@y", "z"]
    pd.testing.assert_frame_equal(table, before)


def test_a_parquet_file_has_the_texts_as_they_are(tmp_path):
    table = pd.DataFrame({"record": EVIL})
    write_predictions(table, tmp_path / "p.parquet")
    assert pd.read_parquet(tmp_path / "p.parquet")["record"].tolist() == EVIL
