"""Adult from small files in the published format, against pandas and scikit-learn."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lightning_vfl.datamodules import Adult, Unchanged
from lightning_vfl.errors import ConfigurationError
from tests.further import further

from ..miniature import ADULT, adult, adult_text, write_adult

SPLITS = ("train", "val", "test")
SOURCE = "https://archive.ics.uci.edu/dataset/2/adult"
NUMBERS = ["age", "capital-gain", "capital-loss", "hours-per-week"]
DROPPED = ["fnlwgt", "education-num"]


def open_data(folder, **settings: Any):
    data = Adult(data_dir=folder, **{"expected_records": None} | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def written(folder) -> dict[str, pd.DataFrame]:
    """The files as pandas reads them: under train and val all of adult.data, under test adult.test."""
    tables = {}
    for name, skipped in (("data", 0), ("test", 1)):
        tables[name] = pd.read_csv(
            folder / f"adult.{name}",
            skiprows=skipped,
            names=[*adult(1, 0)],
            skipinitialspace=True,
            keep_default_na=False,
        )
    tables["test"]["income"] = tables["test"]["income"].str.rstrip(".")
    return {"train": tables["data"], "val": tables["data"], "test": tables["test"], "predict": tables["test"]}


def features(data, split: str) -> pd.DataFrame:
    """A split's features under their names, in the order of the file."""
    records = data.records(split)
    order = np.concatenate([part.positions for part in data.partitioner.split(data.layout)])
    names = [data.layout.columns[position] for position in order]
    return pd.DataFrame(records.features.numpy(), index=records.ids, columns=names).sort_index()


@pytest.fixture
def folder(tmp_path):
    write_adult(tmp_path)
    return tmp_path


def test_records_are_those_that_pandas_reads_and_encodes(folder):
    data = open_data(folder, normaliser=Unchanged())
    for name, table in written(folder).items():
        expected = pd.get_dummies(table.drop(columns=["income", *DROPPED]), columns=[*ADULT], prefix_sep="=")
        got, records = features(data, name), data.records(name)
        assert sorted(got) == sorted(expected)
        np.testing.assert_array_equal(got, expected.loc[got.index, got.columns].astype(float))
        assert records.labels.tolist() == (table["income"][records.ids] == ">50K").astype(int).tolist()
    assert (data.num_classes, data.classes) == (2, ("<=50K", ">50K"))


def test_the_published_test_file_is_the_test_split(folder):
    data = open_data(folder)
    assert data.records("test").ids.tolist() == data.records("predict").ids.tolist() == list(range(84))
    drawn = np.concatenate([data.records(name).ids for name in ("train", "val")])
    assert sorted(drawn) == list(range(420))


def test_unknown_is_a_category_and_columns_stand_where_they_stood(folder):
    columns = open_data(folder).layout.columns
    assert columns[:3] == ("age", "workclass=?", "workclass=Federal-gov")
    assert {"occupation=?", "native-country=?", "native-country=country(7&more)"} <= {*columns}
    assert columns[-1] == "native-country=country(9&more)"


def test_the_groups_of_vfedsec(folder):
    data = open_data(folder, normaliser=Unchanged())
    assert data.party_shapes == ((27,), (63,), (16,))
    active, second, third = data.records("test").rows(torch.arange(84))
    table = written(folder)["test"]
    np.testing.assert_array_equal(active[:, -3:].numpy(), table[["capital-gain", "capital-loss", "hours-per-week"]])
    np.testing.assert_array_equal(active[:, 0].numpy(), table["workclass"] == "?")
    np.testing.assert_array_equal(second[:, 0].numpy(), table["age"])
    np.testing.assert_array_equal(second[:, 1].numpy(), table["marital-status"] == "Divorced")
    np.testing.assert_array_equal(third[:, 0].numpy(), table["education"] == "10th")


@pytest.mark.parametrize("seed", [0, further(1), further(2)])
def test_scaling_and_categories_equal_scikit_learn_on_the_training_records(folder, seed):
    data = open_data(folder, seed=seed)
    tables = written(folder)
    train = tables["train"].loc[data.records("train").ids]
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(train[[*ADULT]])
    scaler = StandardScaler().fit(train[NUMBERS])
    categories = [f"{column}={c}" for column, found in zip(ADULT, encoder.categories_, strict=True) for c in found]
    for name in SPLITS:
        got = features(data, name)
        rows = tables[name].loc[got.index]
        np.testing.assert_allclose(got[NUMBERS], scaler.transform(rows[NUMBERS]), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got[categories], encoder.transform(rows[[*ADULT]]))


def test_a_category_outside_of_training_is_all_zeros(folder):
    rare = int(open_data(folder).records("val").ids[2])
    people, tested = adult(420, 5), adult(84, 6)
    people["native-country"][rare] = tested["native-country"][3] = "Atlantis"
    write_adult(folder, people, tested)
    data = open_data(folder)
    countries = [name for name in data.layout.columns if name.startswith("native-country")]
    assert data.party_shapes == ((27,), (63,), (16,))
    for split, row in (("val", rare), ("test", 3)):
        sums = features(data, split)[countries].sum(axis=1)
        assert sums.pop(row) == 0.0
        assert sums.eq(1.0).all()


def test_other_columns_may_be_dropped_or_none(folder):
    assert open_data(folder, drop=()).party_shapes == ((28,), (63,), (17,))
    assert open_data(folder, drop=["education", *DROPPED]).party_shapes == ((27,), (63,))


@pytest.mark.parametrize(
    ("separator", "stop", "head"),
    [
        (",", "", "|1x3 Cross validator\n"),
        (", ", ".", "\n| a, comment\n|\n\n"),
        (" ,  ", "", ""),
        (" ,  ", ".", "|1x3 Cross validator\n"),
    ],
)
def test_other_ways_to_say_the_same(folder, separator, stop, head):
    expected = features(open_data(folder), "test")
    (folder / "adult.test").write_text(adult_text(adult(84, 6), separator, head, stop))
    pd.testing.assert_frame_equal(features(open_data(folder), "test"), expected)


@pytest.mark.parametrize(
    ("there", "absent"),
    [((), "adult.data and no adult.test"), (("adult.data",), "adult.test"), (("adult.test",), "adult.data")],
)
def test_no_file(tmp_path, there, absent):
    for file in there:
        (tmp_path / file).touch()
    with pytest.raises(ConfigurationError) as error:
        Adult(data_dir=tmp_path).setup("fit")
    assert str(error.value) == (
        f"{tmp_path} holds no {absent} of Adult; put 'adult.data' and 'adult.test' from {SOURCE} there, or name "
        "another folder with data_dir or LIGHTNING_VFL_DATA"
    )


def change(column: str, **values: object) -> dict[str, list[Any]]:
    """The people with some values (r3=... is the record 3 from 0) of a column replaced."""
    people = adult(420, 5)
    for row, value in values.items():
        people[column][int(row[1:])] = value
    return people


REFUSALS = {
    "unknown numbers": (
        change("age", r3="?", r7="old"),
        r"2 values of column 'age' of .* are not numbers, first '\?' in row 4; correct or remove the records, or name",
    ),
    "another class": (
        change("income", r1="50K", r2=">50k"),
        "2 values of column 'income' of .* are neither <=50K nor >50K, first '50K' in row 2; write >50K for a record",
    ),
    "a field too much": (
        adult(420, 5) | {"z": [1] * 420},
        r"420 rows of .* do not have 15 fields, first row 1 with 16 \(the first is '\d+'\); fetch it again from",
    ),
    "a field too few": (change("race", r5="White, 3"), "1 rows of .* do not have 15 fields, first row 6 with 16"),
    "no records": ({name: [] for name in adult(1, 5)}, "holds 0 records instead of at least one; fetch it again from"),
    "names": (change("age", r0="age"), "1 values of column 'age' of .* are not numbers, first 'age' in row 1; correct"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_bad_files_are_refused(tmp_path, refusal):
    people, message = REFUSALS[refusal]
    write_adult(tmp_path, people)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(tmp_path / "adult.data") in str(error.value)


def test_rows_are_counted_with_the_comment(folder):
    people = adult(84, 6)
    people["age"][3] = "old"
    write_adult(folder, test=people)
    with pytest.raises(
        ConfigurationError, match=r"1 values of column 'age' of .*adult.test are .* 'old' in row 5; corr"
    ):
        open_data(folder)


def test_another_separator(folder):
    (folder / "adult.data").write_text(adult_text(adult(420, 5), ";"))
    with pytest.raises(ConfigurationError, match=r"420 rows of .* do not have 15 fields, first row 1 with 1 \(the fir"):
        open_data(folder)


@pytest.mark.parametrize(("file", "wanted"), [("adult.data", 420), ("adult.test", 84)])
def test_files_cut_short(folder, file, wanted):
    path = folder / file
    lines = path.read_text().splitlines(keepends=True)
    head = int(file == "adult.test")
    path.write_text("".join(lines[: 50 + head]))
    with pytest.raises(ConfigurationError) as error:
        open_data(folder, expected_records=(420, 84))
    assert str(error.value) == (
        f"{path} holds 50 records instead of {wanted}; fetch it again from {SOURCE}, or set expected_records to the "
        "number of your own file"
    )
    path.write_text("".join(lines[: wanted - 1 + head]) + lines[wanted - 1 + head][:-5])  # within the last label
    with pytest.raises(ConfigurationError, match=rf"1 values of column 'income' of .* in row {wanted + head}; write"):
        open_data(folder, expected_records=(420, 84))
