"""EMNIST from miniature files in the published format, in which every image lies on its side."""

import gzip
from typing import Any
from zipfile import ZipFile

import numpy as np
import pooch
import pytest
import torch

from lightning_vfl.datamodules import EMNIST, RowStrips, Unchanged
from lightning_vfl.errors import ConfigurationError

from ..miniature import idx, write_emnist

SPLITS = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}
IMAGES = "emnist-balanced-train-images-idx3-ubyte.gz"
FILES = [
    f"emnist-balanced-{part}-{kind}-ubyte.gz" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
]


def open_data(folder, *stages: str, **settings: Any) -> EMNIST:
    usual: dict[str, Any] = {"val_records": 21, "normaliser": Unchanged()}
    data = EMNIST(data_dir=folder, **usual | settings)
    data.prepare_data()
    for stage in stages or ("fit", "test", "predict"):
        data.setup(stage)
    return data


@pytest.mark.parametrize("parties", [28, 4])
def test_records_are_the_images_upright_and_parties_have_their_rows(parties, tmp_path):
    written = write_emnist(tmp_path)
    data = open_data(tmp_path, partitioner=None if parties == 28 else RowStrips(4))
    rows = 28 // parties
    assert data.party_shapes == ((1, rows, 28),) * parties
    assert data.num_classes == 47
    for split, part in (("train", "train"), ("val", "train"), ("test", "test"), ("predict", "test")):
        records = data.records(split)
        upright = written[f"{part} images"][records.ids].astype(np.float32) / np.float32(255)
        for party, strip in enumerate(records.rows(torch.arange(len(records)))):
            np.testing.assert_array_equal(strip[:, 0].numpy(), upright[:, rows * party : rows * (party + 1)])
        assert records.labels.tolist() == written[f"{part} labels"][records.ids].tolist()
    assert sorted([*data.records("train").ids, *data.records("val").ids]) == list(range(141))
    assert data.records("test").ids.tolist() == list(range(47))


def test_a_stroke_downwards_is_one_byte_after_the_other_in_the_file(tmp_path):
    """As an I is stored: 28 bytes of its column, which every party then has one of."""
    write_emnist(tmp_path)
    stroke = np.zeros((141, 784), np.uint8)
    stroke[:, 3 * 28 : 4 * 28] = 255
    (tmp_path / IMAGES).write_bytes(gzip.compress(idx(stroke.reshape(141, 28, 28))))
    for row in open_data(tmp_path, "fit").records("train").rows(torch.arange(5)):
        assert torch.equal(row, torch.eye(28)[3].expand(5, 1, 1, 28))


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_has_its_files_classes_and_labels_from_0(split, tmp_path):
    classes = SPLITS[split]
    written = write_emnist(tmp_path, split, classes, first=1 if split == "letters" else 0)
    data = open_data(tmp_path, "test", split=split)
    assert data.num_classes == classes
    assert data.records("test").labels.tolist() == written["test labels"].tolist()
    assert data.records("test").labels.dtype == torch.int64


def test_a_letter_0_is_refused(tmp_path):
    write_emnist(tmp_path, "letters", 26, first=0)
    with pytest.raises(
        ConfigurationError, match=r"train-labels-idx1-ubyte.gz holds label 0, but .* run from 1; replace"
    ):
        open_data(tmp_path, "fit", split="letters")


def test_a_split_that_there_is_not():
    with pytest.raises(
        ConfigurationError,
        match="split must be one of balanced, byclass, bymerge, letters, digits, mnist; got 'capitals'",
    ):
        EMNIST(split="capitals")


def pack(folder, names=FILES) -> None:
    with ZipFile(folder / "gzip.zip", "w") as archive:
        for name in names:
            archive.write(folder / name, f"gzip/{name}")
    for name in FILES:
        (folder / name).unlink()


def test_the_archive_is_read_as_it_is(tmp_path):
    written = write_emnist(tmp_path)
    pack(tmp_path)
    features = torch.cat(open_data(tmp_path, "test").records("test").rows(torch.arange(47)), dim=2)[:, 0]
    np.testing.assert_array_equal(features, written["test images"].astype(np.float32) / np.float32(255))
    assert [path.name for path in tmp_path.iterdir()] == ["gzip.zip"]


def test_a_file_beside_the_archive_comes_first(tmp_path):
    write_emnist(tmp_path)
    pack(tmp_path)
    (tmp_path / FILES[3]).write_bytes(gzip.compress(idx(np.full(47, 46))))
    assert open_data(tmp_path, "test").records("test").labels.tolist() == [46] * 47


def test_damaged_archives_are_refused_by_name(tmp_path):
    write_emnist(tmp_path)
    pack(tmp_path, FILES[1:])
    with pytest.raises(
        ConfigurationError, match=f"{tmp_path}/gzip.zip does not give gzip/{IMAGES} .*; replace it with"
    ):
        open_data(tmp_path, "fit")
    (tmp_path / "gzip.zip").write_bytes(b"PK<html>")
    with pytest.raises(ConfigurationError, match=rf"gzip.zip does not give gzip/{IMAGES} \(File is not a zip file\);"):
        open_data(tmp_path, "fit")


def test_damaged_files_are_refused_by_name(tmp_path):
    write_emnist(tmp_path)
    (tmp_path / IMAGES).write_bytes((tmp_path / IMAGES).read_bytes()[:999])
    with pytest.raises(ConfigurationError) as error:
        open_data(tmp_path, "fit")
    assert str(error.value).startswith(f"{tmp_path / IMAGES} cannot be unzipped (")
    assert str(error.value).endswith(
        "; replace it with the published one, from https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
    )


def test_nothing_is_fetched_and_one_message_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr(pooch, "retrieve", lambda *_, **__: pytest.fail("540 MB"))
    with pytest.raises(ConfigurationError) as error:
        open_data(tmp_path, "fit")
    assert str(error.value) == (
        f"{IMAGES} of EMNIST is not there; put {', '.join(FILES)}, or the archive "
        f"https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip (540 MB) with all of them, into {tmp_path}, or name "
        "another folder with data_dir or LIGHTNING_VFL_DATA"
    )
