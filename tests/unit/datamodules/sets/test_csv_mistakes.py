"""Files that spreadsheets write, and numbers of a wrong unit: the line tells what is true of the file."""

import pytest

from lightning_vfl.datamodules.records.party_tables import CSV
from lightning_vfl.datamodules.records.table_files import read_table, store_table
from lightning_vfl.errors import ConfigurationError

from ..miniature import write_csv
from .test_csv_tables import bank, open_tables, shop


@pytest.fixture
def files(tmp_path):
    return {"bank": write_csv(tmp_path / "bank.csv", bank()), "shop": write_csv(tmp_path / "shop.csv", shop())}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("inf", "are NaN or infinite, first of party 0, column 'income', record 21; impute or remove them"),
        (
            "1e300",
            r"are too large for float32, which ends at 3.4e38 \(the first is 1e\+300\), first of party 0, column",
        ),
        ("-1e39", r"are too large for float32, .* is -1e\+39\).* 'income', record 21; give them in another unit, or"),
    ],
)
def test_numbers_that_cannot_be_used_are_told_apart(files, value, told):
    table = bank()
    table["income"][3] = value
    write_csv(files["bank"], table)
    with pytest.raises(ConfigurationError, match=f"1 feature values of the .* records {told}"):
        open_tables(files)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1", "cp1252"])
@pytest.mark.parametrize("beside", ["in memory", "on disk"])
def test_another_encoding_is_told(tmp_path, encoding, beside):
    path = tmp_path / "bank.csv"
    path.write_text("id,größe\n1,2\n", encoding=encoding)
    readers = {
        "in memory": lambda: read_table(path, "bank", "id", CSV),
        "on disk": lambda: store_table(path, "bank", "id", CSV, (), tmp_path),
    }
    with pytest.raises(
        ConfigurationError,
        match=r"bank\.csv of party 'bank' is not UTF-8 text .* or give its encoding",
    ):
        readers[beside]()


def test_utf_8_with_a_mark_is_read(tmp_path):
    path = tmp_path / "bank.csv"
    path.write_text("id,größe\n1,2\n", encoding="utf-8-sig")
    assert read_table(path, "bank", "id", CSV).columns.tolist() == ["größe"]
