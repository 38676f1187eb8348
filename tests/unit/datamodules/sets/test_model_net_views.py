"""ModelNet10Views from small pictures, against what was drawn into them."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_vfl.datamodules import ModelNet10Views, Unchanged, Views
from lightning_vfl.errors import ConfigurationError

from ..miniature import FURNITURE, write_views

FIRST = "bathtub/train/bathtub_0001_001.png"
SETTINGS: dict[str, Any] = {"size": 8, "val_share": 0.5, "normaliser": Unchanged()}


def open_data(folder, *stages: str, **settings: Any):
    data = ModelNet10Views(data_dir=folder, **SETTINGS | settings)
    for stage in stages or ("fit", "test", "predict"):
        data.setup(stage)
    return data


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("views")
    return folder, write_views(folder)


@pytest.fixture
def spoilt(drawn, tmp_path):
    """A folder of links to the pictures, some of which may be exchanged."""
    folder, _ = drawn
    for kind in FURNITURE:
        for part in ("train", "test"):
            (tmp_path / kind / part).mkdir(parents=True)
            for path in (folder / kind / part).iterdir():
                (tmp_path / kind / part / path.name).symlink_to(path)
    return tmp_path


def replace(path, image) -> None:
    path.unlink(missing_ok=True)
    image.save(path)


def test_records_are_the_objects_of_the_folders(drawn):
    folder, arrays = drawn
    data = open_data(folder)
    for part in ("train", "val", "test", "predict"):
        records = data.records(part)
        parties = records.rows(torch.arange(len(records)))
        for row, (name, label) in enumerate(zip(records.ids, records.labels.tolist(), strict=True)):
            assert name.rsplit("_", 1)[0] == FURNITURE[label]
            for view in range(12):
                expected = arrays[name][view].astype(np.float32) / np.float32(255)
                np.testing.assert_array_equal(parties[view][row, 0].numpy(), expected)
    assert data.party_shapes == ((1, 8, 8),) * 12
    assert data.num_classes == 10
    names = [name for part in ("train", "val", "test") for name in data.records(part).ids]
    assert sorted(names) == sorted(arrays)
    assert data.records("test").ids.tolist() == [f"{kind}_0003" for kind in FURNITURE]


def test_six_parties_have_two_views_each(drawn):
    folder, arrays = drawn
    data = open_data(folder, partitioner=Views(6))
    assert data.party_shapes == ((2, 8, 8),) * 6
    parties = data.records("test").rows(torch.arange(10))
    for row, name in enumerate(data.records("test").ids):
        seen = np.concatenate([party[row].numpy() for party in parties])
        np.testing.assert_array_equal(seen, arrays[name].astype(np.float32) / np.float32(255))


def test_colours_are_channels_of_their_view(spoilt):
    for view in range(1, 13):
        shades = np.full((8, 8, 3), 10 * view, dtype=np.uint8) + np.array([0, 1, 2], dtype=np.uint8)
        replace(spoilt / f"bathtub/test/bathtub_0003_{view:03}.png", Image.fromarray(shades))
    data = open_data(spoilt, "test", channels=3, partitioner=Views(6))
    assert data.party_shapes == ((6, 8, 8),) * 6
    for party, x in enumerate(data.records("test").rows(torch.arange(2))):
        bright = [10 * view + channel for view in (2 * party + 1, 2 * party + 2) for channel in range(3)]
        assert (x[0] * 255).round().flatten(1).unique(dim=1).flatten().tolist() == bright
        assert torch.equal(x[1, 0], x[1, 2])  # a grey one, in grey


def test_pictures_are_made_smaller_by_the_mean_of_their_pixels(spoilt):
    """Of even halves: what bilinear makes of them, if every pixel counts, lies between."""
    for path in (spoilt / "bathtub/test").iterdir():
        replace(path, Image.fromarray(np.repeat([[0] * 4 + [200] * 4], 8, 0).astype(np.uint8)))
    data = open_data(spoilt, "test", size=2)
    assert data.party_shapes == ((1, 2, 2),) * 12
    small = (data.records("test").rows(torch.arange(1))[0][0, 0] * 255).round()
    assert torch.equal(small[0], small[1])
    assert 0 < small[0, 0] < 50
    assert small[0].sum() == 200
    whole = open_data(spoilt, "test", size=1).records("test").rows(torch.arange(1))[0] * 255
    assert whole.round().item() == 100


def test_views_are_in_the_order_of_their_numbers(drawn, spoilt):
    """Not in that of their names: _10 stands before _2."""
    for path in (spoilt / "bathtub/test").iterdir():
        name, view = path.stem.rsplit("_", 1)
        path.rename(path.with_name(f"{name}_{int(view)}.png"))
    whole = open_data(drawn[0], "test").records("test")
    assert torch.equal(open_data(spoilt, "test").records("test").features, whole.features)


@pytest.mark.parametrize("ending", ["jpg", "JPEG"])
def test_pictures_may_be_photographs(tmp_path, ending):
    write_views(tmp_path, 1, 1, ending)
    assert len(open_data(tmp_path, val_share=0).records("train")) == 10


def test_pictures_are_read_once(drawn, monkeypatch):
    folder, _ = drawn
    opened = []
    monkeypatch.setattr(Image, "open", lambda path, real=Image.open: opened.append(path) or real(path))
    open_data(folder)
    assert len(opened) == len(set(opened)) == 30 * 12


def test_other_files_and_classes_are_not_read(spoilt):
    (spoilt / "bathtub/train/Thumbs.db").write_bytes(b"x")
    (spoilt / "airplane").mkdir()
    assert len(open_data(spoilt).records("test")) == 10


def test_shapes_need_no_files(tmp_path):
    data = ModelNet10Views(Views(4), data_dir=tmp_path, channels=3)
    assert data.party_shapes == ((9, 32, 32),) * 4
    with pytest.raises(ConfigurationError, match="13 parties cannot share 12 views; use 1 to 12 parties"):
        _ = ModelNet10Views(Views(13)).party_shapes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be at least 1 pixel; got 0"),
        ({"channels": 2}, r"channels must be 1 \(grey\) or 3 \(RGB\); got 2"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        ModelNet10Views(**settings)


def test_missing_views_are_refused_by_the_name_of_the_object(spoilt):
    for view in (3, 11):
        (spoilt / f"sofa/train/sofa_0002_{view:03}.png").unlink()
    with pytest.raises(ConfigurationError) as error:
        open_data(spoilt)
    assert str(error.value) == (
        f"object 'sofa_0002' in {spoilt}/sofa/train has no view 3, 11 of 1 to 12; render the missing views, or remove "
        "the object"
    )


def picture(shape=(8, 8), kind=np.uint8):
    return Image.fromarray(np.zeros(shape, dtype=kind))


SPOILT = {
    "a view too much": (
        lambda f: replace(f / "bed/test/bed_0003_013.png", picture()),
        "bed_0003_013.png is a view 13 of object 'bed_0003'; keep one picture for each of the views 1 to 12",
    ),
    "a view from 0": (
        lambda f: replace(f / "bed/test/bed_0003_000.png", picture()),
        "is a view 0 of object 'bed_0003'",
    ),
    "a view twice": (
        lambda f: replace(f / "bed/test/bed_0003_12.jpg", picture()),
        r"bed_0003_12.jpg is another view 12 of object 'bed_0003'; keep one|012.png is another view 12",
    ),
    "another name": (
        lambda f: replace(f / "bed/test/front.png", picture()),
        "front.png is not called OBJECT_VIEW.png; rename it, or remove it",
    ),
    "another size": (
        lambda f: replace(f / FIRST.replace("001.png", "002.png"), picture((9, 10))),
        f"{FIRST} has 8 x 8 pixels but .*002.png has 10 x 9 pixels; render all views in one size",
    ),
    "with transparency": (
        lambda f: replace(f / FIRST, picture((8, 8, 4))),
        f"{FIRST} is neither grey nor RGB but has mode RGBA; save it as grey or RGB",
    ),
    "of 16 bits": (lambda f: replace(f / FIRST, picture(kind=np.uint16)), "is neither grey nor RGB but has mode I;16"),
    "no picture": (
        lambda f: ((f / FIRST).unlink(), (f / FIRST).write_bytes(b"<html>")),
        f"{FIRST} cannot be read as a picture .*; render it again",
    ),
    "cut short": (
        lambda f: ((b := (f / FIRST).read_bytes()), (f / FIRST).unlink(), (f / FIRST).write_bytes(b[:60])),
        f"{FIRST} cannot be read as a picture",
    ),
    "no pictures": (
        lambda f: [path.unlink() for path in (f / "bed/train").iterdir()],
        r"bed/train holds no pictures \(\.png, \.jpg, \.jpeg\); put the rendered views there",
    ),
}


@pytest.mark.parametrize("change", SPOILT)
def test_spoilt_folders_are_refused(spoilt, change):
    spoil, message = SPOILT[change]
    spoil(spoilt)
    with pytest.raises(ConfigurationError, match=message) as error:
        open_data(spoilt)
    assert str(spoilt) in str(error.value)


def test_no_folders(tmp_path):
    for kind in FURNITURE[:8]:
        (tmp_path / kind / "train").mkdir(parents=True)
    with pytest.raises(ConfigurationError) as error:
        ModelNet10Views(data_dir=tmp_path).setup("fit")
    assert str(error.value) == (
        f"{tmp_path} holds no table/train and no toilet/train of ModelNet10Views; put the rendered views, such "
        f"as {FIRST}, there, or name another folder with data_dir or LIGHTNING_VFL_DATA"
    )


def test_without_pillow(drawn, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigurationError, match="read with Pillow, which is not installed; pip install pillow"):
        open_data(drawn[0])
