"""Law: kept records are bit for bit those of the files, and what is not whole or not meant is never used."""

import json
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer

from lightning_vfl.aggregators import Concat
from lightning_vfl.datamodules import (
    EMNIST,
    MNIST,
    ContiguousColumns,
    FashionMNIST,
    Grid,
    Groups,
    InformedPartitioner,
    LabelPartition,
    Layout,
    LimitedOverlap,
    Normaliser,
    OverlappingColumns,
    Part,
    RowStrips,
    Standardise,
    TrainingRecords,
    Unchanged,
    VerticalDataModule,
    VerticalRecords,
)
from lightning_vfl.datamodules.records.cache import RecordCache
from lightning_vfl.protocols.split import SplitVFL
from tests.further import further

from ..miniature import write_emnist, write_idx

STAGES = ("fit", "test", "predict")


def opened(kind: Callable[..., VerticalDataModule] = MNIST, **settings: Any) -> VerticalDataModule:
    data = kind(**settings)
    for stage in STAGES:
        data.setup(stage)
    return data


def same(a: VerticalDataModule, b: VerticalDataModule) -> bool:
    """Whether all splits are alike to the last bit, and say the same about their records."""
    if a._records.keys() != b._records.keys() or a.party_shapes != b.party_shapes:
        return False
    for name in a._records:
        one, other = a.records(name), b.records(name)
        assert isinstance(one, VerticalRecords)
        assert isinstance(other, VerticalRecords)
        pairs = [(one.features, other.features)]
        pairs += [(getattr(one, n), getattr(other, n)) for n in ("labels", "present", "label_holders")]
        for x, y in pairs:
            if (x is None) != (y is None) or (x is not None and (x.dtype != y.dtype or not torch.equal(x, y))):
                return False
        if one.ids.dtype != other.ids.dtype or one.ids.tolist() != other.ids.tolist():
            return False
    return True


@pytest.fixture
def files(tmp_path):
    write_idx(tmp_path / "files")
    return {"data_dir": tmp_path / "files", "val_records": 20}


@pytest.fixture
def unread(monkeypatch):
    """From here on, reading a data file is an error."""

    def forbid() -> None:
        def fail(*_: object):
            raise AssertionError("a data file was read")

        monkeypatch.setattr(MNIST, "read", fail)

    return forbid


class BrightestFirst(InformedPartitioner):
    """Halves of the pixels, by how bright they are in the training records."""

    def parts_by(self, layout: Layout, training: TrainingRecords) -> tuple[Part, ...]:
        order = np.argsort(-training.features.mean(axis=0), kind="stable")
        return tuple(Part(own, (len(own),)) for own in np.array_split(order, 2))


CUTS = {
    "usual": None,
    "quadrants": Grid(2, 2),
    "groups": Groups(RowStrips(2), members=[1, 2]),
    "few in common": LimitedOverlap(None, 50),
    "label holders": LabelPartition(RowStrips(4), active=2),
    "informed": BrightestFirst(),
}


@pytest.mark.parametrize("cut", CUTS)
def test_kept_records_have_the_bits_of_the_files_without_reading_them(tmp_path, files, unread, cut):
    files = {**files, "partitioner": CUTS[cut]}
    plain, first = opened(**files), opened(**files, cache_dir=tmp_path / "kept")
    state = plain.state_dict()
    unread()
    again = opened(**files, cache_dir=str(tmp_path / "kept"))
    assert same(plain, first)
    assert same(plain, again)
    again.load_state_dict(state)  # an informed cut names its columns in a checkpoint
    for party in range(len(plain.parts)):  # records that the partitioner leaves out of the training
        extra, kept = plain.extra_of(party), again.extra_of(party)
        assert (extra is None and kept is None) or torch.equal(extra, kept)
    assert not list(tmp_path.glob("kept/*/*.tmp"))


def test_no_validation_records_are_kept_too(tmp_path, files, unread):
    files["val_records"] = 0
    opened(**files, cache_dir=tmp_path / "kept")
    unread()
    data = opened(**files, cache_dir=tmp_path / "kept")
    assert data.val_dataloader() == []
    assert len(data.records("train")) == 120


@pytest.mark.parametrize("cache_dir", [None, "kept"])
def test_a_model_finds_no_validation_records_in_a_new_data_set(tmp_path, files, cache_dir):
    settings = {**files, "val_records": 0, "cache_dir": cache_dir and tmp_path / cache_dir}
    data = MNIST(**settings)
    data.use(opened(**settings).fitted)
    data.setup("validate")
    assert data.val_dataloader() == []


def test_features_are_mapped_and_never_written_back(tmp_path, files):
    settings = {**files, "cache_dir": tmp_path / "kept"}
    plain = opened(**settings)
    (place,) = tmp_path.glob("kept/MNIST-train-*/features.npy")
    before = place.read_bytes()
    mapped = opened(**settings).records("train")
    assert str(place) in Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else True
    mapped.features.zero_()
    assert place.read_bytes() == before
    assert same(plain, opened(**settings))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than a machine of one core has
def test_worker_processes_gather_from_mapped_features(tmp_path, files):
    settings = {**files, "cache_dir": tmp_path / "kept", "batch_size": 32}
    opened(**settings)
    batches = [list(opened(**settings, num_workers=n).train_dataloader()) for n in (0, 2)]
    assert [len(own) for own in batches] == [4, 4]
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one.record_ids, other.record_ids)
        assert all(torch.equal(x, y) for x, y in zip(one.features, other.features, strict=True))


class Sharper(Normaliser):
    """A scaling of the user's own, whose repr names no settings."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def fit(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert x.dtype == torch.float32
        return x.mean(0), torch.full((x.shape[1],), 1 / self.factor)


class PixelByPixel(Normaliser):
    """A scaling of the user's own by arrays, which are printed without most of their numbers."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def fit(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(x.shape[1]), torch.as_tensor(self.scale)[1000 : 1000 + x.shape[1]].clone()


class Seldom(ContiguousColumns):
    """A partitioner of the user's own that lists who holds which training record."""

    def __init__(self, holders: Any) -> None:
        super().__init__(2)
        self.holders = holders

    def held(self, split: str, records: int, parties: int) -> Any:
        return np.stack([np.ones(records, np.bool_), self.holders[1000 : 1000 + records]], axis=1)


@pytest.mark.parametrize("of", [np.array, torch.tensor, list])
@pytest.mark.parametrize("inside", [False, True])
def test_arrays_among_the_settings_are_told_apart_by_every_number(tmp_path, files, of, inside):
    kept = {**files, "cache_dir": tmp_path / "kept"}
    one, all_but_one = np.ones(3000), np.ones(3000)
    all_but_one[1001] += 1e-6
    scalings = [PixelByPixel(of(numbers.tolist())) for numbers in (one, all_but_one)]
    shares = [Seldom(np.asarray(numbers == 1)) for numbers in (one, all_but_one)]
    cuts = [OverlappingColumns(share, shared=0.1) for share in shares] if inside else shares
    for name, settings in (("normaliser", scalings), ("partitioner", cuts)):
        first, other = (opened(**kept, **{name: setting}) for setting in settings)
        assert same(other, opened(**files, **{name: settings[1]}))
        assert not same(first, other)


OTHERS = {
    "cut": {"partitioner": RowStrips(2)},
    "scaling": {"normaliser": Unchanged()},
    "a scaling's settings": {"normaliser": Sharper(3.0)},
    "seed": {"seed": 1},
    "val_records": {"val_records": 21},
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_setting_is_another_key(tmp_path, files, other):
    usual = {**files, "cache_dir": tmp_path / "kept", "normaliser": Sharper(2.0)}
    opened(**usual)
    changed = {**usual, **OTHERS[other]}
    assert same(opened(**changed), opened(**{**changed, "cache_dir": None}))
    assert len(list(tmp_path.glob("kept/MNIST-train-*"))) == 2
    assert not same(opened(**usual), opened(**changed))


def test_another_class_or_split_is_another_key(tmp_path, files):
    kept = tmp_path / "kept"
    one, other = opened(MNIST, **files, cache_dir=kept), opened(FashionMNIST, **files, cache_dir=kept)
    assert same(one, other)
    assert len(list(kept.iterdir())) == 8
    write_emnist(tmp_path / "emnist")
    write_emnist(tmp_path / "emnist", "digits", 10)
    for split in ("balanced", "digits"):
        settings = {"data_dir": tmp_path / "emnist", "val_records": 20, "split": split}
        for _ in range(2):
            assert same(opened(EMNIST, **settings), opened(EMNIST, **settings, cache_dir=kept))


@pytest.mark.parametrize("what", ["size", "time"])
def test_a_changed_file_is_another_key(tmp_path, files, what):
    settings = {**files, "cache_dir": tmp_path / "kept"}
    opened(**settings)
    file = files["data_dir"] / "t10k-labels-idx1-ubyte.gz"
    if what == "size":
        state = file.stat()
        file.write_bytes(file.read_bytes() + bytes(3))  # padding, which gzip allows
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    else:
        os.utime(file, ns=(1, 1))
    opened(**settings)
    assert len(list(tmp_path.glob("kept/MNIST-test-*"))) == 2


def test_a_file_that_the_partitioner_reads_is_part_of_the_key(tmp_path, files):
    file = tmp_path / "holders.csv"
    for party in (0, 1):
        file.write_text("id,party\n" + "".join(f"{i},{party}\n" for i in range(100 + party)))
        settings = {**files, "partitioner": Groups(LabelPartition(RowStrips(2), file=file), members=[1, 1])}
        data = opened(**settings, cache_dir=tmp_path / "kept")
        assert same(data, opened(**settings))
        assert data.records("train").label_holders.max() == party


def shorten(place: Path) -> None:
    place.write_bytes(place.read_bytes()[:-1])


def other_numbers(place: Path) -> None:
    with place.open("wb") as file:
        np.save(file, np.zeros((3, 4)))


def as_pickle(place: Path) -> None:
    with place.open("wb") as file:
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)


def as_archive(place: Path) -> None:
    with place.open("wb") as file:
        np.savez(file, a=np.zeros(3))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut short": shorten,
    "empty": lambda place: place.write_bytes(b""),
    "gone": lambda place: place.unlink(),
    "text": lambda place: place.write_text("[1, 2]"),
    "other numbers": other_numbers,
    "a pickle": as_pickle,
    "an archive": as_archive,
}


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *product(["features.npy"], DAMAGE),
        *(
            pair if pair[1] in ("cut short", "other numbers") else further(*pair)
            for pair in product(["about.json"], DAMAGE)
        ),
        *zip(["labels.npy", "ids.npy", "positions.npy"], ["cut short", "other numbers", "a pickle"], strict=True),
    ],
)
def test_damaged_and_foreign_files_are_made_anew(tmp_path, files, unread, damage, file):
    settings = {**files, "cache_dir": tmp_path / "kept"}
    plain = opened(**settings)
    for place in tmp_path.glob(f"kept/*/{file}"):
        DAMAGE[damage](place)
    assert same(plain, opened(**settings))
    unread()
    assert same(plain, opened(**settings))


def test_what_was_kept_for_another_key_is_not_believed(tmp_path, files):
    settings = {**files, "cache_dir": tmp_path / "kept"}
    opened(**settings, seed=1)
    (foreign,) = tmp_path.glob("kept/MNIST-train-*")
    plain = opened(**settings)
    (own,) = set(tmp_path.glob("kept/MNIST-train-*")) - {foreign}
    for place in foreign.iterdir():
        shutil.copy(place, own)
    assert same(plain, opened(**settings))


def test_a_cut_that_has_changed_under_its_name_is_not_taken_from_the_cache(tmp_path, files, monkeypatch):
    settings = {**files, "cache_dir": tmp_path / "kept"}
    opened(**settings)
    monkeypatch.setattr(RowStrips, "parts", lambda self, layout: Grid(1, self.parties).parts(layout))
    assert same(opened(**settings), opened(**files))


class Killed(BaseException):
    """What no code catches."""


@pytest.mark.parametrize("steps", [0, *(further(n) for n in (1, 2, 3)), 4])
def test_a_killed_writer_leaves_nothing_that_is_read(tmp_path, files, monkeypatch, steps):
    """After so many of the files of the training records; the one it was writing is half there, under another name."""
    settings = {**files, "cache_dir": tmp_path / "kept"}
    replace, done = os.replace, []

    def killed(source: Path, target: Path) -> None:
        if len(done) == steps:
            raise Killed
        done.append(replace(source, target))

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # nobody tidies up after a kill
        with pytest.raises(Killed):
            opened(**settings)
    (half,) = tmp_path.glob("kept/*/*.tmp")
    half.write_bytes(half.read_bytes()[:100])
    assert not (half.parent / "about.json").exists()
    cache = RecordCache(tmp_path / "kept", "MNIST", MNIST(**settings)._key())
    assert cache.read("train") is None
    assert same(opened(**settings), opened(**files))
    assert same(opened(**settings), opened(**files))


def test_a_folder_that_cannot_be_written_is_told_and_done_without(tmp_path, files):
    (tmp_path / "kept").write_text("not a folder")
    with pytest.warns(UserWarning, match="cannot be stored in .*kept .* set cache_dir to a folder") as told:
        data = opened(**files, cache_dir=tmp_path / "kept")
    assert len(told) == 4
    assert same(data, opened(**files))


def test_nothing_is_kept_unless_asked_for(tmp_path, files):
    opened(**files)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["files"]


def test_the_key_is_told_in_the_file(tmp_path, files):
    opened(**files, cache_dir=tmp_path / "kept")
    (place,) = tmp_path.glob("kept/MNIST-val-*/about.json")
    key = json.loads(place.read_text())["key"]
    assert key["seed"] == 0
    assert key["val_records"] == 20
    assert [Path(file).name for file, _, _ in key["files"]] == list(MNIST.sha256)


def fit(data: VerticalDataModule, folder: Path, epochs: int, checkpoint: Path | None = None) -> tuple[SplitVFL, Path]:
    torch.manual_seed(0)
    module = SplitVFL(Concat(), width=4)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    trainer.save_checkpoint(folder / f"{epochs}.ckpt")
    return module, folder / f"{epochs}.ckpt"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_training_and_its_resumption_have_the_same_bits(tmp_path, files):
    kept = {"cache_dir": tmp_path / "kept", "batch_size": 32, "normaliser": Standardise()}
    opened(**files, **kept)
    whole, _ = fit(MNIST(**files, **{**kept, "cache_dir": None}), tmp_path, 2)
    _, checkpoint = fit(MNIST(**files, **{**kept, "cache_dir": None}), tmp_path, 1)
    resumed, _ = fit(MNIST(**files, **kept), tmp_path, 2, checkpoint)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
