"""Tables of two classes from small files in their published formats, against pandas, scipy and scikit-learn."""

import struct
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.io import arff
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lightning_vfl import datamodules
from lightning_vfl.datamodules import BankMarketing, CreditDefault, Parkinson, Unchanged
from lightning_vfl.errors import ConfigurationError
from tests.further import further

from ..miniature import (
    ADULT,
    BANK,
    PHISHING,
    PUBLISHED,
    adult,
    adult_text,
    bank,
    credit,
    parkinson,
    phishing,
    write_adult,
    write_bank,
    write_csv,
    write_parkinson,
    write_phishing,
)

SPLITS = ("train", "val", "test")
FILE = {
    "Adult": "adult.data",
    "BankMarketing": "bank-full.csv",
    "CreditDefault": "UCI_Credit_Card.csv",
    "Parkinson": "pd_speech_features.csv",
    "Phishing": "Training Dataset.arff",
}
SHEET = "default of credit card clients"
TABLES = {  # of each file
    "Adult": (adult(420, 5), adult(84, 6)),
    "BankMarketing": (bank(),),
    "CreditDefault": (credit(),),
    "Parkinson": (parkinson(),),
    "Phishing": (phishing(),),
}
LABEL = {
    "Adult": ("income", ">50K"),
    "BankMarketing": ("y", "yes"),
    "CreditDefault": ("Y", 1),
    "Parkinson": ("class", 1),
    "Phishing": ("Result", 1),
}
NO_FEATURES = {
    "Adult": ["fnlwgt", "education-num"],
    "BankMarketing": ["duration"],
    "Parkinson": ["id"],
}
CATEGORICAL = {"Adult": [*ADULT], "BankMarketing": [*BANK]}
CREDIT = [
    *("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),
    *("BILL_AMT1", "BILL_AMT2", "BILL_AMT3", "BILL_AMT4", "BILL_AMT5", "BILL_AMT6"),
    *("PAY_AMT1", "PAY_AMT2", "PAY_AMT3", "PAY_AMT4", "PAY_AMT5", "PAY_AMT6"),
]
UCI = "https://archive.ics.uci.edu/dataset/"
for_all = pytest.mark.parametrize("kind", FILE)
mixed = pytest.mark.parametrize("kind", CATEGORICAL)


def open_data(kind: str, folder: Path, **settings: Any) -> Any:
    usual: dict[str, Any] = {"expected_records": None, "normaliser": Unchanged()}
    data = getattr(datamodules, kind)(data_dir=folder, **usual | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


@cache
def raw(kind: str) -> tuple[pd.DataFrame, ...]:
    """The features of each file under their ids, and the label as 0 or 1."""
    tables = []
    for columns in TABLES[kind]:
        table = pd.DataFrame(columns)
        if kind == "CreditDefault":
            table = table.set_index("ID").sort_index().set_axis([*CREDIT, "Y"], axis=1)
        name, positive = LABEL[kind]
        label = table[name] == positive
        tables.append(table.drop(columns=[name, *NO_FEATURES.get(kind, [])]).assign(label=label))
    return tuple(tables)


def columns_of(kind: str, *names: str) -> list[str]:
    """The columns that these columns of a file, or all of them, become: one for each category, sorted as texts."""
    table = raw(kind)[0]
    return [
        column
        for name in names or [str(name) for name in table if name != "label"]
        for column in (
            [f"{name}={category}" for category in sorted(map(str, {*table[name]}))]
            if name in CATEGORICAL.get(kind, [])
            else [name]
        )
    ]


def features(data: Any, split: str) -> pd.DataFrame:
    """The columns of all parties under their names, and the label."""
    records = data.records(split)
    names = [data.layout.columns[i] for part in data.partitioner.split(data.layout) for i in part.positions]
    rows = torch.cat(records.rows(torch.arange(len(records))), 1)
    return pd.DataFrame(rows.numpy(), records.ids, names).assign(label=records.labels.numpy().astype(np.float32))


def check(kind: str, data: Any, order: list[str] | None = None) -> None:
    """All records of all splits are those of their ids."""
    assert data.layout.columns == tuple(order or columns_of(kind))
    tables = [
        pd.get_dummies(t, columns=CATEGORICAL.get(kind, []), prefix_sep="=").astype(np.float32) for t in raw(kind)
    ]
    for split in (*SPLITS, "predict"):
        got = features(data, split)
        table = tables[0 if split in ("train", "val") else -1]
        np.testing.assert_array_equal(got.to_numpy(), table.loc[got.index, got.columns].to_numpy())
        assert len(got.columns) == len(table.columns)
    assert sorted(i for split in SPLITS for i in data.records(split).ids) == sorted(i for t in tables for i in t.index)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder with the files of a data set; tests do not change them."""

    @cache
    def folder(kind: str) -> Path:
        place: Path = tmp_path_factory.mktemp(kind)
        PUBLISHED[kind][0](place)
        return place

    return folder


PARTIES: dict[str, Any] = {
    "Adult": (
        ("workclass", "occupation", "capital-gain", "capital-loss", "hours-per-week"),
        ("age", "marital-status", "relationship", "race", "sex", "native-country"),
        ("education",),
    ),
    "BankMarketing": (
        ("housing", "loan", "contact", "day", "month", "campaign", "pdays", "previous", "poutcome"),
        ("default", "balance"),
        ("age", "job", "marital", "education"),
    ),
    "CreditDefault": 11,
    "Parkinson": 10,
    "Phishing": 5,
}


@for_all
def test_records_and_parties_are_those_of_the_files_and_the_papers(folders, kind):
    """The groups of vFedSec, and runs of columns as in FedVS and PBM-VFL."""
    data = open_data(kind, folders(kind))
    check(kind, data)
    parties = PARTIES[kind]
    if isinstance(parties, int):
        expected = [own.tolist() for own in np.array_split(columns_of(kind), parties)]
    else:
        expected = [columns_of(kind, *own) for own in parties]
    positions = [part.positions for part in data.partitioner.split(data.layout)]
    assert [[data.layout.columns[i] for i in own] for own in positions] == expected
    assert data.party_shapes == tuple((len(own),) for own in expected)
    classes = {"Adult": ("<=50K", ">50K"), "BankMarketing": ("no", "yes"), "Phishing": (-1, 1)}
    assert (data.num_classes, data.classes) == (2, classes.get(kind, (0, 1)))
    assert {data.records(name).features.dtype for name in SPLITS} == {torch.float32}


def test_scipy_reads_the_same_records_from_arff(folders):
    table, _ = arff.loadarff(folders("Phishing") / FILE["Phishing"])
    for i, column in enumerate(PHISHING):
        np.testing.assert_array_equal(table[column].astype(int), phishing()[column], err_msg=str(i))


# ---- categories


@pytest.mark.parametrize(
    ("kind", "seed"), [("Adult", 0), ("BankMarketing", 0), further("Adult", 1), further("BankMarketing", 1)]
)
def test_scaling_and_categories_equal_scikit_learn_on_the_training_records(folders, kind, seed):
    data = open_data(kind, folders(kind), seed=seed, normaliser=None)
    tables = [table.astype(dict.fromkeys(CATEGORICAL[kind], str)) for table in raw(kind)]
    train = tables[0].loc[data.records("train").ids]
    numbers = [name for name in train.drop(columns="label") if name not in CATEGORICAL[kind]]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(train[CATEGORICAL[kind]])
    scaler = StandardScaler().fit(train[numbers])
    found = zip(CATEGORICAL[kind], encoder.categories_, strict=True)
    categories = [f"{column}={category}" for column, own in found for category in own]
    for split in SPLITS:
        got = features(data, split)
        rows = tables[-1 if split == "test" else 0].loc[got.index]
        np.testing.assert_allclose(got[numbers], scaler.transform(rows[numbers]), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got[categories], encoder.transform(rows[CATEGORICAL[kind]]))


@mixed
def test_a_category_is_a_column_if_a_training_record_has_it_and_else_all_zeros(folders, tmp_path, kind):
    plain = open_data(kind, folders(kind))
    trained, rare = int(plain.records("train").ids[3]), int(plain.records("val").ids[2])
    column = "native-country" if kind == "Adult" else "job"
    tables = [table | {column: [*table[column]]} for table in TABLES[kind]]
    tables[0][column][trained] = "Mu"
    tables[0][column][rare] = "Atlantis"
    if kind == "Adult":
        tables[1][column][3] = "Atlantis"
    (write_adult if kind == "Adult" else write_bank)(tmp_path, *tables)
    data = open_data(kind, tmp_path)
    names = [name for name in data.layout.columns if name.startswith(f"{column}=")]
    assert names == sorted([f"{column}=Mu", *columns_of(kind, column)])
    of_mu = features(data, "train")[f"{column}=Mu"]
    assert of_mu[of_mu == 1].index.tolist() == [trained]
    for split, row in (("val", rare), *((("test", 3),) if kind == "Adult" else ())):
        sums = features(data, split)[names].sum(axis=1)
        assert sums.pop(row) == 0.0
        assert sums.eq(1.0).all()


def test_columns_may_be_dropped_or_categorical(folders, tmp_path):
    def shapes(kind: str, **settings: Any) -> list[int]:
        return [width for (width,) in open_data(kind, folders(kind), **settings).party_shapes]

    assert shapes("Adult") == [27, 63, 16]
    assert shapes("Adult", drop=()) == [28, 63, 17]
    assert shapes("Adult", drop=["education", "fnlwgt", "education-num"]) == [27, 63]
    assert shapes("BankMarketing") == [57, 3, 20]
    assert shapes("BankMarketing", drop=()) == [58, 3, 20]
    assert "duration" in open_data("BankMarketing", folders("BankMarketing"), drop=()).layout.columns
    assert shapes("BankMarketing", drop=["duration", "day", "default", "balance"]) == [26, 20]
    write_bank(tmp_path, bank() | {"campaign": [i % 3 + 1 for i in range(620)]})
    data = open_data("BankMarketing", tmp_path, categorical=[*(name for name in BANK if name != "day"), "campaign"])
    assert data.party_shapes == ((29,), (3,), (20,))
    assert [name for name in data.layout.columns if name.startswith("campaign")] == [f"campaign={i}" for i in (1, 2, 3)]
    days = features(data, "train")["day"]
    assert days.tolist() == raw("BankMarketing")[0]["day"][days.index].tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drop": ["duratoin"]}, "drop names column 'duratoin', which BankMarketing does not have; it has age, job, "),
        ({"categorical": ["y"]}, "categorical names column 'y', which BankMarketing does not have; it has age, job, "),
        ({"drop": list(bank())[:-1]}, "drop names all 16 columns of BankMarketing; keep some"),
    ],
)
def test_columns_that_there_are_not(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        BankMarketing(**settings)


# ---- other ways to say the same


def without(kind: str, *names: str) -> dict[str, list[Any]]:
    return {name: column for name, column in TABLES[kind][0].items() if name not in names}


def clients(label: str, names: list[str] = CREDIT) -> dict[str, list[Any]]:
    """The clients with the long names of the columns."""
    return dict(zip(["ID", *names, label], credit().values(), strict=True))


LONG = clients("default payment next month")
TWO_ROWS = [["", *list(credit())[1:]], list(LONG), *(list(row) for row in zip(*LONG.values(), strict=True))]


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


def spreadsheet(folder: Path, content: bytes) -> None:
    pytest.importorskip("xlrd", reason="xlrd, which reads .xls, is not installed")
    (folder / FILE["CreditDefault"]).unlink(missing_ok=True)
    (folder / f"{SHEET}.xls").write_bytes(content)


def rewrite(kind: str, change: Any, encoding: str = "utf-8") -> Any:
    def write(folder: Path) -> None:
        path = folder / FILE[kind]
        path.write_text(change(path.read_text()), encoding=encoding)

    return write


def sheet_of(table: dict[str, Any]) -> Any:
    """In the second of the possible files."""

    def write(folder: Path) -> None:
        (folder / FILE["CreditDefault"]).unlink()
        write_csv(folder / f"{SHEET}.csv", table)

    return write


def adult_test(*form: str) -> Any:
    return lambda folder: (folder / "adult.test").write_text(adult_text(adult(84, 6), *form))


def body(change: Any) -> Any:
    """What follows the head of the ARFF file."""
    return rewrite("Phishing", lambda text: change(*text.split("@data\n")))


SAME: dict[str, tuple[str, Any]] = {
    "no blanks": ("Adult", adult_test(",", "|1x3 Cross validator\n")),
    "comments": ("Adult", adult_test(", ", "\n| a, comment\n|\n\n", ".")),
    "no comment": ("Adult", adult_test(" ,  ")),
    "blanks and full stops": ("Adult", adult_test(" ,  ", "|1x3 Cross validator\n", ".")),
    "order": ("BankMarketing", lambda folder: write_bank(folder, dict(reversed(bank().items())))),
    "byte order mark": ("BankMarketing", rewrite("BankMarketing", str, "utf-8-sig")),
    "no quotes": ("BankMarketing", rewrite("BankMarketing", lambda t: t.replace('"', "").replace(";", " ; "))),
    "blank lines": ("BankMarketing", rewrite("BankMarketing", lambda t: t.replace("\n", "\n\n") + "  \n")),
    "what is dropped": ("BankMarketing", lambda folder: write_bank(folder, bank() | {"duration": ["long"] * 620})),
    "dots": ("CreditDefault", sheet_of(clients("default.payment.next.month"))),
    "long names": ("CreditDefault", sheet_of(LONG)),
    "PAY_1": ("CreditDefault", sheet_of(clients("Y", ["PAY_1" if name == "PAY_0" else name for name in CREDIT]))),
    "another order": ("CreditDefault", sheet_of(dict(reversed(LONG.items())))),
    "quotes": ("CreditDefault", sheet_of({f'" {name} "': column for name, column in credit().items()})),
    "decimals": ("CreditDefault", sheet_of({name: list(map(float, column)) for name, column in credit().items()})),
    "a mark before the ids": ("CreditDefault", sheet_of({"\ufeffID": credit()["ID"]} | without("CreditDefault", "ID"))),
    "two rows of names": (
        "CreditDefault",
        lambda folder: (folder / FILE["CreditDefault"]).write_text("\n".join(",".join(map(str, r)) for r in TWO_ROWS)),
    ),
    "the spreadsheet": ("CreditDefault", lambda folder: spreadsheet(folder, biff(TWO_ROWS))),
    "another file": ("CreditDefault", lambda folder: (folder / f"{SHEET}.csv").write_text("not looked at")),
    "columns turned": ("Phishing", lambda folder: write_phishing(folder, dict(reversed(phishing().items())))),
    "a hidden file": ("Phishing", lambda folder: (folder / ".old.arff").write_text("not looked at")),
    "a byte order mark": (
        "Phishing",
        rewrite("Phishing", lambda text: "\ufeff" + text.removeprefix("@relation phishing\n\n")),
    ),
    "blanks": ("Phishing", body(lambda head, rows: f"{head}  @data \n" + rows.replace(",", " ,\t "))),
    "lines": ("Phishing", body(lambda head, rows: f"{head}@data\n" + rows.replace("\n", "\n \n\n") + "\n\n")),
    "comments in between": (
        "Phishing",
        body(lambda head, rows: f'% a, "head\n%\n{head}@data\n% 1,1\n' + rows.replace("\n", "\n  % as on line 3\n")),
    ),
    "capitals": ("Phishing", rewrite("Phishing", lambda text: text.replace("@at", "@AT").replace("@d", "@D"))),
    "numeric": ("Phishing", rewrite("Phishing", lambda text: text.replace("{-1,1}", "numeric"))),
    "unix": ("Phishing", rewrite("Phishing", lambda text: text + "\n")),
    "one row of names": ("Parkinson", lambda folder: write_parkinson(folder, groups=False)),
}  # fmt: skip


@pytest.mark.parametrize("way", SAME)
def test_other_ways_to_say_the_same(tmp_path, way):
    kind, change = SAME[way]
    PUBLISHED[kind][0](tmp_path)
    change(tmp_path)
    check(kind, open_data(kind, tmp_path))


def test_the_spreadsheet_without_its_reader(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xlrd", None)
    (tmp_path / f"{SHEET}.xls").write_bytes(biff(TWO_ROWS))
    with pytest.raises(ConfigurationError) as error:
        open_data("CreditDefault", tmp_path)
    assert str(error.value) == (
        f"{tmp_path / SHEET}.xls is an .xls file, and xlrd, which reads such files, is not installed; pip install "
        "xlrd, or save the sheet as 'default of credit card clients.csv' in the same folder"
    )


# ---- people and recordings


def people_of(data: Any, table: dict[str, list[Any]] = TABLES["Parkinson"][0]) -> list[set[Any]]:
    return [{table["id"][row] for row in data.records(name).ids} for name in SPLITS]


def test_a_person_is_in_one_split(folders):
    data = open_data("Parkinson", folders("Parkinson"))
    people = people_of(data)
    assert [len(own) for own in people] == [12, 2, 6]
    assert set.union(*people) == set(range(20))
    assert [len(data.records(name)) for name in SPLITS] == [36, 6, 18]
    # three people in four are ill: 4.5 of 6 for testing
    assert int(data.records("test").labels.sum()) // 3 in (4, 5)
    assert int(data.records("val").labels.sum()) == 3


def test_recordings_need_not_be_neighbours(tmp_path):
    """And people may have any numbers and any number of recordings, and columns any order."""
    order = np.random.Generator(np.random.PCG64(0)).permutation(60)
    shuffled = {name: np.array(column)[order].tolist() for name, column in parkinson().items()}
    shuffled["id"] = [7 * (value // 2) - 40 for value in shuffled["id"]]
    shuffled["class"] = [int(value % 3 > 0) for value in shuffled["id"]]
    write_parkinson(tmp_path, dict(reversed(shuffled.items())), groups=False)
    data = open_data("Parkinson", tmp_path, test_share=0.4, val_share=0.2)
    people = people_of(data, shuffled)
    assert [len(own) for own in people] == [4, 2, 4]
    assert len(set.union(*people)) == 10
    assert [len(data.records(name)) for name in SPLITS] == [24, 12, 24]
    assert data.layout.columns == tuple(reversed(columns_of("Parkinson")))
    records = data.records("test")
    expected = np.array([shuffled[name] for name in data.layout.columns], np.float32).T
    np.testing.assert_array_equal(records.features.numpy(), expected[records.ids])


def test_rows_are_split_as_in_the_papers(folders, tmp_path):
    data = open_data("Parkinson", folders("Parkinson"), split="rows", val_share=0)
    records = [data.records(name) for name in ("train", "test")]
    assert [len(own) for own in records] == [42, 18]
    assert [int(own.labels.sum()) for own in records] in ([31, 14], [32, 13])
    train, test = ({TABLES["Parkinson"][0]["id"][row] for row in own.ids} for own in records)
    assert len(train & test) > 5
    write_parkinson(tmp_path, parkinson() | {"id": list(range(60))})  # of people without numbers
    check("Parkinson", open_data("Parkinson", tmp_path, split="rows"))
    with pytest.raises(ConfigurationError, match="split 'people' is unknown; use persons or rows"):
        Parkinson(split="people")


# ---- files that are refused


@pytest.mark.parametrize(
    ("kind", "there", "holds", "put"),
    [
        ("Adult", (), "no adult.data and no adult.test of Adult", "'adult.data' and 'adult.test' from {}2/adult"),
        ("Adult", ("adult.data",), "no adult.test of Adult", "'adult.data' and 'adult.test' from {}2/adult"),
        ("Adult", ("adult.test",), "no adult.data of Adult", "'adult.data' and 'adult.test' from {}2/adult"),
        ("BankMarketing", (), "no data of BankMarketing", "'bank-full.csv' from {}222/bank+marketing"),
        (
            "BankMarketing",
            ("bank-additional-full.csv",),
            "no data of BankMarketing",
            "'bank-full.csv' from {}222/bank+marketing",
        ),
        (
            "CreditDefault",
            (),
            "no data of CreditDefault",
            f"'UCI_Credit_Card.csv' or '{SHEET}.csv' or '{SHEET}.xls' from {{}}350/default+of+credit+card+clients",
        ),
    ],
)
def test_no_file(tmp_path, kind, there, holds, put):
    for file in there:
        (tmp_path / file).touch()
    with pytest.raises(ConfigurationError) as error:
        getattr(datamodules, kind)(data_dir=tmp_path).setup("fit")
    assert str(error.value) == (
        f"{tmp_path} holds {holds}; put {put.format(UCI)} there, or name another folder with data_dir or "
        "LIGHTNING_VFL_DATA"
    )


def changed(kind: str, column: str, **values: object) -> dict[str, list[Any]]:
    """The records with some values (r3=... is the record 3 from 0) of a column replaced."""
    cells = [*TABLES[kind][0][column]]
    for row, value in values.items():
        cells[int(row[1:])] = value
    return TABLES[kind][0] | {column: cells}


def speech(**names: str) -> dict[str, list[Any]]:
    return {names.get(name, name): column for name, column in TABLES["Parkinson"][0].items()}


A, B, C, P, S = "Adult", "BankMarketing", "CreditDefault", "Phishing", "Parkinson"
WANTED = "instead of id, class and 753 features"
REFUSALS: dict[str, tuple[str, dict[str, list[Any]], str]] = {
    "unknown numbers": (
        A,
        changed(A, "age", r3="?", r7="old"),
        r"2 values of column 'age' of .* are not numbers, first '\?' in row 4; correct or remove the records, or name",
    ),
    "another class of income": (
        A,
        changed(A, "income", r1="50K", r2=">50k"),
        "2 values of column 'income' of .* are neither <=50K nor >50K, first '50K' in row 2; write >50K for a record",
    ),
    "a field too much": (
        A,
        adult(420, 5) | {"z": [1] * 420},
        r"420 rows of .* do not have 15 fields, first row 1 with 16 \(the first is '\d+'\); fetch it again from",
    ),
    "columns missing": (
        B,
        without(B, "y", "age"),
        r"has 15 columns that are not the 17 columns of this data set \(missing: age, y\); correct the columns or f",
    ),
    "row numbers": (B, {"": list(range(620))} | bank(), r"\(unknown: a column without a name\); correct the columns"),
    "a column twice": (B, bank() | {" age": [1] * 620}, r"has 18 columns .* \(more than once: age\)"),
    "the other table": (
        B,
        {"day_of_week": ["mon"] * 620} | without(B, "day", "balance"),
        r"has 16 columns .* \(missing: balance, day; unknown: day_of_week\)",
    ),
    "text": (
        B,
        changed(B, "balance", r3="much", r7="?"),
        r"2 values of column 'balance' of .* are not numbers, first 'much' in row 5; correct or remove the records, or "
        "name the column in categorical",
    ),
    "decimal commas": (B, changed(B, "balance", r0="1,5"), "1 values of column 'balance' .*, first '1,5' in row 2"),
    "no number": (B, changed(B, "age", r0=None), "1 values of column 'age' of .* are empty, first '' in row 2; fill"),
    "no category": (B, changed(B, "job", r9=" "), "1 values of column 'job' of .* are empty, first '' in row 11; fill"),
    "not a number": (B, changed(B, "age", r0="nan"), "column 'age' of .* are not numbers, first 'nan' in row 2"),
    "another class of calls": (
        B,
        changed(B, "y", r1="maybe", r2="Yes"),
        "2 values of column 'y' of .* are neither no nor yes, first 'maybe' in row 3; write yes for a record with "
        "a subscription",
    ),
    "one class": (B, bank() | {"y": ["no"] * 620}, r"holds 620 records of 1 class\(es\) instead of 2; fetch it again"),
    "one success": (B, bank() | {"y": ["yes"] + ["no"] * 619}, r"620 records give no test split of 20% \(.*\); use"),
    "no records": (B, {name: [] for name in bank()}, "holds 0 records instead of at least one; fetch it again from"),
    "infinite": (B, changed(B, "age", r0="inf"), "1 feature values of the .* party 2, column 'age', record 0; impute"),
    "a code missing": (C, without(C, "X5"), r"has 24 columns .* \(missing: AGE \(X5\)\); correct the columns or fetch"),
    "no names": (C, {str(i): column for i, column in enumerate(credit().values())}, "has no column names such as"),
    "text of a client": (
        C,
        changed(C, "X4", r3="married", r7="?"),
        r"2 values of column 'MARRIAGE' of .* are not numbers, first 'married' in row 5; correct or remove",
    ),
    "an infinite client": (C, changed(C, "X1", r0="inf"), "1 feature values of the .* column 'LIMIT_BAL', record 1;"),
    "another class of clients": (
        C,
        changed(C, "Y", r1=2, r2=-1),
        "2 values of column 'default payment next month' of .* are neither 0 nor 1, first '2' in row 3; write 1 "
        "for a record",
    ),
    "no label": (C, changed(C, "Y", r1=None), "column 'default payment next month' .* are neither 0 nor 1, first ''"),
    "duplicate ids": (C, changed(C, "ID", r1=1, r2=1), "2 values of column 'ID' of .* are duplicates, first '1' in"),
    "ids are fractions": (C, changed(C, "ID", r1=0.5), "column 'ID' of .* are not whole numbers of 53 bits, first"),
    "ids are huge": (C, changed(C, "ID", r1=2**53), "column 'ID' of .* are not whole numbers of 53 bits, first '9"),
    "ids are infinite": (C, changed(C, "ID", r1="inf"), "column 'ID' of .* are not whole numbers of 53 bits"),
    "ids are text": (C, changed(C, "ID", r1="a1"), "1 values of column 'ID' of .* are not numbers, first 'a1' in row"),
    "a sign missing": (P, without(P, "port"), r"has 30 columns that are not the 31 columns .* \(missing: port\);"),
    "a missing value": (
        P,
        changed(P, "port", r3="?", r7="?"),
        r"2 values of column 'port' of .* are not -1, 0 or 1, first '\?' in row 40; correct or remove",
    ),
    "another value": (P, changed(P, "SFH", r199=2), "1 values of column 'SFH' .* first '2' in row 236;"),
    "a class between": (
        P,
        changed(P, "Result", r1=0, r2=0),
        "2 values of column 'Result' of .* are neither -1 nor 1, first '0' in row 38; write 1 for a record of a legit",
    ),
    "no person": (S, speech(id="number"), f"has 755 columns {WANTED}; missing: id; correct the columns or fetch the"),
    "a column less": (S, without(S, "feature_751"), f"has 754 columns {WANTED}; correct the columns or fetch the file"),
    "no class": (S, without(S, "gender", "class"), f"has 753 columns {WANTED}; missing: gender, class; correct"),
    "a name twice": (S, speech(feature_3='"feature_5"'), f"has 755 columns {WANTED}; more than once: feature_5; corr"),
    "no name": (S, speech(feature_3=""), f"has 755 columns {WANTED}; without a name: 1; correct the columns"),
    "text of a recording": (
        S,
        changed(S, "feature_9", r4="loud", r7="?"),
        "2 values of column 'feature_9' of .* are not numbers, first 'loud' in row 7; correct or remove the records",
    ),
    "a third class": (
        S,
        changed(S, "class", r1=2, r2=0.5),
        "2 values of column 'class' of .* are neither 0 nor 1, first '2' in row 4; write 1 for a record of a person",
    ),
    "a person of both classes": (
        S,
        changed(S, "class", r13=1),
        "1 values of column 'id' of .* have recordings of both classes, first '4' in row 16; give all recordings of a",
    ),
    "a number for every record": (
        S,
        parkinson() | {"id": list(range(60))},
        "column 'id' of .* has another value in every record, so it does not tell which recordings are of one "
        "person; number the people or set split: rows",
    ),
    "one healthy person": (
        S,
        parkinson() | {"class": [int(i > 2) for i in range(60)]},
        r"20 records give no test split of 30% \(.*\); use more records",
    ),
}  # fmt: skip
NOT_OF_A_FILE = ("infinite", "an infinite client", "one success", "one healthy person")


@pytest.mark.parametrize("refusal", REFUSALS)
def test_bad_files_are_refused(tmp_path, refusal):
    kind, table, message = REFUSALS[refusal]
    if kind == "CreditDefault":
        write_csv(tmp_path / FILE[kind], table)
    else:
        PUBLISHED[kind][0](tmp_path, table)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(kind, tmp_path)
    assert (str(tmp_path / FILE[kind]) in str(error.value)) is (refusal not in NOT_OF_A_FILE)


def test_rows_are_counted_with_the_comment(tmp_path):
    write_adult(tmp_path, test=adult(84, 6) | {"age": [20, 20, 20, "old", *[20] * 80]})
    with pytest.raises(ConfigurationError, match=r"values of column 'age' of .*adult.test are .* 'old' in row 5; corr"):
        open_data("Adult", tmp_path)


@pytest.mark.parametrize(("line", "fields"), [("1,1", 2), ("1" + ",1" * 31, 32), ("{0 1, 30 1}", 2), ("1;1;1", 1)])
def test_records_of_another_length(tmp_path, line, fields):
    path = write_phishing(tmp_path)
    path.write_text(path.read_text() + f"\n{line}\n")
    with pytest.raises(ConfigurationError) as error:
        open_data("Phishing", tmp_path)
    assert str(error.value) == (
        f"1 rows of {path} do not have 31 fields, first row 237 with {fields} (the first is '{line.split(',')[0]}'); "
        f"fetch it again from {UCI}327/phishing+websites"
    )


def test_a_file_cut_short(tmp_path):
    path = write_bank(tmp_path)
    begin = "".join(path.read_text().splitlines(keepends=True)[:301])
    source = f"{UCI}222/bank+marketing"
    path.write_text(begin)
    with pytest.raises(ConfigurationError) as error:
        open_data("BankMarketing", tmp_path, expected_records=620)
    assert str(error.value) == (
        f"{path} holds 300 records instead of 620; fetch it again from {source}, or set expected_records to the "
        "number of your own file"
    )
    for end, message in (
        (
            "33;",
            rf"^1 rows of {path} do not have 17 fields, first row 302 with 2 \(the first is '33'\); fetch it again",
        ),
        ('33;"ser', r"cannot be read \(unexpected end of data\); fetch it again from"),
        ("x" * 40, r"row 302 with 1 \(the first is 'xxxxxxxxxxxxxxxxxxxx\.\.\.'\); fetch"),
    ):
        path.write_text(begin + end)
        with pytest.raises(ConfigurationError, match=message):
            open_data("BankMarketing", tmp_path)


@pytest.mark.parametrize(("file", "wanted"), [("adult.data", 420), ("adult.test", 84)])
def test_one_of_two_files_cut_short(tmp_path, file, wanted):
    write_adult(tmp_path)
    path = tmp_path / file
    lines = path.read_text().splitlines(keepends=True)
    head = int(file == "adult.test")
    path.write_text("".join(lines[: 50 + head]))
    with pytest.raises(ConfigurationError, match=rf"^{path} holds 50 records instead of {wanted}; fetch it again from"):
        open_data("Adult", tmp_path, expected_records=(420, 84))
    path.write_text("".join(lines[: wanted - 1 + head]) + lines[wanted - 1 + head][:-5])  # within the last label
    with pytest.raises(ConfigurationError, match=rf"1 values of column 'income' of .* in row {wanted + head}; write"):
        open_data("Adult", tmp_path, expected_records=(420, 84))


def head(*attributes: str) -> bytes:
    return "\n".join(["@relation phishing", *attributes, "@data", "1,1"]).encode()


NO_DATA = "is not an ARFF file: it has no line '@data'; fetch it again from"
UNREADABLE = {
    "another separator": (A, adult_text(adult(420, 5), ";").encode(), "420 rows of .* 15 fields, first row 1 with 1"),
    "empty": (B, b"", "names such as age, job, marital in its first row; check the separator between the fields"),
    "a page": (B, b"<html>\n404\n</html>", "has no column names such as"),
    "another coding": (B, b"age;job\n\xff\xfe;2\n", r"cannot be read \(.*invalid start byte\); fetch it again from"),
    "commas": (B, b"age,job\n1,2\n", "has no column names such as age, job, marital in its first row; check"),
    "commas and quotes": (B, b'"age","job"\n', r"cannot be read \(';' expected after '\"'\); fetch it again from"),
    "names too late": (
        S,
        b"a,b\n,Baseline\nid,gender,class\n",
        "has no column names such as id, gender, class in its first 2 rows; check the separator between the fields",
    ),
    "an archive": (S, b"Rar!\x1a\x07\x01\x00\xf3\xe1", r"cannot be read \(.*\); fetch it again from"),
    "nothing": (P, b"", NO_DATA),
    "a table of commas": (P, b"port,Result\n1,-1\n", NO_DATA),
    "a head alone": (P, b"@relation phishing\n@attribute port {1,-1}\n", NO_DATA),
    "no text": (P, b"@relation \xff\xfe", r"cannot be read \(.*invalid start byte\); fetch it again from"),
    "no columns": (P, head(), r"has 0 columns that are not the 31 columns of this data set \(missing: having_IP_Add"),
    "a column twice": (
        P,
        head("@attribute port {1}", "@attribute port {1}"),
        r"the head of .* cannot be read \(ValueError: .*'port' occurs more than once\); fetch the file again from",
    ),
    "text columns": (
        P,
        head("@attribute port string"),
        r"the head of .* cannot be read \(NotImplementedError: String attributes .*\); fetch the file again from",
    ),
    "a column without values": (P, head("@attribute port"), r"the head of .* cannot be read \(ParseArffError: .*\); f"),
}  # fmt: skip


@pytest.mark.parametrize("file", UNREADABLE)
def test_files_that_are_no_such_table(tmp_path, file):
    kind, content, message = UNREADABLE[file]
    PUBLISHED[kind][0](tmp_path)
    (tmp_path / FILE[kind]).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(kind, tmp_path)
    assert str(tmp_path / FILE[kind]) in str(error.value)


def test_damaged_spreadsheets(tmp_path):
    rows = [[*row] for row in TWO_ROWS]
    rows[4][3] = True
    spreadsheet(tmp_path, biff(rows))
    with pytest.raises(ConfigurationError, match=r"1 values of column 'EDUCATION' .* first 'neither text .* in row 5;"):
        open_data("CreditDefault", tmp_path)
    spreadsheet(tmp_path, b"<html>404</html>")
    with pytest.raises(ConfigurationError, match=r"clients.xls cannot be read \(XLRDError: .*\); fetch it again from"):
        open_data("CreditDefault", tmp_path)


def test_a_file_of_clients_cut_short_within_a_record(tmp_path):
    path = write_csv(tmp_path / FILE["CreditDefault"], credit())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:151]) + ",".join(lines[151].split(",")[:9]))  # ID, X1, ..., X8
    with pytest.raises(ConfigurationError, match="holds 151 records instead of 30000; fetch it again"):
        CreditDefault(data_dir=tmp_path).setup("fit")
