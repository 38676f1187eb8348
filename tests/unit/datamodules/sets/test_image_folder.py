"""ImageFolderVFL from small pictures, against what was drawn into them."""

import gc
import shutil
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_vfl.datamodules import (
    ContiguousColumns,
    Grid,
    Groups,
    ImageFolderVFL,
    InformedPartitioner,
    LimitedOverlap,
    Part,
    RandomColumns,
    Records,
    Standardise,
    Unchanged,
)
from lightning_vfl.datamodules.records import pictures
from lightning_vfl.datamodules.records.pictures import Pictures
from lightning_vfl.datamodules.records.records import Request
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation
from tests.further import further

from ..miniature import CLASSES, write_pictures

FIRST = "train/bird/0.png"
STAGES = ("fit", "test", "predict")
TILES = {0: np.s_[:, :4, :4], 1: np.s_[:, :4, 4:], 2: np.s_[:, 4:, :4], 3: np.s_[:, 4:, 4:]}


def open_data(folder, *stages: str, **settings: Any) -> ImageFolderVFL:
    usual: dict[str, Any] = {"size": 8, "batch_size": 5}
    data = ImageFolderVFL(data_dir=folder, **usual | settings)
    for stage in stages or STAGES:
        data.setup(stage)
    return data


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return folder, write_pictures(folder)


@pytest.fixture
def spoilt(drawn, tmp_path):
    """A copy that may be spoilt."""
    shutil.copytree(drawn[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def everything(records: Records) -> tuple[torch.Tensor, ...]:
    return records.rows(torch.arange(len(records)))


def pixels(arrays, records) -> np.ndarray:
    """(N, 3, 8, 8) in [0, 1]: what was drawn."""
    return np.stack([arrays[name] for name in records.ids]) / 255


def test_records_are_the_pictures_and_parties_have_their_quadrants(drawn):
    folder, arrays = drawn
    data = open_data(folder, normaliser=Unchanged())
    assert data.party_shapes == ((3, 4, 4),) * 4
    assert data.num_classes == 3
    for split in ("train", "val", "test", "predict"):
        records = data.records(split)
        for party, x in enumerate(everything(records)):
            for row, name in enumerate(records.ids):
                expected = arrays[name][TILES[party]].astype(np.float32) / np.float32(255)
                np.testing.assert_array_equal(x[row].numpy(), expected)
        assert [CLASSES[label] for label in records.labels] == [name.split("/")[1] for name in records.ids]
    names = {part: [*data.records(part).ids] for part in ("train", "val", "test")}
    assert sorted(names["train"] + names["val"]) == sorted(name for name in arrays if name.startswith("train"))
    assert names["test"] == sorted(name for name in arrays if name.startswith("test"))


def test_batches_are_decoded_in_the_order_of_the_schedule(drawn):
    folder, arrays = drawn
    data = open_data(folder, "fit", normaliser=Unchanged())
    records, seen = data.records("train"), []
    for batch in data.train_dataloader():
        whole = torch.cat([torch.cat(batch.features[:2], 3), torch.cat(batch.features[2:], 3)], 2)
        expected = np.stack([arrays[records.ids[i]] for i in batch.record_ids]) / 255
        np.testing.assert_allclose(whole.numpy(), expected, rtol=1e-6)
        assert torch.equal(batch.labels, records.labels[batch.record_ids])
        seen += batch.record_ids.tolist()
    assert sorted(seen) == list(range(len(records))) != seen


# ---- which pictures are for what


def test_without_both_val_and_test_validation_records_are_drawn_from_training(drawn, spoilt):
    """By class and by the seed; and the folder that is there is for testing, whatever it is called."""
    chosen = []
    for seed in (0, 0, 1):
        data = open_data(drawn[0], seed=seed, val_share=0.25)
        assert np.bincount(data.records("val").labels).tolist() == [3, 3, 3]
        chosen.append(data.records("val").ids.tolist())
    assert chosen[0] == chosen[1] != chosen[2]
    (spoilt / "test").rename(spoilt / "val")
    renamed = open_data(spoilt, val_share=0.25)
    assert renamed.records("val").ids.tolist() == chosen[0]
    assert {name.split("/")[0] for name in renamed.records("test").ids} == {"val"}


def test_folders_of_both_are_taken_as_they_are(tmp_path):
    arrays = write_pictures(tmp_path, train=3, val=2, test=1)
    data = open_data(tmp_path)
    for part in ("train", "val", "test"):
        assert data.records(part).ids.tolist() == sorted(name for name in arrays if name.startswith(part))


def test_training_pictures_alone_are_enough_to_train(tmp_path):
    write_pictures(tmp_path, test=0)
    assert len(open_data(tmp_path, "fit").records("val")) == 4
    for stage in ("test", "predict"):
        with pytest.raises(ConfigurationError) as error:
            open_data(tmp_path, stage)
        assert str(error.value) == (
            f"{tmp_path} holds no test or val of ImageFolderVFL; put the pictures, as train/CLASS/NAME.jpg and "
            "test/CLASS/NAME.jpg or val/CLASS/NAME.jpg, there, or name another folder with data_dir or "
            "LIGHTNING_VFL_DATA"
        )


def test_no_folder(tmp_path):
    with pytest.raises(
        ConfigurationError, match=f"{tmp_path} holds no train of ImageFolderVFL; put the pictures, as tr"
    ):
        open_data(tmp_path, "fit")
    assert ImageFolderVFL(Grid(1, 2), data_dir=tmp_path, size=6, colour=False).party_shapes == ((1, 6, 3),) * 2


def test_folders_within_classes_are_read_and_other_files_are_not(spoilt):
    (spoilt / "test/cat/more").mkdir()
    (spoilt / "test/cat/1.png").rename(spoilt / "test/cat/more/9.PNG")
    for other in ("test/cat/Thumbs.db", "test/cat/._1.png", "test/labels.txt"):
        (spoilt / other).write_bytes(b"x")
    (spoilt / "test/.cache").mkdir()
    ids = open_data(spoilt, "test").records("test").ids.tolist()
    assert ids[4:8] == ["test/cat/0.png", "test/cat/2.png", "test/cat/3.png", "test/cat/more/9.PNG"]
    assert len(ids) == 12


def test_pictures_of_other_kinds_are_counted_and_a_folder_of_an_archive_is_no_class(spoilt):
    for name in ("a.webp", "b.webp", "c.gif", "d.jfif", "desktop.ini"):
        (spoilt / "test/cat" / name).write_bytes(b"x")
    for part in ("train", "test"):
        (spoilt / part / "__MACOSX").mkdir()
        (spoilt / part / "__MACOSX" / "._1.png").write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"test has 4 files that are not read \(2 .webp, 1 .gif, 1 .jfif\); only .png"):
        data = open_data(spoilt, "test")
    assert "__MACOSX" not in data.class_names
    assert len(data.records("test")) == 12


def test_a_class_may_be_missing_from_the_test(spoilt):
    """The others keep their labels."""
    shutil.rmtree(spoilt / "test/bird")
    (spoilt / "test/cat").rename(spoilt / "elsewhere")
    (spoilt / "test/cat").mkdir()
    assert open_data(spoilt, "test").records("test").labels.tolist() == [2] * 4


def test_a_class_of_the_test_that_was_not_trained(spoilt):
    (spoilt / "test/cat").rename(spoilt / "test/cow")
    with pytest.raises(ConfigurationError) as error:
        open_data(spoilt, "fit")
    assert str(error.value) == (
        f"{spoilt}/test has the folder 'cow', which is not a class of the training pictures; sort the pictures into "
        "folders with the names of the training classes, or remove the folder"
    )


def test_empty_folders(spoilt):
    for path in (spoilt / "train/cat").iterdir():
        path.unlink()
    with pytest.raises(
        ConfigurationError, match=rf"{spoilt}/train/cat holds no pictures \(\.png, \.jpg, \.jpeg\) to lea"
    ):
        open_data(spoilt, "fit")
    shutil.rmtree(spoilt / "train")
    (spoilt / "train").mkdir()
    with pytest.raises(
        ConfigurationError, match=f"{spoilt}/train holds no pictures .* in class folders; put some there"
    ):
        open_data(spoilt, "fit")


# ---- what is made of a picture


def save(path, array, mode: str | None = None, **how: Any) -> None:
    path.unlink(missing_ok=True)
    image = Image.fromarray(np.asarray(array, dtype=np.uint8))
    (image if mode is None else image.convert(mode)).save(path, **how)


def only(folder, name: str = "test/bird/0.png", **settings: Any) -> torch.Tensor:
    """(C, S, S) in 0..255 of one picture."""
    data = open_data(folder, "test", partitioner=Grid(1, 1), normaliser=Unchanged(), **settings)
    records = data.records("test")
    (whole,) = records.rows(torch.tensor([records.ids.tolist().index(name)]))
    return whole[0] * 255


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "tall"])
def test_the_middle_is_cut_out(spoilt, wide):
    stripes = np.repeat(10 * np.arange(13)[None, :, None], 8, 0).repeat(3, 2)  # of 13, the third to the tenth
    save(spoilt / "test/bird/0.png", stripes if wide else stripes.transpose(1, 0, 2))
    got = only(spoilt).round()
    assert torch.equal(got if wide else got.mT, torch.arange(20.0, 100, 10).expand(3, 8, 8))


def test_pictures_are_made_smaller_by_the_mean_of_their_pixels(spoilt):
    halves = np.zeros((48, 32, 3))
    halves[:, 16:] = 200
    save(spoilt / "test/bird/0.png", halves)
    small = only(spoilt, size=2).round()
    assert torch.equal(small, small[:, :1].expand(3, 2, 2))
    assert 0 < small[0, 0, 0] < 50
    assert small[0, 0].sum() == 200
    assert only(spoilt, size=1).round().flatten().tolist() == [100] * 3


def test_small_pictures_are_made_larger(spoilt):
    save(spoilt / "test/bird/0.png", np.full((1, 2, 3), 77))
    assert only(spoilt).round().unique().tolist() == [77]


def test_grey_is_made_of_colours_and_colours_of_grey(spoilt):
    save(spoilt / "test/bird/0.png", np.full((8, 8, 3), (100, 150, 200)))
    save(spoilt / "test/bird/1.png", np.full((8, 8), 120))
    assert only(spoilt, colour=False).round().unique().tolist() == [round(0.299 * 100 + 0.587 * 150 + 0.114 * 200)]
    assert only(spoilt, "test/bird/1.png").shape == (3, 8, 8)
    assert only(spoilt, "test/bird/1.png").round().unique().tolist() == [120]


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA", "1"])
def test_transparency_and_palettes_are_seen_as_colours(spoilt, mode):
    colour = (200, 200, 200) if mode == "LA" else (255, 255, 255) if mode == "1" else (255, 0, 153)
    transparency = {"transparency": bytes([128] * 256)} if mode == "P" else {}
    save(spoilt / "test/bird/0.png", np.full((8, 8, 3), colour), mode, **transparency)
    assert only(spoilt).round().mean((1, 2)).tolist() == list(colour)


@pytest.mark.parametrize(("mode", "ending"), [("RGB", "jpg"), ("L", "JPEG"), ("CMYK", "jpg")])
def test_photographs(spoilt, ending, mode):
    shutil.rmtree(spoilt / "test/bird")
    (spoilt / "test/bird").mkdir()
    save(spoilt / f"test/bird/0.{ending}", np.full((8, 8, 3), 130), mode, format="JPEG", quality=95)
    assert (only(spoilt, f"test/bird/0.{ending}") - 130).abs().max() <= 2


# ---- scaling


def oracle(train: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Quadrants and channels, each by the mean and deviation of its own training pixels."""
    out = np.empty_like(x)
    for tile in TILES.values():
        for c in range(3):
            own = (slice(None), slice(c, c + 1), *tile[1:])
            out[own] = (x[own] - train[own].mean()) / train[own].std()
    return out


class Unsorted(ContiguousColumns):
    """Parts whose pixels, of several channels, are in no order."""

    def parts(self, layout):
        places = permutation(layout.size, 0, "unsorted")
        return tuple(Part(places[part.positions], part.shape) for part in super().parts(layout))


@pytest.mark.parametrize(
    "cut", [Grid(2, 2), ContiguousColumns(4), RandomColumns(4), Unsorted(2)], ids=lambda cut: type(cut).__name__
)
@pytest.mark.parametrize("fit_records", [None, further(1000)])
def test_parties_scale_channel_by_channel_with_their_training_pixels(drawn, cut, fit_records):
    """However their pixels are cut: what the channels of a party are follows from their positions."""
    folder, arrays = drawn
    data = open_data(folder, partitioner=cut, fit_records=fit_records)
    parts = cut.split(data.layout)
    train = pixels(arrays, data.records("train")).reshape(-1, 192)
    for split in ("train", "val", "test"):
        x = pixels(arrays, data.records(split)).reshape(-1, 192)
        for part, got in zip(parts, everything(data.records(split)), strict=True):
            expected = x[:, part.positions].copy()
            for channel in set(part.positions // 64):
                own = part.positions // 64 == channel
                values = train[:, part.positions[own]]
                expected[:, own] = (expected[:, own] - values.mean()) / values.std()
            np.testing.assert_allclose(got.flatten(1).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_scaling_pixel_by_pixel(drawn):
    folder, arrays = drawn
    data = open_data(folder, "fit", normaliser=Standardise())
    train, val = (pixels(arrays, data.records(part)) for part in ("train", "val"))
    expected = (val - train.mean(0)) / train.std(0)
    for party, got in enumerate(everything(data.records("val"))):
        np.testing.assert_allclose(got.numpy(), expected[(slice(None), *TILES[party])], rtol=1e-4, atol=1e-5)


def test_scaling_is_fitted_to_some_pictures_that_the_seed_draws(drawn, monkeypatch):
    folder, arrays = drawn
    read: list[str] = []
    real = Pictures.read
    monkeypatch.setattr(
        Pictures, "read", lambda self, places: read.extend(self.names[places.numpy()]) or real(self, places)
    )
    chosen = []
    for seed in (0, 0, 1):
        read.clear()
        data = open_data(folder, seed=seed, fit_records=7, val_share=0)
        assert len(read) == len(set(read)) == 7  # once, for all stages
        assert {name.split("/")[0] for name in read} == {"train"}
        chosen.append(list(read))
        few = np.stack([arrays[name] for name in read]) / 255
        test = pixels(arrays, data.records("test"))
        for party, got in enumerate(everything(data.records("test"))):
            expected = oracle(few, test)[(slice(None), *TILES[party])]
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert chosen[0] == chosen[1] != chosen[2]


def test_a_test_on_its_own_is_scaled_like_after_training(drawn):
    both, alone = open_data(drawn[0], fit_records=5), open_data(drawn[0], "test", fit_records=5)
    for a, b in zip(everything(both.records("test")), everything(alone.records("test")), strict=True):
        assert torch.equal(a, b)


def test_constants_instead_of_fitted_numbers(drawn, monkeypatch):
    folder, arrays = drawn
    mean, deviation = [0.4, 0.5, 0.6], [0.1, 0.2, 0.3]
    with monkeypatch.context() as patched:
        patched.setattr(Pictures, "read", lambda *_: pytest.fail("nothing has to be decoded"))
        data = open_data(folder, mean=mean, deviation=deviation)
    test = (pixels(arrays, data.records("test")) - np.reshape(mean, (3, 1, 1))) / np.reshape(deviation, (3, 1, 1))
    for party, got in enumerate(everything(data.records("test"))):
        np.testing.assert_allclose(got.numpy(), test[(slice(None), *TILES[party])], rtol=1e-5, atol=1e-6)


# ---- who holds what


@pytest.mark.parametrize("cut", [LimitedOverlap(aligned=6), Groups(None, [1, 2, 1, 1])], ids=["overlap", "groups"])
def test_absent_pictures_are_zero_and_not_fitted(drawn, cut):
    folder, arrays = drawn
    data = open_data(folder, "fit", partitioner=cut, val_share=0)
    records = data.records("train")
    tiles = [0, 1, 2, 3] if len(records.shapes) == 4 else [0, 1, 1, 2, 3]
    x = pixels(arrays, records)
    assert not records.present.all()
    for party, got in enumerate(everything(records)):
        held = records.present[:, party].numpy()
        assert torch.equal(got[~held], torch.zeros_like(got[~held]))
        assert torch.equal(records.features_of(party, torch.arange(36)), got)
        expected = oracle(x[held], x[held])[(slice(None), *TILES[tiles[party]])]
        np.testing.assert_allclose(got[held].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_every_party_is_fitted_to_as_many_of_its_own_pictures(drawn, monkeypatch):
    """A party with few of them finds them, whichever the seed draws for the others."""
    read: list[int] = []
    real = Pictures.read
    monkeypatch.setattr(Pictures, "read", lambda self, places: read.extend(places.tolist()) or real(self, places))
    data = open_data(drawn[0], "fit", partitioner=LimitedOverlap(aligned=1), fit_records=3, val_share=0)
    assert data.records("train").present[read].sum(0).min() >= 3
    assert 3 < len(read) <= 12


def test_only_common_pictures_are_kept(drawn):
    cut, common = LimitedOverlap(aligned=6), LimitedOverlap(aligned=6, only_aligned=True)
    whole, kept = (open_data(drawn[0], "fit", partitioner=c, val_share=0).records("train") for c in (cut, common))
    rows = whole.present.all(1).nonzero().flatten()
    assert kept.ids.tolist() == whole.ids[rows.numpy()].tolist()
    assert kept.present is None
    for a, b in zip(everything(kept), whole.rows(rows), strict=True):
        assert torch.equal(a, b)


def test_a_party_without_a_training_picture(drawn):
    class Nothing(Grid):
        def held(self, split, records, parties):
            return np.tile([True, False, True, True], (records, 1))

    with pytest.raises(
        ConfigurationError, match="party 1 holds none of the 32 training records, so its scaling cannot be fitted"
    ):
        open_data(drawn[0], "fit", partitioner=Nothing())


def test_a_cut_by_values_is_refused(drawn):
    class ByValue(InformedPartitioner):
        def parts_by(self, layout, training):
            pytest.fail("there are no values to look at")

    with pytest.raises(
        ConfigurationError, match="ByValue needs the values of the data in memory, and these data stay on the disk"
    ):
        open_data(drawn[0], "fit", partitioner=ByValue())


# ---- memory, workers, threads


def held_bytes(thing: Any, seen: set[int]) -> int:
    """Bytes of tensors and arrays that can be reached from a thing, names, labels and places left out."""
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return 0 if thing.dtype == torch.int64 else thing.untyped_storage().nbytes()
    if isinstance(thing, np.ndarray):
        return 0 if thing.dtype.kind in "Ui" else thing.nbytes
    inner = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple) else ()
    if type(thing).__module__.startswith("lightning_vfl.") and hasattr(thing, "__dict__"):
        inner = [*inner, *vars(thing).values()]
    return sum(held_bytes(part, seen) for part in inner)


def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path, monkeypatch):
    """After an epoch as before; and while it runs, no more pictures are there than a batch has."""
    alive: list[weakref.ref] = []
    most = 0
    real = pictures.decoded

    def watched(*args: Any) -> np.ndarray:
        nonlocal most
        array = np.array(real(*args))
        alive.append(weakref.ref(array))
        most = max(most, sum(ref() is not None for ref in alive))
        return array

    monkeypatch.setattr(pictures, "decoded", watched)
    sizes = []
    for number in (4, 12):
        folder = tmp_path / str(number)
        write_pictures(folder, train=number, test=1)
        data = open_data(folder, "fit", val_share=0, threads=2)
        before = held_bytes(data, set())
        batches = [batch.features[0].sum() for batch in data.train_dataloader()]
        assert len(batches) == -(-3 * number // 5)
        gc.collect()
        sizes.append(held_bytes(data, set()))
        assert sizes[-1] == before
    assert sizes[0] == sizes[1] < 8 * 8 * 3 * 4 * 12  # shift and scale, and who has which pixel, here and for the model
    assert len(alive) == 2 * 3 * (4 + 12)
    assert most <= 2 + 1  # as many as threads; one may be on its way out


def test_threads_change_nothing(drawn):
    one, many = (open_data(drawn[0], "fit", threads=threads) for threads in (1, 8))
    for a, b in zip(one.train_dataloader(), many.train_dataloader(), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.features, b.features, strict=True))


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")
def test_workers_change_nothing(drawn):
    here, elsewhere = (open_data(drawn[0], "fit", num_workers=workers) for workers in (0, 2))
    for a, b in zip(here.train_dataloader(), elsewhere.train_dataloader(), strict=True):
        assert torch.equal(a.record_ids, b.record_ids)
        assert all(torch.equal(x, y) for x, y in zip(a.features, b.features, strict=True))


def test_every_participant_may_have_pictures_of_its_own(drawn):
    records = open_data(drawn[0], "fit").records("train")
    ids = torch.tensor([[0, 3, 1, 2, 9], [4, 4, 0, 7, 9]])
    for party, x in enumerate(records[Request(ids, None, None)].features):
        assert torch.equal(x, records.rows(ids[:, party])[party])


# ---- damage


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-30])


def photograph(path):
    save(path, np.random.Generator(np.random.PCG64(2)).integers(0, 256, (64, 64, 3)), format="JPEG")


DAMAGE = {
    "cut short": (cut_short, r"\(.*truncated.*\)"),
    "a photograph cut short": (lambda path: (photograph(path), cut_short(path)), r"\(.*truncated.*\)"),
    "empty": (lambda path: path.write_bytes(b""), r"\(neither PNG nor JPEG\)"),
    "no picture": (lambda path: path.write_bytes(b"<html>"), r"\(neither PNG nor JPEG\)"),
    "another format": (lambda path: save(path, np.zeros((8, 8)), format="GIF"), r"\(neither PNG nor JPEG\)"),
    "a head alone": (lambda path: path.write_bytes(path.read_bytes()[:33]), r"\(.+\)"),
    "16 bits": (
        lambda path: Image.fromarray(np.zeros((8, 8), np.uint16)).save(path),
        r"\(mode I;16 does not have 8 bits a channel\)",
    ),
    "a link to nowhere": (lambda path: (path.unlink(), path.symlink_to("/nowhere")), r"\(.*No such file.*\)"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [FIRST, further("train/dog/5.png"), further("test/cat/2.png")])
def test_damaged_pictures_are_refused_by_name_before_training(spoilt, damage, name):
    spoil, message = DAMAGE[damage]
    spoil(spoilt / name)
    stage, total = ("test", 12) if name.startswith("test") else ("fit", 36)
    with pytest.raises(
        ConfigurationError, match=f"1 of {total} pictures cannot be used, first {spoilt / name} {message}"
    ):
        open_data(spoilt, stage, mean=[0] * 3, deviation=[1] * 3, val_share=0)


def test_all_damaged_pictures_are_counted(spoilt):
    for name in ("test/cat/2.png", "test/dog/0.png", "test/bird/3.png"):
        cut_short(spoilt / name)
    with pytest.raises(
        ConfigurationError, match=f"3 of 12 pictures cannot be used, first {spoilt}/test/bird/3.png .*; r"
    ):
        open_data(spoilt, "test")


@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_what_follows_a_picture_does_no_harm(spoilt, kind):
    path = spoilt / "test/cat/2.png"
    if kind == "jpg":
        photograph(path)
    path.write_bytes(path.read_bytes() + bytes(100))
    assert len(open_data(spoilt, "test").records("test")) == 12


def middle(path) -> None:
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(30)
    path.write_bytes(bytes(content))


def test_damage_in_the_middle_ends_training_with_the_name(spoilt):
    middle(spoilt / FIRST)
    data = open_data(spoilt, "fit", mean=[0] * 3, deviation=[1] * 3, val_share=0)
    with pytest.raises(ConfigurationError, match=rf"^{spoilt / FIRST} cannot be decoded \(.+\); replace or remove it$"):
        list(data.train_dataloader())


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")
def test_workers_say_it_in_the_same_words(spoilt):
    middle(spoilt / FIRST)
    said = []
    for workers in (0, 2):
        data = open_data(spoilt, "fit", mean=[0] * 3, deviation=[1] * 3, val_share=0, num_workers=workers)
        with pytest.raises(ConfigurationError) as error:
            list(data.train_dataloader())
        said.append(str(error.value))
    assert said[0] == said[1]


def test_pictures_are_looked_at_in_many_tasks(tmp_path):
    write_pictures(tmp_path, train=200, test=0, size=2)
    cut_short(tmp_path / "train/dog/99.png")
    with pytest.raises(
        ConfigurationError, match=f"1 of 600 pictures cannot be used, first {tmp_path}/train/dog/99.png"
    ):
        open_data(tmp_path, "fit", size=2, val_share=0)


# ---- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be at least 1; got 0"),
        ({"fit_records": 0}, "fit_records must be at least 1; got 0"),
        ({"threads": 0}, "threads must be at least 1; got 0"),
        ({"val_share": 1.0}, "val_share 1.0 leaves no records for training"),
        ({"mean": [0.5] * 3}, "mean and deviation must be given together and without a normaliser; give both and no"),
        ({"deviation": [0.5] * 3}, "mean and deviation must be given together"),
        (
            {"mean": [0.5] * 3, "deviation": [0.5] * 3, "normaliser": Unchanged()},
            "mean and deviation must be given together",
        ),
        ({"mean": [0.5] * 3, "deviation": [0.5]}, r"each, .* got mean \[0.5, 0.5, 0.5\] and deviation \[0.5\]"),
        ({"mean": [0.5] * 3, "deviation": [0.5, 0, 1]}, r"must have 3 number\(s\) each, deviations above 0; got mean"),
        ({"mean": [0.5] * 3, "deviation": [0.5] * 3, "colour": False}, "must have 1 number"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        ImageFolderVFL(**settings)
