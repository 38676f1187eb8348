"""Law: a table whose columns stay on the disk has the columns and ids of the table in memory."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_vfl.datamodules.records import table_files
from lightning_vfl.datamodules.records.party_tables import CSV, CSVForm, canonical_ids, csv_forms
from lightning_vfl.datamodules.records.table_files import TableSource
from lightning_vfl.errors import ConfigurationError

N = 40
COLUMNS = {
    "whole": list(range(N)),
    "fractions": [i / 7 for i in range(N)],
    "fractions later": [i if i < 20 else i + 0.5 for i in range(N)],
    "missing later": [None if i > 30 else i for i in range(N)],
    "nothing": [None] * N,
    "truths": [i % 2 == 0 for i in range(N)],
    "truths, missing later": [True if i < 30 else None for i in range(N)],
    "truths, missing first": [None if i < 10 else True for i in range(N)],
    "truths and numbers": [True if i < 20 else 3 for i in range(N)],
    "texts": ["ab"[i % 2] for i in range(N)],
    "texts later": [i if i < 25 else "x" for i in range(N)],
    "texts after nothing": [None if i < 20 else "q" for i in range(N)],
    "a.b": [2**60 + i for i in range(N)],
    "codes": ["007"] * N,
}


@pytest.mark.parametrize(
    ("ids", "text"), [("numbers", ("codes",)), ("texts", ("codes",)), ("texts later", ("codes",)), ("numbers", None)]
)
def test_columns_and_ids_are_those_of_the_whole_table(ids, text, tmp_path):
    order = np.random.default_rng(0).permutation(N)
    named = {"numbers": order, "texts": [f"{i:03d}" for i in order], "texts later": [*range(30), *["a", "b"] * 5]}
    named["texts later"] = [f"{i}{n}" if isinstance(i, str) else i for n, i in enumerate(named["texts later"])]
    path = tmp_path / "t.csv"
    pd.DataFrame({"id": named[ids], **COLUMNS}).to_csv(path, index=False)
    whole = TableSource(path, "bank", "id", CSV, text).read()
    for rows in (7, 1000):
        stored = TableSource(path, "bank", "id", CSV, text).store(tmp_path, rows)
        assert stored.index.equals(whole.index)
        assert list(stored) == list(whole)
        for name in whole:
            pd.testing.assert_series_equal(stored[name].fillna(np.nan), whole[name].fillna(np.nan), check_exact=True)
        back = stored.in_order(np.arange(N)[::-1]).in_order(np.arange(5))
        pd.testing.assert_series_equal(back["whole"], whole["whole"][::-1][:5])  # with its ids


def test_a_parquet_file_is_read_column_by_column_where_it_is(tmp_path):
    table = pd.DataFrame({"id": ["b", "a"], "day": pd.to_datetime(["2020-01-02", "2021-05-06"]), "x": [1, None]})
    table["x"] = table["x"].astype("Int64")
    table.to_parquet(tmp_path / "t.parquet")
    whole = TableSource(tmp_path / "t.parquet", "bank", "id").read()
    stored = TableSource(tmp_path / "t.parquet", "bank", "id").store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    for name in whole:
        pd.testing.assert_series_equal(stored[name], whole[name])


@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize(("ending", "lacking"), [("3,4,5\n", 0), ("3,4", 1), ("3\n", 2), ("3,4\n5\n6,7,8", 3), ("", 0)])
def test_fields_that_rows_lack_are_told_and_read_as_missing(ending, lacking, separator, tmp_path):
    path = tmp_path / "t.csv"
    text = 'id,x,y\n1,2,"""3"""\n\n2,,\n' + ending
    path.write_text(text.replace(",", separator), newline="\r\n")
    source = TableSource(path, "bank", "id", CSVForm(separator))
    for read in (source.read, lambda: source.store(tmp_path)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            table = read()
        said = [str(one.message) for one in caught if "fields less" in str(one.message)]
        assert len(said) == (lacking > 0)
        assert not said or f"t.csv of party 'bank' have {lacking} fields less than the header" in said[0]
        assert int(table["x"].isna().sum() + table["y"].isna().sum()) == 2 + lacking


@pytest.mark.parametrize("text", ["id,x\n1,2\n1,3\n", "x\n1\n", "id,x\n", "", "id,x\n1,2,3\n", "id,x\n1.5,2\n"])
def test_a_bad_file_is_refused_as_in_memory(text, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text)
    told = []
    source = TableSource(path, "bank", "id")
    for read in (source.read, lambda: source.store(tmp_path)):
        with pytest.raises(ConfigurationError) as error:
            read()
        told.append(str(error.value))
    assert told[0] == told[1]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_blanks_in_front_of_a_field_are_no_part_of_it(separator, place, tmp_path, monkeypatch):
    fields = [["id", "x", "city"], ["1", "2", "New York"], ["3", "", "Rome"]]
    (tmp_path / "plain.csv").write_text("\n".join(map(separator.join, fields)) + "\n")
    spaced = [[*row] for row in fields]
    spaced[2][place] = f" {spaced[2][place]}"
    (tmp_path / "spaced.csv").write_text("\r\n".join(map(separator.join, spaced)))
    form = CSVForm(separator)
    expected = pd.read_csv(tmp_path / "plain.csv", sep=separator, index_col="id")
    for size in (1, 2, 7, 1 << 22):
        monkeypatch.setattr(table_files, "_BYTES", size)
        for name in ("plain", "spaced"):
            table = TableSource(tmp_path / f"{name}.csv", "bank", "id", form).read()
            pd.testing.assert_frame_equal(table, expected, check_names=False)


@pytest.mark.parametrize("given", [",", ";", "\t", "|"])
@pytest.mark.parametrize("written", [",", ";", "\t", "|"])
@pytest.mark.parametrize("column", ["id", "patient"])
def test_the_separator_of_a_file_that_is_read_with_another_one_is_named(written, given, column, tmp_path):
    other = ";" if written == "," else ","  # as in numbers such as 2,5
    rows = [["patient", "crp"], ["0001", f"2{other}5"], ["0002", "3"]]
    (tmp_path / "a.csv").write_text("\n".join(map(written.join, rows)))
    source = TableSource(tmp_path / "a.csv", "bank", column, csv_forms(["bank"], given, "utf-8")["bank"])
    for read in (source.read, lambda: source.store(tmp_path)):
        if given == written and column == "patient":
            assert len(read()) == 2
            continue
        with pytest.raises(ConfigurationError) as error:
            read()
        fix = "correct id_column or separator" if given == written else f"give separator {written!r}"
        assert str(error.value).endswith(f"; {fix}")


def test_a_tab_may_be_written_with_a_backslash():
    assert csv_forms(["bank", "shop"], {"bank": r"\t"}, "utf-8") == {"bank": CSVForm("\t"), "shop": CSV}
    with pytest.raises(ConfigurationError, match=r"separator must be one character, such as .* got ', '"):
        csv_forms(["bank"], ", ", "utf-8")


_WHOLE = st.integers(-(2**70), 2**70).map(str) | st.from_regex(r"[-+]?[0-9]{1,20}", fullmatch=True)


@example(["1000000000000000000"])
@example(["-1000000000000000000"])
@example([str(-(2**63))])
@given(st.lists(_WHOLE | st.from_regex(r"[0-9a-z .]{1,4}", fullmatch=True), min_size=1, max_size=5))
def test_ids_are_numbers_if_each_is_written_as_one_usually_is(texts):
    found = canonical_ids(pd.Series(texts, dtype=str))
    usual = all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text.strip()) for text in texts)
    assert (found.dtype == np.int64) == usual
    if usual:
        assert found.tolist() == [int(text) for text in texts]
