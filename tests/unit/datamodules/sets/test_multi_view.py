"""Views from files of the user's own, against what was written into them."""

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from lightning_vfl.datamodules import ContiguousColumns, MultiView, Unchanged
from lightning_vfl.datamodules.records.view_files import named_by_width, read_mat
from lightning_vfl.errors import ConfigurationError

from ..miniature import cell_array, write_npz

SPLITS = ("train", "val", "test")


def open_data(folder, **settings: Any):
    data = MultiView(data_dir=folder, **{"normaliser": Unchanged()} | settings)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def check(data, arrays):
    """One party a view in this order, and all records of all splits those of their ids."""
    assert data.layout.view_names == tuple(arrays)
    assert data.party_shapes == tuple((array.shape[1],) for array in arrays.values())
    for name in (*SPLITS, "predict"):
        records = data.records(name)
        for own, array in zip(records.rows(torch.arange(len(records))), arrays.values(), strict=True):
            np.testing.assert_array_equal(own.numpy(), array[records.ids].astype(np.float32))
        np.testing.assert_array_equal(records.labels.numpy(), records.ids % 3)
    assert sorted(np.concatenate([data.records(name).ids for name in SPLITS])) == list(range(60))


def two(path):
    content = np.load(path)
    return {name: content[name] for name in ("voice", "face")}


def test_views_are_found(tmp_path):
    path = write_npz(tmp_path)
    data = open_data(tmp_path)
    check(data, two(path))
    assert data.layout.columns[3:6] == ("voice.3", "voice.4", "face.0")
    assert data.num_classes == 3
    assert [len(data.records(name)) for name in SPLITS] == [42, 6, 12]


def test_views_are_named(tmp_path):
    """In the order of the parties, and matrices that nobody names are left out."""
    arrays = two(write_npz(tmp_path, other=np.full((60, 2), np.nan), gt=np.arange(60) % 3, labels=np.zeros(3)))
    data = open_data(tmp_path, views=["face", "voice"], labels="gt")
    check(data, {name: arrays[name] for name in ("face", "voice")})


def test_another_cut(tmp_path):
    write_npz(tmp_path)
    assert open_data(tmp_path, partitioner=ContiguousColumns(4)).party_shapes == ((2,),) * 4


@pytest.mark.parametrize("as_cells", [False, True])
def test_views_of_a_matlab_file(tmp_path, as_cells):
    arrays = two(write_npz(tmp_path))
    views = {"X": cell_array(list(arrays.values())).T, "Z": np.zeros((60, 2))} if as_cells else arrays
    savemat(tmp_path / "own.mat", {**views, "note": "by hand", "gt": (np.arange(60) % 3)[:, None]})
    check(
        open_data(tmp_path, file="own.mat"),
        dict(zip(("X0", "X1"), arrays.values(), strict=True)) if as_cells else arrays,
    )


def test_a_named_cell_array_stands_for_all_its_views(tmp_path):
    one, more = two(write_npz(tmp_path)).values()
    (tmp_path / "mine.npz").unlink()
    content = {"data": cell_array([one, more]), "face": more, "Y": np.arange(60) % 3 + 1}
    savemat(tmp_path / "own.mat", content)
    check(open_data(tmp_path, views=["face", "data"]), {"face": more, "data0": one, "data1": more})
    savemat(tmp_path / "own.mat", content | {"data1": one})
    with pytest.raises(
        ConfigurationError, match=r"two views of .*own.mat are both called data1; give the variables other"
    ):
        open_data(tmp_path, views=["data1", "data"])


def test_views_and_classes_are_reported_once(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr("lightning_vfl.datamodules.sets.view_form.rank_zero_info", said.append)
    write_npz(tmp_path, labels=np.arange(60).clip(0, 39) // 10)
    open_data(tmp_path)
    assert said == ["MultiView: 60 records in 2 views (voice, face), 4 classes of 10 to 30"]


def test_no_file(tmp_path):
    (tmp_path / ".old.npz").touch()
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ConfigurationError) as error:
        open_data(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} holds no .mat or .npz file; put your file there, or name another folder with data_dir or "
        "LIGHTNING_VFL_DATA"
    )
    with pytest.raises(ConfigurationError, match=r"holds no mine.npz; put your file there, or name another folder"):
        open_data(tmp_path, file="mine.npz")
    with pytest.raises(ConfigurationError, match=r"mine.txt is neither a .mat nor a .npz file; save it as one of them"):
        open_data(tmp_path, file="mine.txt")


def test_several_files(tmp_path):
    write_npz(tmp_path)
    (tmp_path / "other.mat").touch()
    with pytest.raises(ConfigurationError, match=r"holds mine.npz, other.mat; name one of them with file"):
        open_data(tmp_path)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "a text": ({"views": "voice"}, r"views must be a list of names; got 'voice', write \[voice\]"),
    "no view": ({"views": []}, r"views \[\] and labels None must name each variable once; name at least one view"),
    "a view twice": ({"views": ["face", "face"]}, "views face, face and labels None must name each variable once"),
    "labels as a view": ({"views": ["face", "y"], "labels": "y"}, "views face, y and labels y must name each"),
    "shares": ({"val_share": 0.9}, "use shares from 0 that add up to less than 1"),
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_impossible_settings(settings):
    given, message = SETTINGS[settings]
    with pytest.raises(ConfigurationError, match=message):
        MultiView(**given)


REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "unknown names": (
        {},
        {"views": ["voice", "hand"], "labels": "gt"},
        "holds no hand and no gt; name variables that it has: voice, code, face, labels",
    ),
    "no labels": (
        {"labels": None},
        {},
        "holds none of Y, y, gt, label, labels but voice, code, face; name the variable of the labels with the "
        "argument labels",
    ),
    "two kinds of labels": ({"y": np.arange(60) % 3}, {}, "holds y and labels; name the variable of the labels"),
    "no views": (
        {"voice": None, "face": np.zeros((59, 3))},
        {},
        "holds no matrix with one row for each of the 60 labels; save one matrix for each view",
    ),
    "a named view too short": (
        {"face": np.zeros((59, 3))},
        {"views": ["voice", "face"]},
        "view 'face' of .* is a float64 matrix of 59 x 3; save a full real matrix with one row for each of the 60 "
        "labels",
    ),
    "a named list": ({}, {"views": ["code"]}, "view 'code' of .* is a int64 matrix of 60; save a full real matrix"),
    "classes with a gap": ({"labels": np.arange(60) % 3 * 2}, {}, "the labels of .* are 0, 2, 4; number the classes"),
    "labels as text": ({"labels": np.array(["a", "b"] * 30)}, {}, "the labels of .* are a <U1 matrix of 60; save one"),
    "a lacking value": (
        {"voice": np.full((60, 2), np.nan)},
        {},
        "feature values of the .* NaN or infinite, first of party 0, column 'voice.0'",
    ),
    "objects": (
        {"voice": np.array([[{}]] * 60)},
        {},
        r"cannot be read as a NumPy file \(ValueError: Object arrays cannot .*\); save matrices of numbers with",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_other_files_are_refused(tmp_path, refusal):
    variables, settings, message = REFUSALS[refusal]
    path = write_npz(tmp_path, **variables)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(tmp_path, **settings)
    assert str(path) in str(error.value) or refusal == "a lacking value"


class Trap:
    """Ends the tests if it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('code of a file was executed')",))


@pytest.mark.parametrize("kind", ["pickle", "object array", "one array", "cut short", "empty", "a page"])
def test_files_that_are_none_of_numpy(tmp_path, kind):
    path = write_npz(tmp_path)
    content = path.read_bytes()
    if kind == "object array":
        np.savez(path, voice=np.array([[Trap()]], dtype=object))
    elif kind == "one array":
        with path.open("wb") as file:
            np.save(file, np.zeros((60, 2)))
    else:
        damaged = {
            "pickle": pickle.dumps(Trap()),
            "cut short": content[:-30],
            "empty": b"",
            "a page": b"<html>404</html>",
        }
        path.write_bytes(damaged[kind])
    with pytest.raises(
        ConfigurationError,
        match=rf"^{re.escape(str(path))} cannot be read as a NumPy file \(\w+: .*\); save matrices of numbers with",
    ):
        open_data(tmp_path)


def test_a_damaged_matrix(tmp_path):
    path = write_npz(tmp_path)
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"cannot be read as a NumPy file \(BadZipFile: Bad CRC-32 .*\); save"):
        open_data(tmp_path)


def test_reading_is_for_any_number_and_width_of_views(tmp_path):
    one, two = np.arange(8.0).reshape(4, 2) - 0.5, np.arange(12, dtype=np.int16).reshape(4, 3)
    savemat(tmp_path / "any.mat", {"X": cell_array([one, two]), "Y": [[3], [1], [2], [1]]})
    matrices, labels = read_mat(tmp_path / "any.mat")
    np.testing.assert_array_equal(matrices[0], one)
    np.testing.assert_array_equal(matrices[1], two)
    assert [matrix.dtype for matrix in matrices] == [np.float64, np.float64]
    assert labels.tolist() == [2, 0, 1, 0]
    named = named_by_width(tmp_path / "any.mat", matrices, {"long": 3, "short": 2})
    assert [*named] == ["short", "long"]
    assert named["short"] is matrices[0]


def test_views_of_any_shape_are_taken_and_what_is_not_taken_is_named(tmp_path, told):
    film = np.random.default_rng(0).normal(size=(60, 2, 3, 4))
    arrays = two(write_npz(tmp_path, code=None, film=film, other=np.zeros((7, 2)), age=np.arange(60)))
    data = open_data(tmp_path)
    check(data, arrays | {"film": film.reshape(60, 24)})
    assert "not taken as views: other (a float64 matrix of 7 x 2), age (a int64 matrix of 60); a view has" in told[0]
