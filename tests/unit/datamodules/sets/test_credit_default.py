"""Default of credit card clients from small files in the published formats, against what was written into them."""

import struct
import sys
from typing import Any

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import CreditDefault, Unchanged
from lightning_vfl.errors import ConfigurationError

from ..miniature import credit, write_csv

NAMES = [
    *("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),
    *("BILL_AMT1", "BILL_AMT2", "BILL_AMT3", "BILL_AMT4", "BILL_AMT5", "BILL_AMT6"),
    *("PAY_AMT1", "PAY_AMT2", "PAY_AMT3", "PAY_AMT4", "PAY_AMT5", "PAY_AMT6"),
]
FILES = ("UCI_Credit_Card.csv", "default of credit card clients.csv", "default of credit card clients.xls")
SPLITS = ("train", "val", "test")
SOURCE = "https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients"


def renamed(label: str, names: list[str] = NAMES) -> dict[str, list[Any]]:
    """The clients with the long names of the columns."""
    return dict(zip(["ID", *names, label], credit().values(), strict=True))


def without(*columns: str) -> dict[str, list[Any]]:
    return {name: column for name, column in credit().items() if name not in columns}


def open_data(folder, **settings: Any):
    usual: dict[str, Any] = {"expected_records": 200, "normaliser": Unchanged()}
    data = CreditDefault(data_dir=folder, **usual | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def written() -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of the clients, in the order of their ids."""
    table = np.array(list(credit().values()))
    table = table[:, table[0].argsort()]
    return table[1:-1].T, table[-1]


def check(data):
    """All records of all splits are those of their ids."""
    features, labels = written()
    for name in (*SPLITS, "predict"):
        records = data.records(name)
        np.testing.assert_array_equal(records.features.numpy(), features[records.ids - 1].astype(np.float32))
        np.testing.assert_array_equal(records.labels.numpy(), labels[records.ids - 1])
    assert sorted(np.concatenate([data.records(name).ids for name in SPLITS])) == list(range(1, 201))


@pytest.fixture
def folder(tmp_path):
    write_csv(tmp_path / FILES[0], credit())
    return tmp_path


def test_records_are_those_of_the_file(folder):
    data = open_data(folder)
    check(data)
    assert data.layout.columns == tuple(NAMES)
    assert data.num_classes == 2
    assert data.records("predict").ids.tolist() == data.records("test").ids.tolist()


@pytest.mark.parametrize("file", FILES[:2])
@pytest.mark.parametrize(
    "table",
    [
        renamed("default.payment.next.month"),
        renamed("default payment next month"),
        renamed("Y", ["PAY_1" if name == "PAY_0" else name for name in NAMES]),
        dict(reversed(renamed("default payment next month").items())),
        {f'" {name} "': column for name, column in credit().items()},
        {name: list(map(float, column)) for name, column in credit().items()},
        {"\ufeffID": credit()["ID"]} | without("ID"),
    ],
    ids=["dots", "blanks", "PAY_1", "another order", "quotes", "decimals", "byte order mark"],
)
def test_other_ways_to_say_the_same(tmp_path, file, table):
    write_csv(tmp_path / file, table)
    check(open_data(tmp_path))


def test_the_two_rows_of_names_of_the_spreadsheet(tmp_path):
    path = write_csv(tmp_path / FILES[1], renamed("default payment next month"))
    codes = ",".join(["", *list(credit())[1:]])
    path.write_text(f"{codes}\n{path.read_text()}")
    check(open_data(tmp_path))


def biff(rows: list[list[Any]]) -> bytes:
    """A spreadsheet in the oldest format of ``.xls``: texts, numbers, and truths for True."""

    def record(kind: int, content: bytes) -> bytes:
        return struct.pack("<HH", kind, len(content)) + content

    def cell(row: int, column: int, value: Any) -> bytes:
        place = struct.pack("<HH3x", row, column)
        if value is True:
            return record(0x0005, place + b"\x01\x00")
        if isinstance(value, str):
            return record(0x0004, place + bytes([len(value)]) + value.encode())
        return record(0x0003, place + struct.pack("<d", value))

    cells = [cell(i, j, value) for i, row in enumerate(rows) for j, value in enumerate(row) if value != ""]
    return record(0x0009, struct.pack("<HH", 2, 0x10)) + b"".join(cells) + record(0x000A, b"")


def sheet() -> list[list[Any]]:
    table = renamed("default payment next month")
    return [["", *list(credit())[1:]], list(table), *(list(row) for row in zip(*table.values(), strict=True))]


def test_the_spreadsheet(tmp_path):
    pytest.importorskip("xlrd", reason="xlrd, which reads .xls, is not installed")
    (tmp_path / FILES[2]).write_bytes(biff(sheet()))
    check(open_data(tmp_path))


def test_what_is_no_number_in_the_spreadsheet(tmp_path):
    pytest.importorskip("xlrd", reason="xlrd, which reads .xls, is not installed")
    rows = sheet()
    rows[4][3] = True
    (tmp_path / FILES[2]).write_bytes(biff(rows))
    with pytest.raises(ConfigurationError, match=r"1 values of column 'EDUCATION' .* first 'neither text .* in row 5;"):
        open_data(tmp_path)


def test_a_damaged_spreadsheet(tmp_path):
    pytest.importorskip("xlrd", reason="xlrd, which reads .xls, is not installed")
    (tmp_path / FILES[2]).write_bytes(b"<html>404</html>")
    with pytest.raises(ConfigurationError, match=r"clients.xls cannot be read \(XLRDError: .*\); fetch it again from"):
        open_data(tmp_path)


def test_the_spreadsheet_without_its_reader(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xlrd", None)
    (tmp_path / FILES[2]).write_bytes(biff(sheet()))
    with pytest.raises(ConfigurationError) as error:
        open_data(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / FILES[2]} is an .xls file, and xlrd, which reads such files, is not installed; pip install "
        "xlrd, or save the sheet as 'default of credit card clients.csv' in the same folder"
    )


def test_the_first_of_several_files_is_read(folder, monkeypatch):
    (folder / FILES[1]).write_text("not looked at")
    said = []
    monkeypatch.setattr("lightning_vfl.datamodules.sets.one_table.rank_zero_info", said.append)
    open_data(folder)
    assert said == ["CreditDefault: 200 records of UCI_Credit_Card.csv, 40 of them (20.0%) with a default"]


def test_eleven_parties_by_array_split(folder):
    data = open_data(folder)
    records = data.records("test")
    features = written()[0][records.ids - 1]
    parts = np.array_split(np.arange(23), 11)
    rows = records.rows(torch.arange(len(records)))
    assert data.party_shapes == ((3,), *[(2,)] * 10)
    for own, columns in zip(rows, parts, strict=True):
        np.testing.assert_array_equal(own.numpy(), features[:, columns].astype(np.float32))


def test_no_file(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        CreditDefault(data_dir=tmp_path).setup("fit")
    assert str(error.value) == (
        f"{tmp_path} holds no data of CreditDefault; put '{FILES[0]}' or '{FILES[1]}' or '{FILES[2]}' from {SOURCE} "
        "there, or name another folder with data_dir or LIGHTNING_VFL_DATA"
    )


def change(column: str, **values: object) -> dict[str, list[Any]]:
    """The clients with some values (r3=... is the record 3 from 0) of a column replaced."""
    table = credit()
    for row, value in values.items():
        table[column][int(row[1:])] = value
    return table


REFUSALS = {
    "a column missing": (without("X5"), r"has 24 columns .* \(missing: AGE \(X5\)\); correct the columns or fetch the"),
    "no names": ({str(i): column for i, column in enumerate(credit().values())}, "has no column names such as"),
    "text": (
        change("X4", r3="married", r7="?"),
        r"2 values of column 'MARRIAGE' of .* are not numbers, first 'married' in row 5; correct or remove",
    ),
    "infinite": (change("X1", r0="inf"), "1 feature values of the .* column 'LIMIT_BAL', record 1; impute"),
    "another class": (
        change("Y", r1=2, r2=-1),
        "2 values of column 'default payment next month' of .* are neither 0 nor 1, first '2' in row 3; write 1 "
        "for a record",
    ),
    "no label": (
        change("Y", r1=None),
        "1 values of column 'default payment next month' .* are neither 0 nor 1, first ''",
    ),
    "duplicate ids": (
        change("ID", r1=1, r2=1),
        "2 values of column 'ID' of .* are duplicates, first '1' in row 3; keep",
    ),
    "ids are fractions": (
        change("ID", r1=0.5),
        "1 values of column 'ID' of .* are not whole numbers of 53 bits, first",
    ),
    "ids are huge": (
        change("ID", r1=2**53),
        "1 values of column 'ID' of .* are not whole numbers of 53 bits, first '9",
    ),
    "ids are infinite": (change("ID", r1="inf"), "1 values of column 'ID' of .* are not whole numbers of 53 bits"),
    "ids are text": (change("ID", r1="a1"), "1 values of column 'ID' of .* are not numbers, first 'a1' in row 3"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_bad_files_are_refused(tmp_path, refusal):
    table, message = REFUSALS[refusal]
    path = write_csv(tmp_path / FILES[0], table)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(path) in str(error.value) or refusal in ("infinite", "one default")


def test_a_file_cut_short_within_a_record(folder):
    path = folder / FILES[0]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:151]) + ",".join(lines[151].split(",")[:9]))  # ID, X1, ..., X8
    with pytest.raises(ConfigurationError, match="holds 151 records instead of 30000; fetch it again"):
        CreditDefault(data_dir=folder).setup("fit")
    with pytest.raises(ConfigurationError, match=r"1 rows of .* do not have 25 fields, first row 152 with 9"):
        open_data(folder, expected_records=None)
