"""Bank Marketing from small files in the published format, against pandas and scikit-learn."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lightning_vfl.datamodules import BankMarketing, Unchanged
from lightning_vfl.errors import ConfigurationError
from tests.further import further

from ..miniature import BANK, bank, write_bank, write_csv

SPLITS = ("train", "val", "test")
SOURCE = "https://archive.ics.uci.edu/dataset/222/bank+marketing"
NUMBERS = ["age", "balance", "campaign", "pdays", "previous"]


def open_data(folder, **settings: Any):
    data = BankMarketing(data_dir=folder, **{"expected_records": None} | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def written(folder) -> pd.DataFrame:
    """The file as pandas reads it, categories as text, without the column that is dropped."""
    table = pd.read_csv(folder / "bank-full.csv", sep=";", dtype=dict.fromkeys(BANK, str))
    return table.drop(columns="duration")


def features(data, split: str) -> pd.DataFrame:
    """A split's features under their names, in the order of the file."""
    records = data.records(split)
    order = np.concatenate([part.positions for part in data.partitioner.split(data.layout)])
    names = [data.layout.columns[position] for position in order]
    return pd.DataFrame(records.features.numpy(), index=records.ids, columns=names).sort_index()


@pytest.fixture
def folder(tmp_path):
    write_bank(tmp_path)
    return tmp_path


def test_records_are_those_that_pandas_reads_and_encodes(folder):
    data = open_data(folder, normaliser=Unchanged())
    table = written(folder)
    expected = pd.get_dummies(table.drop(columns="y"), columns=list(BANK), prefix_sep="=", dtype=float)
    for name in (*SPLITS, "predict"):
        got = features(data, name)
        assert sorted(got) == sorted(expected)
        np.testing.assert_array_equal(got, expected.loc[got.index, got.columns])
        records = data.records(name)
        assert records.labels.tolist() == (table["y"][records.ids] == "yes").astype(int).tolist()
    assert sorted(np.concatenate([data.records(name).ids for name in SPLITS])) == list(range(620))
    assert data.records("predict").ids.tolist() == data.records("test").ids.tolist()
    assert (data.num_classes, data.classes) == (2, ("no", "yes"))


def test_encoded_columns_stand_where_the_column_stood(folder):
    columns = open_data(folder).layout.columns
    assert columns[:2] == ("age", "job=admin.")
    assert columns[12:16] == ("job=unknown", "marital=divorced", "marital=married", "marital=single")
    assert columns[-4:] == tuple(f"poutcome={category}" for category in BANK["poutcome"])
    assert [column for column in columns if column.startswith("day=")] == sorted(f"day={i}" for i in range(1, 32))


def test_the_groups_of_vfedsec(folder):
    data = open_data(folder, normaliser=Unchanged())
    assert data.party_shapes == ((57,), (3,), (20,))
    records = data.records("test")
    active, second, third = records.rows(torch.arange(len(records)))
    table = written(folder).loc[records.ids]
    np.testing.assert_array_equal(second[:, -1].numpy(), table["balance"])
    np.testing.assert_array_equal(second[:, 1].numpy(), table["default"] == "yes")
    np.testing.assert_array_equal(third[:, 0].numpy(), table["age"])
    np.testing.assert_array_equal(third[:, -1].numpy(), table["education"] == "unknown")
    np.testing.assert_array_equal(active[:, 0].numpy(), table["housing"] == "no")
    np.testing.assert_array_equal(active[:, -5].numpy(), table["previous"])


@pytest.mark.parametrize("seed", [0, further(1), further(2)])
def test_scaling_and_categories_equal_scikit_learn_on_the_training_records(folder, seed):
    data = open_data(folder, seed=seed)
    table = written(folder)
    train = table.loc[data.records("train").ids]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(train[[*BANK]])
    scaler = StandardScaler().fit(train[NUMBERS])
    for name in SPLITS:
        got = features(data, name)
        rows = table.loc[got.index]
        np.testing.assert_allclose(got[NUMBERS], scaler.transform(rows[NUMBERS]), rtol=1e-5, atol=1e-6)
        categories = [f"{column}={c}" for column, found in zip(BANK, encoder.categories_, strict=True) for c in found]
        np.testing.assert_array_equal(got[categories], encoder.transform(rows[[*BANK]]))


def test_a_category_outside_of_training_is_all_zeros(folder):
    rare = int(open_data(folder).records("test").ids[3])
    calls = bank()
    calls["job"][rare] = "astronaut"
    write_bank(folder, calls)
    data = open_data(folder)
    jobs = [column for column in data.layout.columns if column.startswith("job=")]
    assert jobs == [f"job={job}" for job in BANK["job"]]
    assert features(data, "test")[jobs].sum(axis=1).eq(1.0).sum() == len(data.records("test")) - 1
    assert features(data, "test").loc[rare, jobs].tolist() == [0.0] * 12


def test_the_rare_category_is_a_column_where_it_is_in_training(folder):
    rare = int(open_data(folder).records("train").ids[3])
    calls = bank()
    calls["job"][rare] = "astronaut"
    write_bank(folder, calls)
    data = open_data(folder)
    assert data.party_shapes == ((57,), (3,), (21,))
    assert features(data, "train")["job=astronaut"].to_dict()[rare] == 1.0
    assert features(data, "train")["job=astronaut"].sum() == 1.0


def test_other_columns_may_be_dropped_or_none(folder):
    assert open_data(folder, drop=()).party_shapes == ((58,), (3,), (20,))
    assert "duration" in open_data(folder, drop=()).layout.columns
    assert open_data(folder, drop=["duration", "day", "default", "balance"]).party_shapes == ((26,), (20,))


def test_other_columns_may_be_categorical(folder):
    data = open_data(folder, categorical=[name for name in BANK if name != "day"], normaliser=Unchanged())
    assert data.party_shapes == ((27,), (3,), (20,))
    rows = written(folder).loc[features(data, "train").index]
    assert features(data, "train")["day"].tolist() == rows["day"].astype(float).tolist()


def test_numbers_may_be_categorical(folder):
    calls = bank()
    calls["campaign"] = [i % 3 + 1 for i in range(620)]
    write_bank(folder, calls)
    data = open_data(folder, categorical=[*BANK, "campaign"])
    assert [name for name in data.layout.columns if name.startswith("campaign")] == [f"campaign={i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("change", ["order", "byte order mark", "no quotes", "blank lines"])
def test_other_ways_to_say_the_same(folder, change):
    plain = open_data(folder)
    expected = {name: features(plain, name) for name in SPLITS}
    path = folder / "bank-full.csv"
    if change == "order":
        write_bank(folder, dict(reversed(bank().items())))
    elif change == "byte order mark":
        path.write_text(path.read_text(), encoding="utf-8-sig")
    elif change == "no quotes":
        path.write_text(path.read_text().replace('"', "").replace(";", " ; "))
    else:
        path.write_text(path.read_text().replace("\n", "\n\n") + "  \n")
    data = open_data(folder)
    for name in SPLITS:
        pd.testing.assert_frame_equal(features(data, name), expected[name])


def test_pos_weight_without_a_success_in_training(folder):
    write_bank(folder, bank() | {"y": ["yes"] * 2 + ["no"] * 618})
    data = open_data(folder, val_share=0, test_share=0.9)
    with pytest.raises(ConfigurationError) as error:
        _ = data.pos_weight
    assert str(error.value) == (
        "BankMarketing has 62 training records, none of them with a subscription; keep more records for training"
    )


def test_no_file(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        BankMarketing(data_dir=tmp_path).setup("fit")
    assert str(error.value) == (
        f"{tmp_path} holds no data of BankMarketing; put 'bank-full.csv' from {SOURCE} there, or name another folder "
        "with data_dir or LIGHTNING_VFL_DATA"
    )
    (tmp_path / "bank-additional-full.csv").touch()
    with pytest.raises(ConfigurationError, match=r"BankMarketing, only bank-additional-full.csv, which has other col"):
        BankMarketing(data_dir=tmp_path).setup("fit")


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


def change(column: str, **values: object) -> dict[str, list[Any]]:
    """The calls with some values (r3=... is the record 3 from 0) of a column replaced."""
    calls = bank()
    for row, value in values.items():
        calls[column][int(row[1:])] = value
    return calls


def without(*names: str) -> dict[str, list[Any]]:
    return {name: column for name, column in bank().items() if name not in names}


REFUSALS = {
    "a column missing": (
        without("day"),
        r"has 16 columns that are not the 17 columns of this data set \(missing: day\);",
    ),
    "columns missing": (
        without("y", "age"),
        r"has 15 columns .* \(missing: age, y\); correct the columns or fetch the",
    ),
    "a column too much": (bank() | {"z": [1] * 620}, r"has 18 columns .* \(unknown: z\); correct the columns"),
    "row numbers": ({"": list(range(620))} | bank(), r"has 18 columns .* \(unknown: a column without a name\)"),
    "a column twice": (bank() | {" age": [1] * 620}, r"has 18 columns .* \(more than once: age\)"),
    "the other table": (
        {"day_of_week": ["mon"] * 620} | without("day", "balance"),
        r"has 16 columns .* \(missing: balance, day; unknown: day_of_week\)",
    ),
    "text": (
        change("balance", r3="much", r7="?"),
        r"2 values of column 'balance' of .* are not numbers, first 'much' in row 5; correct or remove the records, or "
        "name the column in categorical",
    ),
    "decimal commas": (
        change("balance", r0="1,5"),
        "1 values of column 'balance' .* not numbers, first '1,5' in row 2",
    ),
    "no number": (change("age", r0=None), "1 values of column 'age' of .* are empty, first '' in row 2; fill them in"),
    "no category": (change("job", r9=" "), "1 values of column 'job' of .* are empty, first '' in row 11; fill them"),
    "not a number": (change("age", r0="nan"), "1 values of column 'age' of .* are not numbers, first 'nan' in row 2"),
    "another class": (
        change("y", r1="maybe", r2="Yes"),
        "2 values of column 'y' of .* are neither no nor yes, first 'maybe' in row 3; write yes for a record with "
        "a subscription",
    ),
    "no label": (change("y", r1=None), "1 values of column 'y' of .* are neither no nor yes, first '' in row 3"),
    "one class": (
        bank() | {"y": ["no"] * 620},
        r"holds 620 records of 1 class\(es\) instead of 2; fetch it again from",
    ),
    "no records": ({name: [] for name in bank()}, "holds 0 records instead of at least one; fetch it again from"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_bad_files_are_refused(tmp_path, refusal):
    calls, message = REFUSALS[refusal]
    path = write_bank(tmp_path, calls)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(path) in str(error.value)


def test_infinite_numbers(tmp_path):
    write_bank(tmp_path, change("age", r0="inf"))
    with pytest.raises(ConfigurationError, match=r"1 feature values of the .* party 2, column 'age', record 0; impute"):
        open_data(tmp_path)


def test_what_is_dropped_may_hold_anything(folder):
    expected = features(open_data(folder), "train")
    write_bank(folder, bank() | {"duration": ["long"] * 620})
    pd.testing.assert_frame_equal(features(open_data(folder), "train"), expected)


def test_one_success(tmp_path):
    write_bank(tmp_path, bank() | {"y": ["yes"] + ["no"] * 619})
    with pytest.raises(ConfigurationError, match=r"620 records give no test split of 20% \(.*\); use more records"):
        open_data(tmp_path)


def test_a_file_cut_short(folder):
    path = folder / "bank-full.csv"
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    path.write_text("".join(lines[:301]))
    with pytest.raises(ConfigurationError) as error:
        open_data(folder, expected_records=620)
    assert str(error.value) == (
        f"{path} holds 300 records instead of 620; fetch it again from {SOURCE}, or set expected_records to the "
        "number of your own file"
    )
    path.write_text("".join(lines[:301]) + "33;")
    with pytest.raises(ConfigurationError) as error:
        open_data(folder)
    assert str(error.value) == (
        f"1 rows of {path} do not have 17 fields, first row 302 with 2 (the first is '33'); fetch it again from "
        f"{SOURCE}"
    )
    path.write_text("".join(lines[:301]) + '33;"ser')
    with pytest.raises(ConfigurationError, match=r"cannot be read \(unexpected end of data\); fetch it again from"):
        open_data(folder)


UNREADABLE = {
    "empty": (
        b"",
        "has no column names such as age, job, marital in its first row; check the separator between the fields",
    ),
    "a page": (b"<html>\n404\n</html>", "has no column names such as"),
    "another coding": (b"age;job\n\xff\xfe;2\n", r"cannot be read \(.*invalid start byte\); fetch it again from"),
}


@pytest.mark.parametrize("file", UNREADABLE)
def test_files_that_are_no_such_table(tmp_path, file):
    content, message = UNREADABLE[file]
    (tmp_path / "bank-full.csv").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        open_data(tmp_path)


def test_another_separator(tmp_path):
    write_csv(tmp_path / "bank-full.csv", bank(), ",")
    with pytest.raises(
        ConfigurationError, match="has no column names such as age, job, marital in its first row; check"
    ):
        open_data(tmp_path)
    write_bank(tmp_path, separator=",")
    with pytest.raises(ConfigurationError, match=r"cannot be read \(';' expected after '\"'\); fetch it again from"):
        open_data(tmp_path)


def test_a_long_field_is_shown_in_part(tmp_path):
    path = write_bank(tmp_path)
    path.write_text(path.read_text().splitlines()[0] + "\n" + "x" * 40)
    with pytest.raises(ConfigurationError, match=r"row 2 with 1 \(the first is 'xxxxxxxxxxxxxxxxxxxx\.\.\.'\); fetch"):
        open_data(tmp_path)
