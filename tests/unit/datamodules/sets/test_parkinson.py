"""Parkinson's disease from speech, small files in the published format, against what was written into them."""

from typing import Any

import numpy as np
import pytest

from lightning_vfl.datamodules import Parkinson, Unchanged
from lightning_vfl.errors import ConfigurationError

from ..miniature import parkinson, write_csv, write_parkinson

FILE = "pd_speech_features.csv"
SPLITS = ("train", "val", "test")
TABLE = parkinson()
WHOLE = np.array(list(TABLE.values())).T
PERSON, FEATURES, LABELS = WHOLE[:, 0], WHOLE[:, 1:-1], WHOLE[:, -1]


def open_data(folder, **settings: Any):
    usual: dict[str, Any] = {"expected_records": 60, "normaliser": Unchanged()}
    data = Parkinson(data_dir=folder, **usual | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def check(data, features=FEATURES):
    """All records of all splits are those of their ids."""
    for name in (*SPLITS, "predict"):
        records = data.records(name)
        np.testing.assert_array_equal(records.features.numpy(), features[records.ids].astype(np.float32))
        np.testing.assert_array_equal(records.labels.numpy(), LABELS[records.ids])
    assert sorted(np.concatenate([data.records(name).ids for name in SPLITS])) == list(range(60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The published file; tests do not change it."""
    folder = tmp_path_factory.mktemp("parkinson")
    write_parkinson(folder)
    return folder


@pytest.fixture(scope="module")
def opened(folder):
    return open_data(folder)


def test_records_are_those_of_the_file(opened):
    data = opened
    check(data)
    assert data.layout.columns == ("gender", *(f"feature_{i}" for i in range(752)))
    assert data.party_shapes == ((76,),) * 3 + ((75,),) * 7
    assert data.num_classes == 2
    assert data.records("predict").ids.tolist() == data.records("test").ids.tolist()


def test_one_row_of_names(tmp_path):
    write_parkinson(tmp_path, groups=False)
    check(open_data(tmp_path))


def test_columns_in_another_order(tmp_path):
    write_parkinson(tmp_path, dict(reversed(TABLE.items())), groups=False)
    data = open_data(tmp_path)
    check(data, FEATURES[:, ::-1])
    assert data.layout.columns[-2:] == ("feature_0", "gender")


# ---- people and rows


def people_of(data):
    return {name: set(PERSON[data.records(name).ids]) for name in SPLITS}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_person_is_in_one_split(folder, opened, seed):
    """The seed names the split."""
    data = open_data(folder, seed=seed)
    people = people_of(data)
    assert [len(people[name]) for name in SPLITS] == [12, 2, 6]
    assert set.union(*people.values()) == set(range(20))
    assert [len(data.records(name)) for name in SPLITS] == [36, 6, 18]
    # three people in four are ill: 4.5 of 6 for testing
    assert int(data.records("test").labels.sum()) // 3 in (4, 5)
    assert int(data.records("val").labels.sum()) == 3
    same = data.records("train").ids.tolist() == opened.records("train").ids.tolist()
    assert same == (seed == 0)


def test_recordings_need_not_be_neighbours(tmp_path):
    """And people may have any numbers, and any number of recordings."""
    order = np.random.Generator(np.random.PCG64(0)).permutation(60)
    shuffled = {name: np.array(column)[order].tolist() for name, column in TABLE.items()}
    shuffled["id"] = [7 * (value // 2) - 40 for value in shuffled["id"]]
    shuffled["class"] = [int(value % 3 > 0) for value in shuffled["id"]]
    write_parkinson(tmp_path, shuffled)
    data = open_data(tmp_path, test_share=0.4, val_share=0.2)
    people = [{shuffled["id"][row] for row in data.records(name).ids} for name in SPLITS]
    assert [len(own) for own in people] == [4, 2, 4]
    assert len(set.union(*people)) == 10
    assert [len(data.records(name)) for name in SPLITS] == [24, 12, 24]


def test_rows_are_split_as_in_the_papers(folder):
    data = open_data(folder, split="rows", val_share=0)
    check_rows = [data.records(name) for name in ("train", "test")]
    assert [len(records) for records in check_rows] == [42, 18]
    assert [int(records.labels.sum()) for records in check_rows] in ([31, 14], [32, 13])
    both = set(PERSON[check_rows[0].ids]) & set(PERSON[check_rows[1].ids])
    assert len(both) > 5
    assert data.val_dataloader() == []


def test_an_unknown_split():
    with pytest.raises(ConfigurationError, match="split 'people' is unknown; use persons or rows"):
        Parkinson(split="people")


# ---- classes


# ---- files that are refused


def change(column: str, **values: object) -> dict[str, list[Any]]:
    """The recordings with some values (r3=... is the record 3 from 0) of a column replaced."""
    changed = TABLE[column].copy()
    for row, value in values.items():
        changed[int(row[1:])] = value
    return TABLE | {column: changed}


def renamed(**names: str) -> dict[str, list[Any]]:
    return {names.get(name, name): column for name, column in TABLE.items()}


WANTED = "instead of id, class and 753 features"
REFUSALS = {
    "no person": (renamed(id="number"), f"has 755 columns {WANTED}; missing: id; correct the columns or fetch the"),
    "a column less": (
        {name: column for name, column in TABLE.items() if name != "feature_751"},
        f"has 754 columns {WANTED}; correct the columns or fetch the file again from",
    ),
    "no class": (
        {name: column for name, column in TABLE.items() if name not in ("gender", "class")},
        f"has 753 columns {WANTED}; missing: gender, class; correct",
    ),
    "a column twice": (
        renamed(feature_3='"feature_5"'),
        f"has 755 columns {WANTED}; more than once: feature_5; correct the columns",
    ),
    "no name": (renamed(feature_3=""), f"has 755 columns {WANTED}; without a name: 1; correct the columns"),
    "text": (
        change("feature_9", r4="loud", r7="?"),
        "2 values of column 'feature_9' of .* are not numbers, first 'loud' in row 7; correct or remove the records",
    ),
    "a third class": (
        change("class", r1=2, r2=0.5),
        "2 values of column 'class' of .* are neither 0 nor 1, first '2' in row 4; write 1 for a record of a person",
    ),
    "a person of both classes": (
        change("class", r13=1),
        "1 values of column 'id' of .* have recordings of both classes, first '4' in row 16; give all recordings of a",
    ),
    "a number for every record": (
        TABLE | {"id": list(range(60))},
        "column 'id' of .* has another value in every record, so it does not tell which recordings are of one "
        "person; number the "
        "people or set split: rows",
    ),
    "one healthy person": (
        TABLE | {"class": [int(i > 2) for i in range(60)]},
        r"20 records give no test split of 30% \(.*\); use more records",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_bad_files_are_refused(tmp_path, refusal):
    table, message = REFUSALS[refusal]
    path = write_csv(tmp_path / FILE, table)
    path.write_text(",,Baseline Features\n" + path.read_text())
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(path) in str(error.value) or refusal in ("infinite", "one healthy person")


def test_rows_may_be_of_people_without_numbers(tmp_path):
    write_parkinson(tmp_path, TABLE | {"id": list(range(60))})
    check(open_data(tmp_path, split="rows"))


NO_NAMES = "has no column names such as id, gender, class in its first 2 rows; check the separator between the fields"
UNREADABLE = {
    "names too late": (b"a,b\n,Baseline\nid,gender,class\n", NO_NAMES),
    "an archive": (b"Rar!\x1a\x07\x01\x00\xf3\xe1", r"cannot be read \(.*\); fetch it again from"),
}


@pytest.mark.parametrize("file", UNREADABLE)
def test_files_that_are_no_such_table(tmp_path, file):
    content, message = UNREADABLE[file]
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(tmp_path / FILE) in str(error.value)
