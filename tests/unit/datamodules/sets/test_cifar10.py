"""CIFAR-10 from small files in the published formats, against what was written into them; hostile pickles."""

import os
import pickle
import warnings
from typing import Any

import numpy as np
import pooch
import pytest
import torch

from lightning_vfl.datamodules import CIFAR10, RowStrips, Unchanged
from lightning_vfl.errors import ConfigurationError

from ..miniature import CIFAR, binary_of_cifar, cifar, pickle_of_python_2, write_archive, write_cifar

FOLDER, ARCHIVE = "cifar-10-batches-py", "cifar-10-python.tar.gz"
TEST = CIFAR[-1]
SETTINGS: dict[str, Any] = {"expected_records": 20, "val_records": 15}


def open_data(folder, *stages: str, **settings: Any):
    data = CIFAR10(data_dir=folder, **SETTINGS | settings)
    for stage in stages or ("fit", "test", "predict"):
        data.setup(stage)
    return data


def python_2(data: np.ndarray, labels: list[int]) -> bytes:
    content = pickle_of_python_2(data, labels)
    with warnings.catch_warnings():  # the generator is held to numpy's own reader
        warnings.simplefilter("ignore", DeprecationWarning)
        read = pickle.loads(content, encoding="bytes")
    assert read[b"labels"] == labels
    np.testing.assert_array_equal(read[b"data"], data)
    return content


def python_3(data: Any, labels: list[Any]) -> bytes:
    """Written again by Python 3: bytes go through ``_codecs.encode``, and numpy has moved its functions."""
    return pickle.dumps({b"data": data, b"labels": labels, b"filenames": [b"a"]}, protocol=2)


def by_columns(data: np.ndarray, labels: list[int]) -> bytes:
    return python_2(np.asfortranarray(data), labels)


FORMS = {
    "python 2": (FOLDER, "", python_2),
    "python 3": (FOLDER, "", python_3),
    "column by column": (FOLDER, "", by_columns),
    "binary": ("cifar-10-batches-bin", ".bin", binary_of_cifar),
    "files alone": (".", "", python_2),
    "binary files alone": (".", ".bin", binary_of_cifar),
    "archive": (None, "", python_2),
}


def write(folder, form: str) -> None:
    place, ending, encode = FORMS[form]
    contents = {f"{file}{ending}": encode(*batch) for file, batch in cifar().items()}
    if place is None:
        # in the order of the published one, with what else is in it
        order = (CIFAR[3], "readme.html", TEST, CIFAR[2], CIFAR[4], CIFAR[0], CIFAR[1])
        write_archive(folder / ARCHIVE, {f"{FOLDER}/{file}": contents.get(file, b"<html>") for file in order})
        return
    (folder / place).mkdir(exist_ok=True)
    for file, content in contents.items():
        (folder / place / file).write_bytes(content)


@pytest.fixture
def folder(tmp_path):
    write_cifar(tmp_path)
    return tmp_path


def whole(data, split: str) -> np.ndarray:
    """The images of a split, quadrants put together again."""
    records = data.records(split)
    a, b, c, d = records.rows(torch.arange(len(records)))
    return torch.cat([torch.cat([a, b], 3), torch.cat([c, d], 3)], 2).numpy()


@pytest.mark.parametrize("form", FORMS)
def test_records_are_those_of_the_files(form, tmp_path):
    write(tmp_path, form)
    data = open_data(tmp_path, normaliser=Unchanged())
    batches = cifar()
    train = [np.concatenate([batches[file][i] for file in CIFAR[:5]]) for i in (0, 1)]
    for split, (images, labels) in {
        "train": train,
        "val": train,
        "test": batches[TEST],
        "predict": batches[TEST],
    }.items():
        records = data.records(split)
        expected = images[records.ids].reshape(-1, 3, 32, 32).astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(whole(data, split), expected)
        assert records.labels.tolist() == np.array(labels)[records.ids].tolist()
    assert sorted([*data.records("train").ids, *data.records("val").ids]) == list(range(100))
    assert data.records("test").ids.tolist() == list(range(20))
    assert data.party_shapes == ((3, 16, 16),) * 4
    assert data.num_classes == 10


@pytest.mark.parametrize("ending", ["", ".bin"])
def test_a_row_is_red_then_green_then_blue_row_by_row(tmp_path, ending):
    """The authors' description, byte by byte: the first 32 are the red values of the first row."""
    image = np.zeros(3072, dtype=np.uint8)
    image[0], image[31], image[1024 + 32], image[2048 + 31 * 32 + 1] = 255, 51, 102, 153
    for file in CIFAR:
        encode = binary_of_cifar if ending else pickle_of_python_2
        (tmp_path / f"{file}{ending}").write_bytes(encode(image[None].repeat(20, 0), [3] * 20))
    data = open_data(tmp_path, normaliser=Unchanged())
    quadrants = [x[0] for x in data.records("test").rows(torch.arange(1))]
    expected = [torch.zeros(3, 16, 16) for _ in range(4)]
    expected[0][0, 0, 0], expected[1][0, 0, 15], expected[0][1, 1, 0], expected[2][2, 15, 1] = 1.0, 0.2, 0.4, 0.6
    assert all(torch.equal(a, b) for a, b in zip(quadrants, expected, strict=True))
    assert data.records("test").labels.tolist() == [3] * 20


def test_strips_have_all_colours(folder):
    data = open_data(folder, "test", partitioner=RowStrips(4), normaliser=Unchanged())
    strips = data.records("test").rows(torch.arange(20))
    images = cifar()[TEST][0].reshape(-1, 3, 32, 32).astype(np.float32) / np.float32(255)
    assert data.party_shapes == ((3, 8, 32),) * 4
    np.testing.assert_array_equal(torch.cat(strips, 2).numpy(), images)


class Planted:
    """What runs a command when it is unpickled."""

    def __init__(self, marker) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


class Named:
    """What names something else when it is unpickled."""

    def __init__(self, what, *given) -> None:
        self.what, self.given = what, given

    def __reduce__(self):
        return self.what, self.given


@pytest.mark.parametrize("place", ["everything", "the data", "a label", "the archive"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_planted_command_is_refused_and_not_run(folder, place, protocol):
    marker = folder / "planted"
    data, labels = cifar()[TEST]
    evil = Planted(marker)
    batch = {"everything": evil, "a label": {b"data": data, b"labels": [evil, *labels]}}.get(place, {b"data": evil})
    content = pickle.dumps(batch, protocol=protocol)
    if place == "the archive":
        for file in CIFAR:
            (folder / file).unlink()
        write_archive(folder / ARCHIVE, {f"{FOLDER}/{file}": content for file in CIFAR})
    else:
        (folder / TEST).write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"a pickle of plain values and arrays \(it names posix\.system, wh"):
        open_data(folder)
    assert not marker.exists()
    pickle.loads(content)  # it would have run
    assert marker.exists()


@pytest.mark.parametrize(
    ("what", "given"),
    [(eval, ("1",)), (getattr, (1, "real")), (np.load, ("x",)), (np.zeros, (3,)), (bytearray, ()), (np.float64, (1,))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_nothing_else_can_be_named(folder, what, given):
    (folder / TEST).write_bytes(pickle.dumps({b"data": Named(what, *given)}, protocol=2))
    with pytest.raises(ConfigurationError, match=r"it names \S+, which is not a part of an array"):
        open_data(folder, "test")


def test_what_stands_in_for_arrays_cannot_be_changed(folder):
    """BUILD on a class would set its attributes, were they not kept by ``__setstate__``."""
    (folder / TEST).write_bytes(b"\x80\x02cnumpy\nndarray\n(N}U\x05givenK\x01stb.")
    with pytest.raises(ConfigurationError, match="is not a pickle of plain values and arrays"):
        open_data(folder, "test")
    write_cifar(folder)
    open_data(folder, "test")


ROWS, LABELS = cifar()[TEST]
GOOD = pickle_of_python_2(ROWS, LABELS)
NO_PICKLE = "is not a pickle of plain values and arrays"
NO_DATA = "holds no 'data' that are rows of 3072 bytes, or no 'labels'"
BAD_LABELS = "holds 20 labels for 20 images, or some that are not 0 to 9"
DAMAGE = {
    "cut short": (GOOD[: len(GOOD) // 2], NO_PICKLE),
    "cut in the labels": (GOOD[:60], NO_PICKLE),
    "empty": (b"", rf"{NO_PICKLE} \(Ran out of input\)"),
    "a page": (b"<html>404</html>", NO_PICKLE),
    "an entry outside": (b"\x80\x02U\x01aQ.", rf"{NO_PICKLE} \(.*persistent"),
    "a list": (pickle.dumps([1, 2], 2), NO_DATA),
    "no data": (pickle.dumps({b"labels": LABELS}, 2), NO_DATA),
    "a list of data": (python_3(ROWS.tolist(), LABELS), NO_DATA),
    "other numbers": (pickle_of_python_2(ROWS.astype("<i2"), LABELS), NO_DATA),
    "objects": (python_3(ROWS.astype(object), LABELS), NO_DATA),
    "grey": (pickle_of_python_2(ROWS[:, :1024], LABELS), NO_DATA),
    "one dimension": (pickle_of_python_2(ROWS[0], LABELS), NO_DATA),
    "a false shape": (GOOD.replace(b"M\x14\x00", b"M\x15\x00"), NO_DATA),
    "no labels": (pickle.dumps({b"data": ROWS}, 2), NO_DATA),
    "labels missing": (pickle_of_python_2(ROWS, LABELS[:7]), "7 labels for 20 images, or some that are not 0 to 9"),
    "a label too large": (pickle_of_python_2(ROWS, [10, *LABELS[1:]]), BAD_LABELS),
    "labels of text": (python_3(ROWS, ["cat"] * 20), BAD_LABELS),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused_by_name(folder, damage):
    content, message = DAMAGE[damage]
    (folder / TEST).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(folder, "test")
    assert str(error.value).startswith(str(folder / TEST))
    assert str(error.value).endswith(
        "; replace it with the published one, from https://www.cs.toronto.edu/~kriz/cifar.html"
    )


def test_binary_files_cut_short(tmp_path):
    write(tmp_path, "binary files alone")
    path = tmp_path / "data_batch_3.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    with pytest.raises(
        ConfigurationError, match=r"data_batch_3.bin holds 61455 bytes, not a multiple of 3073, the bytes of a"
    ):
        open_data(tmp_path, "fit")
    path.write_bytes(content[: 7 * 3073])
    with pytest.raises(ConfigurationError, match=r"holds 7 records instead of 20; fetch it again from"):
        open_data(tmp_path, "fit")
    path.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="holds 0 records instead of at least one"):
        open_data(tmp_path, "fit", expected_records=None)
    path.write_bytes(b"\x0a" + content[1:])
    with pytest.raises(ConfigurationError, match=r"labels of the \w+ records run from 0 to 10, outside 0\.\.9"):
        open_data(tmp_path, "fit")


def test_a_file_that_is_missing(folder):
    (folder / CIFAR[2]).unlink()
    with pytest.raises(
        ConfigurationError, match=r"data_batch_3 cannot be read \(No such file or directory\); replace it"
    ):
        open_data(folder, "fit")


@pytest.mark.parametrize("content", [None, b"<html>404</html>", b""], ids=["half", "a page", "empty"])
def test_damaged_archives_are_refused(tmp_path, content):
    write(tmp_path, "archive")
    path = tmp_path / ARCHIVE
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ConfigurationError, match=rf"{ARCHIVE} cannot be unpacked \(.*\); replace it"):
        open_data(tmp_path)


def test_nothing_of_an_archive_is_written_anywhere(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    members = {f"{FOLDER}/{file}": pickle_of_python_2(*batch) for file, batch in cifar().items()}
    write_archive(folder / ARCHIVE, {"../../planted": b"x", **members})
    open_data(folder)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [ARCHIVE]


def test_an_archive_without_a_file(tmp_path):
    write_archive(tmp_path / ARCHIVE, {f"{FOLDER}/{file}": b"" for file in CIFAR[:5]})
    with pytest.raises(ConfigurationError, match=f"{ARCHIVE} has no {FOLDER}/test_batch; replace it"):
        CIFAR10(data_dir=tmp_path).load(("test",))


def test_no_files(tmp_path):
    with pytest.raises(ConfigurationError) as error:
        CIFAR10(data_dir=tmp_path).setup("fit")
    assert str(error.value) == (
        f"{ARCHIVE} of CIFAR10 is not there; put it, or the folder {FOLDER} or cifar-10-batches-bin, into {tmp_path}, "
        "or name another folder with data_dir or LIGHTNING_VFL_DATA"
    )


@pytest.mark.parametrize("failure", [OSError("no network"), ValueError("hash does not match")])
def test_a_failed_download_says_what_to_put_where(tmp_path, monkeypatch, failure):
    def fail(*_: object, **__: object):
        raise failure

    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(
        ConfigurationError, match=rf"could not be downloaded from .* \({type(failure).__name__}\); put it"
    ):
        CIFAR10(data_dir=tmp_path / "new").prepare_data()


def test_the_archive_is_fetched_by_its_hash_if_there_is_nothing(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(pooch, "retrieve", lambda *args, **kwargs: asked.append((args, kwargs)))
    CIFAR10(data_dir=tmp_path).prepare_data()
    address = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    assert asked == [
        ((address, "md5:c58f30108f718f92721af3b95e74349a", ARCHIVE, tmp_path), {"progressbar": True}),
    ]
    (tmp_path / "test_batch.bin").touch()
    CIFAR10(data_dir=tmp_path).prepare_data()
    (tmp_path / "test_batch.bin").unlink()
    (tmp_path / ARCHIVE).touch()
    CIFAR10(data_dir=tmp_path).prepare_data()
    assert len(asked) == 1
