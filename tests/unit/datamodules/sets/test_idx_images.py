"""MNIST and FashionMNIST from miniature files in the published format."""

import gzip

import numpy as np
import pooch
import pytest
import torch

from lightning_vfl.datamodules import (
    MNIST,
    ColumnsByCorrelation,
    ContiguousColumns,
    FashionMNIST,
    Grid,
    Groups,
    LimitedOverlap,
    RandomColumns,
    RowStrips,
    Standardise,
    StandardiseParty,
    Unchanged,
)
from lightning_vfl.errors import ConfigurationError
from tests.further import further

from ..miniature import TEST, TRAIN, idx, write_idx

IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = MNIST.sha256
both = pytest.mark.parametrize("kind", [MNIST, FashionMNIST])


def whole(data, split: str) -> torch.Tensor:
    """The images of a split, strips put together again."""
    records = data.records(split)
    return torch.cat(records.rows(torch.arange(len(records))), dim=2)


@both
def test_records_are_those_of_the_files(kind, tmp_path):
    files = write_idx(tmp_path)
    data = kind(data_dir=tmp_path, val_records=30, normaliser=Unchanged())
    data.prepare_data()
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    assert data.party_shapes == ((1, 7, 28),) * 4
    assert data.num_classes == 10
    for split, images, labels in (
        ("train", IMAGES, LABELS),
        ("val", IMAGES, LABELS),
        ("test", TEST_IMAGES, TEST_LABELS),
        ("predict", TEST_IMAGES, TEST_LABELS),
    ):
        records = data.records(split)
        expected = files[images][records.ids].astype(np.float64) / 255
        np.testing.assert_allclose(whole(data, split)[:, 0].numpy(), expected, rtol=1e-7, atol=0)
        assert records.labels.tolist() == files[labels][records.ids].tolist()
        assert records.features.min() >= 0
        assert records.features.max() <= 1
    assert data.records("test").ids.tolist() == list(range(TEST))


def in_floats(data, split: str) -> torch.Tensor:
    """The features as they are when bytes become float32 before anything else; the oracle of what is done later."""
    loaded = data.load(("train", split))
    train, own = (
        [loaded[name].features.float().div_(255).flatten(1)[:, torch.from_numpy(part.positions)] for part in data.parts]
        for name in ("train", split)
    )
    scaled = []
    for party, (rows, x) in enumerate(zip(train, own, strict=True)):
        present = data.records("train").present
        shift, scale = data.normaliser.fit(rows if present is None else rows[present[:, party]])
        x = x.sub(shift).div(scale)
        here = data.records(split).present
        scaled.append(x if here is None else torch.where(here[:, party, None], x, 0.0))
    return torch.cat(scaled, 1)


class LikeTheParty(StandardiseParty):
    """Of the user's own: must be asked, and sees floats, as it always has."""

    def fit(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert x.dtype == torch.float32
        assert 0 <= x.min() < x.max() <= 1
        shift, scale = super().fit(x)
        return shift + 1, scale


@pytest.mark.parametrize(
    ("cut", "normaliser"),
    [
        (cut, normaliser) if (i + j) % 4 == 0 else further(cut, normaliser)
        for i, cut in enumerate(
            [
                RowStrips(28),
                Grid(2, 2),
                RandomColumns(5, seed=2),
                Groups(RowStrips(2), [1, 2]),
                LimitedOverlap(None, 40),
            ]
        )
        for j, normaliser in enumerate([StandardiseParty(), Standardise(), Unchanged(), LikeTheParty()])
    ],
)
def test_bytes_give_the_bits_of_their_floats(tmp_path, cut, normaliser):
    write_idx(tmp_path)
    data = MNIST(cut, normaliser=normaliser, data_dir=tmp_path, val_records=30)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    for split in ("train", "val", "test", "predict"):
        features = data.records(split).features
        assert features.dtype == torch.float32
        assert torch.equal(features, in_floats(data, split))


def test_a_party_of_constant_pixels_becomes_zero(tmp_path):
    write_idx(tmp_path)
    images = np.random.Generator(np.random.PCG64(3)).integers(0, 256, (TRAIN, 28, 28), dtype=np.uint8)
    images[:, :7] = 37
    (tmp_path / IMAGES).write_bytes(gzip.compress(idx(images), 1))
    data = MNIST(data_dir=tmp_path, val_records=30)
    data.setup("fit")
    for split in ("train", "val"):
        records = data.records(split)
        assert not records.rows(torch.arange(len(records)))[0].any()
        assert torch.equal(records.features, in_floats(data, split))


def test_a_cut_that_looks_at_the_images_sees_numbers_between_0_and_1(tmp_path, monkeypatch):
    write_idx(tmp_path)
    seen = []
    cut = ColumnsByCorrelation(2)
    monkeypatch.setattr(type(cut), "parts_by", lambda _, layout, training: seen.append(training) or halves(layout))
    data = MNIST(cut, data_dir=tmp_path, val_records=30)
    data.setup("fit")
    later = MNIST(cut, data_dir=tmp_path, val_records=30)
    assert later.parts
    expected = data.load(("train",))["train"].in_floats().features.flatten(1).double().numpy()
    assert [np.array_equal(training.features, expected) for training in seen] == [True, True]
    assert expected.max() == 1


def halves(layout):
    return ContiguousColumns(2).parts(layout)


def test_bytes_that_the_data_keep_are_left_as_they_were(tmp_path):
    write_idx(tmp_path)

    class Keeping(MNIST):
        def load(self, names):
            self.kept = self.kept if hasattr(self, "kept") else super().load(("train", "val", "test"))
            return self.kept

    data = Keeping(LimitedOverlap(RowStrips(2), 40), data_dir=tmp_path, val_records=30)
    before = {name: split.features.clone() for name, split in data.load(()).items()}
    data.setup("fit")
    data.setup("test")
    for name, split in data.kept.items():
        assert split.features.dtype == torch.uint8
        assert torch.equal(split.features, before[name])


GOOD = gzip.compress(idx(np.zeros((TRAIN, 28, 28), np.uint8)))
DAMAGE = {
    "cut short": (IMAGES, GOOD[: len(GOOD) // 2], "cannot be unzipped"),
    "not gzip": (IMAGES, b"<html>404</html>", "cannot be unzipped"),
    "flipped bytes": (IMAGES, GOOD[:15] + b"\xff\xff\xff\xff" + GOOD[19:], "cannot be unzipped"),
    "empty": (LABELS, b"", "does not begin like an IDX file of bytes in 1 dimension"),
    "wrong magic": (LABELS, gzip.compress(b"\x00\x00\x0d\x01" + bytes(8)), "does not begin like an IDX file"),
    "labels for images": (IMAGES, gzip.compress(idx(np.zeros(TRAIN))), "IDX file of bytes in 3 dimension"),
    "only a head": (IMAGES, gzip.compress(b"\x00\x00\x08\x03" + bytes(4)), "does not begin like an IDX file"),
    "records missing": (
        LABELS,
        gzip.compress(idx(np.zeros(TRAIN))[:-5]),
        f"holds {TRAIN - 5} bytes after its head instead of {TRAIN}",
    ),
    "too much": (
        LABELS,
        gzip.compress(idx(np.zeros(TRAIN)) + b"x"),
        f"holds at least {TRAIN + 1} bytes after its head",
    ),
    "other size": (IMAGES, gzip.compress(idx(np.zeros((TRAIN, 14, 20)))), "14 x 20 pixels instead of 28 x 28"),
    "other number": (LABELS, gzip.compress(idx(np.zeros(7))), f"holds 7 labels for the {TRAIN} images"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused_by_name(tmp_path, damage):
    file, content, message = DAMAGE[damage]
    write_idx(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as error:
        MNIST(data_dir=tmp_path, val_records=10).setup("fit")
    assert str(error.value).startswith(str(tmp_path / file))
    assert str(error.value).endswith("delete the file to have it downloaded again, or replace it")


@both
@pytest.mark.parametrize("failure", [OSError("no network"), ValueError("hash does not match")])
def test_a_failed_download_says_what_to_put_where(kind, tmp_path, monkeypatch, failure):
    def fail(*_: object, **__: object):
        raise failure

    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(ConfigurationError) as error:
        kind(data_dir=tmp_path / "new").prepare_data()
    assert type(failure).__name__ in str(error.value)
    assert all(file in str(error.value) for file in kind.sha256)
    assert str(tmp_path / "new") in str(error.value)


@both
def test_only_absent_files_are_fetched_and_by_their_hash(kind, tmp_path, monkeypatch):
    write_idx(tmp_path)
    (tmp_path / TEST_LABELS).unlink()
    asked = []
    monkeypatch.setattr(pooch, "retrieve", lambda *args, **kwargs: asked.append((args, kwargs)))
    kind(data_dir=tmp_path).prepare_data()
    expected = (kind.source + TEST_LABELS, f"sha256:{kind.sha256[TEST_LABELS]}", TEST_LABELS, tmp_path)
    assert asked == [(expected, {"progressbar": True})]


def test_a_model_finds_no_validation_records_in_a_new_data_set(tmp_path):
    write_idx(tmp_path)
    trained, new = (MNIST(data_dir=tmp_path, val_records=0) for _ in range(2))
    trained.setup("fit")
    new.use(trained.fitted)
    new.setup("validate")
    assert new.val_dataloader() == []
