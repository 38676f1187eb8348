"""Laws of all published data sets, on small files in their published formats: splits, scaling, classes, folders."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_vfl import datamodules
from lightning_vfl.datamodules import Standardise, Unchanged
from lightning_vfl.errors import ConfigurationError

from ..miniature import PUBLISHED, write_activity_csv

BOTH = ("val_share", "test_share")
VAL = ("val_share",)
RECORDS = ("val_records",)


@dataclass(frozen=True)
class Published:
    """A data set: its class, its files in ``folder``, and the settings that small files need."""

    kind: str
    folder: str
    write: Callable[[Path], object]
    settings: dict[str, Any]
    drawn: tuple[str, ...] = BOTH
    """The settings that say how many records are drawn for validation and testing."""

    def open(self, folder: Path | None, *stages: str, **settings: Any) -> Any:
        data = getattr(datamodules, self.kind)(data_dir=folder, **self.settings | settings)
        for stage in stages or ("fit", "test", "predict"):
            data.setup(stage)
        return data


FOLDERS = {
    "Adult": "adult",
    "BankMarketing": "bank_marketing",
    "CIFAR10": "cifar10",
    "Caltech7": "caltech7",
    "CreditDefault": "credit_default",
    "EMNIST": "emnist",
    "FashionMNIST": "fashion_mnist",
    "Handwritten": "handwritten",
    "HumanActivity": "human_activity",
    "ImageFolderVFL": "image_folder",
    "MNIST": "mnist",
    "ModelNet10Views": "model_net",
    "Parkinson": "parkinson",
    "Phishing": "phishing",
}
FURTHER: dict[str, dict[str, Any]] = {
    "CIFAR10": {"batch_size": 20},
    "Caltech7": {"val_share": 0.2},
    "ImageFolderVFL": {"val_share": 0.25},
    "Parkinson": {"split": "rows"},
}
DRAWN = {
    **dict.fromkeys(("Adult", "HumanActivity", "ImageFolderVFL", "ModelNet10Views"), VAL),
    **dict.fromkeys(("CIFAR10", "EMNIST", "FashionMNIST", "MNIST"), RECORDS),
}
SETS = {
    name: Published(name, FOLDERS[name], write, settings | FURTHER.get(name, {}), DRAWN.get(name, BOTH))
    for name, (write, settings) in PUBLISHED.items()
    if name in FOLDERS
}
SETS["HumanActivity of Kaggle"] = replace(SETS["HumanActivity"], write=write_activity_csv)
TWO_CLASSES = {
    "Adult": "Adult: 420 records of adult.data, 105 of them (25.0%) with an income above 50,000 dollars",
    "BankMarketing": "BankMarketing: 620 records of bank-full.csv, 124 of them (20.0%) with a subscription",
    "CreditDefault": "CreditDefault: 200 records of UCI_Credit_Card.csv, 40 of them (20.0%) with a default",
    "Phishing": "Phishing: 200 records of Training Dataset.arff, 120 of them (60.0%) of a legitimate site",
    "Parkinson": "Parkinson: 60 records of pd_speech_features.csv, 45 of them (75.0%) of a person with the disease",
}
PUBLISHED_RECORDS = {
    "Adult": 32561,
    "BankMarketing": 45211,
    "CreditDefault": 30000,
    "Phishing": 11055,
    "Parkinson": 756,
    "HumanActivity": 7352,
    "CIFAR10": 10000,
}
TABLES = ("CreditDefault", "Phishing", "Parkinson", "Handwritten", "Caltech7", "HumanActivity")
for_all = pytest.mark.parametrize("name", SETS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder with the files of a data set; tests do not change them."""

    @cache
    def folder(name: str) -> Path:
        place: Path = tmp_path_factory.mktemp("published") / SETS[name].folder
        place.mkdir()
        SETS[name].write(place)
        return place

    return folder


@pytest.fixture(scope="module")
def opened(folders):
    """A data set with its usual settings; tests only read it."""
    return cache(lambda name: SETS[name].open(folders(name)))


@for_all
def test_every_record_is_in_one_split_and_the_seed_draws_it(folders, opened, name):
    data = opened(name)
    ids = [data.records(split).ids.tolist() for split in ("train", "val", "test", "predict")]
    assert ids[2] == ids[3]
    drawn = sorted(chain(*ids[: 1 + len(SETS[name].drawn)]))
    assert len(set(drawn)) == len(drawn)
    if isinstance(drawn[0], int):
        assert drawn == list(range(drawn[0], drawn[0] + len(drawn)))
    same, other = (SETS[name].open(folders(name), "fit", seed=seed).records("val").ids.tolist() for seed in (0, 1))
    assert ids[1] == same != other


@for_all
def test_nothing_drawn_leaves_all_records_for_training(folders, opened, name, monkeypatch):
    """Files are sought in the folder of all data."""
    monkeypatch.setenv("LIGHTNING_VFL_DATA", str(folders(name).parent))
    drawn = SETS[name].drawn
    data = SETS[name].open(None, "fit", **dict.fromkeys(drawn, 0))
    counts = [len(opened(name).records(split)) for split in ("train", "val", "test")]
    assert len(data.records("train")) == sum(counts[: 1 + len(drawn)])
    assert data.val_dataloader() == []
    if len(drawn) == 2:
        with pytest.raises(ConfigurationError, match=f"{name} has no 'test' records"):
            data.test_dataloader()


SHARES: dict[tuple[str, ...], tuple[float, ...]] = {BOTH: (0.25, 0.3), VAL: (0.5,)}


@pytest.mark.parametrize("name", [name for name in SETS if SETS[name].drawn != RECORDS])
def test_drawn_records_have_all_classes_in_their_shares(folders, name):
    drawn = SETS[name].drawn
    shares = SHARES[drawn]
    data = SETS[name].open(folders(name), **dict(zip(drawn, shares, strict=True)))
    counts = [data.records(split).labels.bincount().numpy() for split in ("train", "val", "test")]
    together = sum(counts[: 1 + len(drawn)])
    for share, own in zip(shares, counts[1:], strict=False):
        assert own.sum() == round(share * together.sum())
        assert np.abs(own - share * together).max() < 1.5


@for_all
def test_impossible_shares_are_refused(folders, name):
    drawn = SETS[name].drawn
    if drawn == RECORDS:
        count = len(SETS[name].open(folders(name), "fit", val_records=0).records("train"))
        refused = {(-1,): "must be 0 or more", (count,): f"lower it to at most {count - 1}"}
    elif drawn == VAL:
        fix = "leaves no records for training; use a share from 0 to less than 1"
        refused = {(1.0,): fix, (-0.1,): fix, (float("nan"),): fix}
    else:
        fix = "leave no records for training; use shares from 0 that add up to less than 1"
        refused = {(0.5, 0.5): fix, (-0.1, 0.2): fix, (0.1, 1.0): fix}
    for values, message in refused.items():
        with pytest.raises(ConfigurationError, match=message):
            SETS[name].open(folders(name), "fit", **dict(zip(drawn, values, strict=True)))


@pytest.mark.parametrize("name", TABLES)
def test_columns_are_scaled_by_their_training_records(folders, name):
    plain = SETS[name].open(folders(name), normaliser=Unchanged())
    usual = Standardise() if name in ("Phishing", "HumanActivity") else None  # both are on one scale already
    scaled = SETS[name].open(folders(name), normaliser=usual)
    train, test = (plain.records(split).features.double().numpy() for split in ("train", "test"))
    deviation = train.std(0)
    varied = deviation > 0
    expected = (test - train.mean(0))[:, varied] / deviation[varied]
    np.testing.assert_allclose(scaled.records("test").features[:, varied].numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["CIFAR10", "MNIST", "FashionMNIST", "ModelNet10Views"])
def test_pictures_are_scaled_by_all_training_pixels_of_their_party(folders, name):
    plain, scaled = (SETS[name].open(folders(name), "fit", normaliser=one) for one in (Unchanged(), None))
    train, val, found = (
        [x.double().numpy() for x in data.records(split).rows(torch.arange(len(data.records(split))))]
        for data, split in ((plain, "train"), (plain, "val"), (scaled, "val"))
    )
    for own, pictures, there in zip(train, val, found, strict=True):
        np.testing.assert_allclose(there, (pictures - own.mean()) / own.std(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TWO_CLASSES)
def test_two_classes_are_told(folders, name, monkeypatch):
    messages = []
    monkeypatch.setattr("lightning_vfl.datamodules.sets.two_classes.rank_zero_info", messages.append)
    SETS[name].open(folders(name), "fit")
    assert messages[0] == TWO_CLASSES[name]
    assert len(messages) == (2 if name == "Adult" else 1)


@for_all
def test_the_folder_is_named_where_nothing_is(tmp_path, name):
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}.* data_dir or LIGHTNING_VFL_DATA$"):
        SETS[name].open(tmp_path, "fit")


@pytest.mark.parametrize("name", PUBLISHED_RECORDS)
def test_files_must_have_as_many_records_as_published(folders, name):
    with pytest.raises(ConfigurationError, match=rf"holds \d+ records instead of {PUBLISHED_RECORDS[name]}; fetch it"):
        getattr(datamodules, name)(data_dir=folders(name)).setup("fit")
