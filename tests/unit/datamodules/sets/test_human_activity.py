"""HumanActivity from small files in the two published formats, against what was written into them."""

from typing import Any

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import ContiguousColumns, HumanActivity, NamedColumns
from lightning_vfl.errors import ConfigurationError

from ..miniature import ACTIVITIES, FEATURES, activity, activity_csv, write_activity, write_activity_csv

SOURCE = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"


def open_data(folder, **settings: Any):
    data = HumanActivity(data_dir=folder, **{"expected_records": None} | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


@pytest.fixture(scope="module")
def uci(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uci")
    write_activity(folder)
    return folder


@pytest.fixture(scope="module")
def kaggle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kaggle")
    write_activity_csv(folder)
    return folder


@pytest.fixture
def small(tmp_path):
    """A folder whose files may be spoilt."""
    write_activity(tmp_path, 18, 12)
    return tmp_path


@pytest.fixture
def small_csv(tmp_path):
    write_activity_csv(tmp_path, 18, 12)
    return tmp_path


@pytest.mark.parametrize("form", ["uci", "kaggle"])
def test_records_are_those_of_the_files(form, request):
    data = open_data(request.getfixturevalue(form))
    for parts, (values, labels) in {
        ("train", "val"): activity(60, 8),
        ("test",): activity(24, 9),
        ("predict",): activity(24, 9),
    }.items():
        for part in parts:
            records = data.records(part)
            expected = (values[records.ids][:, :560] / 1000).astype(np.float32)
            np.testing.assert_array_equal(records.features.numpy(), expected)
            assert records.labels.tolist() == (labels[records.ids] - 1).tolist()
        assert sorted(np.concatenate([data.records(part).ids for part in parts])) == list(range(len(labels)))
    assert data.records("test").ids.tolist() == list(range(24))
    assert data.num_classes == 6
    assert data.records("train").features.dtype == torch.float32


def test_labels_are_in_the_order_of_uci(small_csv):
    values, _ = activity(18, 8)
    said = ["LAYING", "WALKING", "STANDING", "WALKING_DOWNSTAIRS", "SITTING", "WALKING_UPSTAIRS"] * 3
    (small_csv / "train.csv").write_text(activity_csv(values, said))
    data = open_data(small_csv, val_share=0)
    assert data.records("train").labels.tolist() == [5, 0, 4, 2, 3, 1] * 3


def test_both_formats_say_the_same(uci, kaggle):
    data, same = open_data(uci), open_data(kaggle)
    assert data.layout == same.layout
    for part in ("train", "val", "test"):
        assert torch.equal(data.records(part).features, same.records(part).features)
        assert torch.equal(data.records(part).labels, same.records(part).labels)


@pytest.mark.parametrize(("parties", "width"), [(5, 112), (10, 56)])
def test_parties_have_the_columns_of_the_paper(uci, parties, width):
    data = open_data(uci, partitioner=ContiguousColumns(parties), val_share=0)
    assert data.party_shapes == ((width,),) * parties
    values, _ = activity(60, 8)
    last = data.records("train").rows(torch.arange(60))[-1]
    np.testing.assert_array_equal(last[:, -1].numpy(), (values[:, 559] / 1000).astype(np.float32))


def test_all_columns(uci):
    data = open_data(uci, drop_last_column=False, val_share=0)
    assert [width for (width,) in data.party_shapes] == [113, 112, 112, 112, 112]
    values, _ = activity(60, 8)
    np.testing.assert_array_equal(data.records("train").features[:, 560], (values[:, 560] / 1000).astype(np.float32))
    assert data.layout.columns[-1] == "angle(Z)"


@pytest.mark.parametrize("form", ["uci", "kaggle"])
def test_columns_have_names_of_their_own(form, request):
    data = open_data(request.getfixturevalue(form))
    twice = ("bandsEnergy()-1,8", "bandsEnergy()-1,8.1", "bandsEnergy()-1,8.2")
    assert data.layout.columns == (*FEATURES[:555], *twice, "angle(X)", "angle(Y)")
    cut = NamedColumns({"a": [twice[1]], "b": [twice[2], FEATURES[0]]}, drop_rest=True)
    assert [part.positions.tolist() for part in cut.split(data.layout)] == [[556], [557, 0]]


def test_the_folder_of_the_archive(tmp_path, monkeypatch):
    write_activity(tmp_path / "human_activity" / "UCI HAR Dataset", 18, 12)
    monkeypatch.setenv("LIGHTNING_VFL_DATA", str(tmp_path))
    assert len(open_data(None, val_share=0).records("test")) == 12


def test_no_files(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        HumanActivity(data_dir=tmp_path).setup("fit")
    assert str(error.value) == (
        f"{tmp_path} holds no features.txt of UCI's HumanActivity and no train.csv and no test.csv of Kaggle's; "
        f"put the "
        f"folder 'UCI HAR Dataset' from {SOURCE} there, or name another folder with data_dir or LIGHTNING_VFL_DATA"
    )


def test_one_file_of_kaggle_alone(small_csv):
    (small_csv / "test.csv").unlink()
    with pytest.raises(
        ConfigurationError, match=r"of UCI's HumanActivity and no test\.csv of Kaggle's; put the folder"
    ):
        open_data(small_csv)


@pytest.mark.parametrize("file", ["train/X_train.txt", "train/y_train.txt", "test/X_test.txt", "test/y_test.txt"])
def test_a_file_of_uci_that_is_missing(small, file):
    (small / file).unlink()
    with pytest.raises(ConfigurationError, match=rf"{file} cannot be read \(.*\); (fetch it again from|replace it)"):
        open_data(small)


def test_files_cut_short(small):
    path = small / "train/y_train.txt"
    path.write_text("\n".join(path.read_text().split()[:15]))
    with pytest.raises(ConfigurationError) as error:
        open_data(small, expected_records=(18, 12))
    assert str(error.value) == (
        f"{path} holds 15 records instead of 18; fetch it again from {SOURCE}, or set expected_records to the "
        f"number of your own file"
    )
    with pytest.raises(
        ConfigurationError, match=r"X_train.txt holds 18 lines of 561 numbers instead of 15 lines of 561"
    ):
        open_data(small)
    with pytest.raises(ConfigurationError, match="15 records instead of 7352; fetch it again"):
        HumanActivity(data_dir=small).setup("fit")


SPOILT = {
    "too few names": ("features.txt", lambda t: t[: t.index("10 ")], "has 9 names instead of 561; fetch it again"),
    "an activity too much": (
        "test/y_test.txt",
        lambda t: "7\n" + t[2:],
        "1 values of column 'activity' of .* are none of 1, 2, 3, 4, 5, 6, first '7' in row 1; correct or remove",
    ),
    "a column too few": (
        "test/X_test.txt",
        lambda t: "\n".join(line.rsplit(maxsplit=1)[0] for line in t.splitlines()),
        "holds 12 lines of 560 numbers instead of 12 lines of 561; replace it with the published file",
    ),
    "text": ("test/X_test.txt", lambda t: "x" + t, "cannot be read .*could not convert string 'x'.*; replace it"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_spoilt_files_of_uci_are_refused(small, spoilt):
    file, change, message = SPOILT[spoilt]
    (small / file).write_text(change((small / file).read_text()))
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(small)
    assert str(small / file) in str(error.value)


def cell(text: str, line: int, column: int, value: str) -> str:
    lines = text.splitlines()
    lines[line] = ",".join(value if i == column else field for i, field in enumerate(lines[line].split(",")))
    return "\n".join(lines)


SPOILT_CSV = {
    "an unknown activity": (
        lambda t: t.replace("SITTING", "Sitting"),
        f"2 values of column 'Activity' of .* are none of {', '.join(ACTIVITIES)}, first 'Sitting' in row",
    ),
    "no activity": (lambda t: cell(t, 4, 562, ""), "1 values of column 'Activity' of .* in row 5; correct or remove"),
    "text": (
        lambda t: cell(t, 2, 3, "fast"),
        r"1 values of column 'feature\(\)-3,X' of .* are not numbers, first 'fast' in row 3; correct or remove",
    ),
    "columns missing": (
        lambda t: "\n".join(line.split(",", 2)[2] for line in t.splitlines()),
        "must have 561 columns of features, 'Activity' and perhaps 'subject'; got 560 columns of features, with "
        "'Activity'; fetch",
    ),
    "no column of activities": (
        lambda t: t.replace('"Activity"', '"activity"'),
        "got 562 columns of features, without 'Activity'",
    ),
    "a long row": (lambda t: cell(t, 5, 0, "1,1"), r"cannot be read \(.*saw 564.*\); fetch it again from"),
    "long rows": (
        lambda t: "\n".join([*t.splitlines()[:1], *(f"1,{r}" for r in t.splitlines()[1:])]),
        "cannot be read",
    ),
    "empty": (lambda t: "", r"cannot be read \(No columns to parse from file\); fetch it again from"),
    "a head alone": (lambda t: t.splitlines()[0], "holds 0 records instead of at least one; fetch it again"),
    "other columns": (
        lambda t: t.replace('"angle(X)","angle(Y)"', '"angle(Y)","angle(X)"'),
        r"the columns of .* are not those of .*train\.csv, first 'angle\(X\)'; give both files the same columns",
    ),
}


@pytest.mark.parametrize("spoilt", SPOILT_CSV)
def test_spoilt_files_of_kaggle_are_refused(small_csv, spoilt):
    change, message = SPOILT_CSV[spoilt]
    path = small_csv / "test.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(small_csv)
    assert str(path) in str(error.value)


def test_a_missing_value_is_refused(small_csv):
    path = small_csv / "test.csv"
    path.write_text(cell(path.read_text(), 3, 200, ""))
    with pytest.raises(ConfigurationError, match=r"1 feature values of the test records are NaN.* record 2; impute"):
        open_data(small_csv, val_share=0)
