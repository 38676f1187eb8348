"""Handwritten numerals and Caltech101-7 from small files in the published formats, against what was written."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat
from scipy.sparse import csc_array

from lightning_vfl.datamodules import Caltech7, Handwritten, NamedColumns, Unchanged
from lightning_vfl.errors import ConfigurationError
from tests.further import few

from ..miniature import CALTECH, OBJECTS, WIDTHS, cell_array, views, write_caltech, write_mat, write_mfeat

SPLITS = ("train", "val", "test")
LABELS = np.arange(200) // 20


def open_data(folder, kind: Any = Handwritten, **settings: Any):
    usual: dict[str, Any] = {"normaliser": Unchanged()}
    data = kind(data_dir=folder, **usual | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def check(data, arrays, labels):
    """One party a view in this order, and all records of all splits those of their ids."""
    assert data.layout.view_names == tuple(arrays)
    assert data.layout.views == tuple(array.shape[1] for array in arrays.values())
    assert data.party_shapes == tuple((array.shape[1],) for array in arrays.values())
    for name in (*SPLITS, "predict"):
        records = data.records(name)
        rows = records.rows(torch.arange(len(records)))
        for own, array in zip(rows, arrays.values(), strict=True):
            np.testing.assert_array_equal(own.numpy(), array[records.ids].astype(np.float32))
        np.testing.assert_array_equal(records.labels.numpy(), labels[records.ids])
    assert sorted(np.concatenate([data.records(name).ids for name in SPLITS])) == list(range(len(labels)))


@pytest.fixture
def folder(tmp_path):
    write_mat(tmp_path / "Handwritten.mat")
    return tmp_path


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The six text files; tests do not change them."""
    folder = tmp_path_factory.mktemp("mfeat")
    write_mfeat(folder)
    return folder


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("kind", [Handwritten, Caltech7])
def test_views_come_as_found_and_are_named_by_their_widths(tmp_path, kind, seed, monkeypatch):
    said = []
    monkeypatch.setattr("lightning_vfl.datamodules.sets.view_form.rank_zero_info", said.append)
    widths, labels = (WIDTHS, LABELS) if kind is Handwritten else (CALTECH, OBJECTS)
    names = list(widths) if seed is None else random.Random(seed).sample(list(widths), 6)
    arrays = views(len(labels), names, widths)
    if kind is Handwritten:
        write_mat(tmp_path / "Handwritten.mat", X=cell_array(list(arrays.values())))
    else:
        write_caltech(tmp_path, names)
    data = open_data(tmp_path, kind)
    check(data, arrays, labels)
    assert data.num_classes == max(labels) + 1
    assert data.layout.columns[-1] == f"{names[-1]}.{widths[names[-1]] - 1}"
    classes = "10 classes of 20 to 20" if kind is Handwritten else "7 classes of 6 to 20"
    assert said == [f"{kind.__name__}: {len(labels)} records in 6 views ({', '.join(names)}), {classes}"]


@pytest.mark.parametrize(
    "variables",
    [
        {"y": None, "Y": (LABELS + 1)[:, None]},
        {"y": None, "gt": (LABELS + 1.0)[None]},
        {"y": LABELS[:, None].astype(np.uint8)},
        {"X": cell_array(list(views(200).values())).T},
        {"X": cell_array([array.astype(np.float64) for array in views(200).values()])},
        {"names": cell_array(list(WIDTHS)), "options": {"a": 1.0}, "Z": np.zeros((3, 3))},
    ],
    ids=["Y", "gt as a row", "labels from 0", "cells as a row", "doubles", "more variables"],
)
def test_other_ways_to_say_the_same(tmp_path, variables):
    write_mat(tmp_path / "Handwritten.mat", **variables)
    check(open_data(tmp_path), views(200), LABELS)


def test_compression_does_not_matter(tmp_path):
    content = {"X": cell_array(list(views(200).values())), "Y": LABELS + 1}
    savemat(tmp_path / "Handwritten.mat", content, do_compression=True)
    check(open_data(tmp_path), views(200), LABELS)


def test_records_are_those_of_the_text_files_and_the_shares_are_exact(texts):
    data = open_data(texts)
    check(data, views(2000), np.arange(2000) // 200)
    assert [len(data.records(name)) for name in SPLITS] == [1000, 200, 800]
    for name, each in zip(SPLITS, (100, 20, 80), strict=True):
        assert np.bincount(data.records(name).labels).tolist() == [each] * 10


def test_numbers_may_be_written_in_any_way(tmp_path):
    arrays = write_mfeat(tmp_path)
    np.savetxt(tmp_path / "mfeat-mor", arrays["mor"] / 7 - 0.5, fmt=" %.7e", delimiter="   ")
    records = open_data(tmp_path).records("test")
    expected = arrays["mor"][records.ids] / 7 - 0.5
    np.testing.assert_allclose(records.rows(torch.arange(800))[3].numpy(), expected, rtol=0, atol=1e-6)


def test_the_matlab_file_goes_first(texts, tmp_path):
    for path in texts.iterdir():
        (tmp_path / path.name).symlink_to(path)
    write_mat(tmp_path / "Handwritten.mat")
    assert sum(len(open_data(tmp_path).records(name)) for name in SPLITS) == 200


def test_columns_are_called_after_their_views(folder):
    columns = {"a": ["mor.0", "mor.5"], "b": ["fou.75"]}
    records = open_data(folder, partitioner=NamedColumns(columns, drop_rest=True)).records("train")
    expected = np.column_stack([views(200)["mor"][:, [0, 5]], views(200)["fou"][:, 75]])
    np.testing.assert_array_equal(records.features.numpy(), expected[records.ids])


def test_no_files(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        open_data(tmp_path, Caltech7)
    assert str(error.value) == (
        f"{tmp_path} holds no data of Caltech7; put 'Caltech101-7.mat', which https://github.com/yeqinglee/mvdata "
        "links to, there, or name another folder with data_dir or LIGHTNING_VFL_DATA"
    )
    with pytest.raises(ConfigurationError) as error:
        Handwritten(data_dir=tmp_path).setup("fit")
    names = "mfeat-fac, mfeat-fou, mfeat-kar, mfeat-mor, mfeat-pix, mfeat-zer"
    assert str(error.value) == (
        f"{tmp_path} holds no Handwritten.mat and no {names}; put the six text files {names} from "
        "https://archive.ics.uci.edu/dataset/72/multiple+features there, or name another folder with data_dir or "
        "LIGHTNING_VFL_DATA"
    )


def test_some_text_files_are_not_there(texts, tmp_path):
    for path in texts.iterdir():
        if path.name not in ("mfeat-kar", "mfeat-zer"):
            (tmp_path / path.name).symlink_to(path)
    with pytest.raises(ConfigurationError, match=r"holds no Handwritten.mat and no mfeat-kar, mfeat-zer; put the six"):
        open_data(tmp_path)


ROWS = list(views(200).values())


def other_view(view: Any) -> dict[str, Any]:
    """The views with another one in place 1."""
    return {"X": cell_array([ROWS[0], view, *ROWS[2:]])}


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no views": ({"X": None}, "holds no X and y; save the views as the cell array X and their labels as Y"),
    "no labels": ({"y": None}, "holds an X and no Y; save the views as the cell array X and their labels as Y"),
    "two kinds of labels": ({"Y": LABELS}, "holds an X and Y and y; save the views as"),
    "a matrix": (
        {"X": np.zeros((200, 649))},
        "X of .* must be a cell array of views in one row or column; got a float64 matrix of 200 x 649; save a cell",
    ),
    "a struct": ({"X": {"fac": ROWS[0]}}, "in one row or column; got a struct of 1 x 1; save a cell array with one"),
    "a table of cells": ({"X": cell_array(ROWS).reshape(2, 3)}, "column; got a cell array of 2 x 3; save a cell array"),
    "records in columns": (
        other_view(ROWS[1].T),
        "view 1 of .* is a uint8 matrix of 76 x 200; save a full real matrix with one row for each of the 200 labels",
    ),
    "records missing": (other_view(ROWS[1][:-1]), "1 of .* is a uint8 matrix of 199 x 76; save a full real matrix"),
    "sparse": (other_view(csc_array(ROWS[1].astype(float))), r"1 of .* is a csc_\w+ of 200 x 76; save a full real"),
    "complex": (other_view(ROWS[1] * 1j), "view 1 of .* is a complex128 matrix of 200 x 76; save a full real matrix"),
    "text": (other_view("fou"), "view 1 of .* is a <U3 matrix of 1; save a full real matrix"),
    "a list in a list": (other_view(cell_array(ROWS)), "1 of .* is a cell array of 6 x 1; save a full real matrix"),
    "three dimensions": (other_view(np.zeros((200, 8, 9))), "the views of .* are 216, 72, 64, 6, 240, 47 columns wide"),
    "nothing in a view": (other_view(np.zeros((0, 0))), "view 1 of .* is a float64 matrix of 0 x 0; save a full real"),
    "a view missing": (
        {"X": cell_array(ROWS[1:])},
        r"the views of .* are 76, 64, 6, 240, 47 columns wide; use a file with one view of each width: 216 \(fac\)",
    ),
    "a view twice": ({"X": cell_array([*ROWS, ROWS[1]])}, "views of .* are 216, 76, 64, 6, 240, 47, 76 columns wide"),
    "another view": (other_view(np.zeros((200, 75))), "views of .* are 216, 75, 64, 6, 240, 47 columns wide; use a"),
    "no view at all": ({"X": np.empty((0, 0), dtype=object)}, "the views of .* are none columns wide; use a file"),
    "labels as text": ({"y": "numerals"}, "the labels of .* are a <U8 matrix of 1; save one number for each record"),
    "labels one-hot": ({"y": np.eye(10)[LABELS]}, "labels of .* are a float64 matrix of 200 x 10; save one number for"),
    "no label": ({"y": np.zeros((0, 0))}, "of .* are a float64 matrix of 0 x 0; save one number for each record"),
    "labels from 2": ({"y": LABELS + 2}, "labels of .* are 2, 3, .*, 11; number the classes from 0 or 1 without a gap"),
    "a gap": ({"y": LABELS + (LABELS > 4)}, "the labels of .* are 0, 1, 2, 3, 4, 6, 7, 8, 9, 10; number the classes"),
    "fractions": ({"y": LABELS / 2}, "the labels of .* are 0, 0.5, 1, 1.5, .*; number the classes from 0 or 1"),
    "not a number": ({"y": np.where(LABELS == 3, np.nan, LABELS)}, "the labels of .* are 0, 1, .*, nan; number the"),
    "many labels": ({"y": np.arange(200) * 2}, r"of .* are 0, 2, .*, 22, \.\.\.; number the classes from 0 or 1"),
    "nine classes": ({"y": LABELS.clip(0, 8)}, "the labels of .* have 9 classes instead of 10; use the file of the"),
    "a lacking value": (
        other_view(np.where(np.arange(76) == 3, np.nan, ROWS[1])),
        r"\d+ feature values of the \w+ records are NaN .*, first of party 1, column 'fou\.3', record \d+; impute",
    ),
    "too few records": (
        {"X": cell_array([view[::20] for view in ROWS]), "y": LABELS[::20]},
        r"10 records give no test split of 40% \(.*\); use more records",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_other_matlab_files_are_refused(tmp_path, refusal):
    variables, message = REFUSALS[refusal]
    path = write_mat(tmp_path / "Handwritten.mat", **variables)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(path) in str(error.value) or refusal in ("a lacking value", "too few records")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"X": cell_array(list(views(70, tuple(CALTECH), CALTECH).values())[:5])},
            r"the views of .* are 48, 40, 254, 1984, 512 columns wide; use a file with one view .*: 48 \(gab",
        ),
        ({"Y": np.arange(70) % 20 + 1}, "the labels of .* have 20 classes instead of 7; use the file of Caltech101-7"),
    ],
)
def test_other_files_than_that_of_caltech_are_refused(tmp_path, variables, message):
    path = write_caltech(tmp_path, **variables)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path, Caltech7)
    assert str(path) in str(error.value)


def test_a_matlab_file_of_version_7_3(tmp_path):
    head = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    (tmp_path / "Handwritten.mat").write_bytes(head.ljust(512, b"\x00") + b"\x89HDF\r\n\x1a\n")
    with pytest.raises(ConfigurationError) as error:
        open_data(tmp_path)
    what = "is a MATLAB file of version 7.3, which cannot be read; load it in MATLAB and save it with '-v7'"
    assert str(error.value) == f"{tmp_path / 'Handwritten.mat'} {what}"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("share", [0, 0.0001, 0.3, 0.9, 0.9999])
def test_a_matlab_file_cut_short(tmp_path, compressed, share):
    path = tmp_path / "Handwritten.mat"
    savemat(path, {"X": cell_array(ROWS), "Y": LABELS + 1}, do_compression=compressed)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ConfigurationError, match=r"be read as a MATLAB file \(\w+: .*\); replace it|holds an X and no"):
        open_data(tmp_path)


@pytest.mark.parametrize(
    "content", [b"<html>404</html>", b"\x89HDF\r\n\x1a\n" + bytes(600), random.Random(0).randbytes(900)]
)
def test_files_that_are_not_of_matlab(tmp_path, content):
    (tmp_path / "Handwritten.mat").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"Handwritten.mat cannot be read as a MATLAB file \(\w+: .*\); repla"):
        open_data(tmp_path)


def test_a_variable_twice_is_refused(tmp_path):
    path = write_mat(tmp_path / "Handwritten.mat")
    savemat(tmp_path / "other.mat", {"X": cell_array(ROWS[::-1])})
    path.write_bytes(path.read_bytes() + (tmp_path / "other.mat").read_bytes()[128:])  # without its head
    with pytest.raises(ConfigurationError, match=r"cannot be read .*MatReadWarning: Duplicate variable name \"X\""):
        open_data(tmp_path)


TEXT = {
    "a line missing": (b"1 2 3 4 5 6\n" * 1999, "holds 1999 lines of 6 numbers instead of 2000 lines of 6; replace it"),
    "a column missing": (b"1 2 3 4 5\n" * 2000, "holds 2000 lines of 5 numbers instead of 2000 lines of 6; replace it"),
    "cut within a line": (b"1 2 3 4 5 6\n" * 1999 + b"1 2 3", r"be read \(.*columns changed.*\); replace it with"),
    "text": (b"1 2 3 4 5 6\n1 2 three 4 5 6\n", r"cannot be read \(could not convert string 'three' .*\); replace it"),
    "commas": (b"1,2,3,4,5,6\n" * 2000, r"cannot be read \(could not convert string '1,2,3,4,5,6'"),
    "a comment": (b"# views\n" + b"1 2 3 4 5 6\n" * 2000, r"cannot be read \(could not convert string '#' "),
    "empty": (b"", "holds 0 lines of .* instead of 2000 lines of 6; replace it"),
    "bytes": (b"\xff\xfe\x00\n", r"cannot be read \(.*\); replace it with the published file"),
}


@pytest.mark.parametrize("damage", few(TEXT, "cut within a line", "a column missing", "text", "empty"))
def test_damaged_text_files_are_refused_by_name(texts, tmp_path, damage):
    content, message = TEXT[damage]
    for path in texts.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "mfeat-mor").unlink()
    (tmp_path / "mfeat-mor").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "mfeat-mor"))
