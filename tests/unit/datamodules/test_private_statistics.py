"""What data sets say of themselves that depends on other training records, and between which bounds features lie."""

import numpy as np
import pytest
import torch

from lightning_vfl import datamodules
from lightning_vfl.datamodules import (
    ColumnsByCorrelation,
    ColumnsByImportance,
    CSVTables,
    Digits,
    Given,
    HumanActivity,
    ImageFolderVFL,
    LimitedOverlap,
    Normaliser,
    Phishing,
    Split,
    Standardise,
    StandardiseNumbers,
    StandardiseParty,
    Unchanged,
    VerticalDataModule,
)
from lightning_vfl.datamodules.sets.idx_images import IDXImages

from . import miniature
from .miniature import InMemory, table

PUBLIC = {name: getattr(datamodules, name) for name in datamodules.__all__}

TRAIN = {"train": table(40, 4)}


def moved(data, other):
    """Whether the prepared features of records that both have are other ones."""
    for each in (data, other):
        each.setup("fit")
    return not torch.equal(data.records("train").features[1:], other.records("train").features[1:])


@pytest.mark.parametrize("kind", [c for c in PUBLIC.values() if isinstance(c, type) and issubclass(c, Normaliser)])
def test_a_normaliser_says_truly_whether_it_is_fitted(kind):
    """The oracle: one record is changed, and the others are looked at."""
    if kind is Normaliser:
        return
    changed = Split(TRAIN["train"].features.clone(), TRAIN["train"].labels, TRAIN["train"].ids)
    changed.features[0] += 5.0
    make = (lambda: Given(-1.0, 1.0)) if kind is Given else kind
    data, other = (InMemory({"train": split}, normaliser=make()) for split in (TRAIN["train"], changed))
    assert kind.fitted == moved(data, other) == bool(data.private_statistics())


@pytest.mark.parametrize("kind", [Standardise, StandardiseNumbers, StandardiseParty])
def test_statistics_that_are_declared_public_are_the_same_and_accepted(kind):
    usual, public = (InMemory(TRAIN, normaliser=make) for make in (kind(), kind(public=True)))
    assert not moved(usual, public)
    (said,) = usual.private_statistics()
    assert said.startswith(f"{kind.__name__} is fitted to the training records; use normaliser: Given, or declare")
    assert not public.private_statistics()
    assert repr(usual.normaliser) == f"{kind.__name__}()"  # as earlier checkpoints call it


@pytest.mark.parametrize("kind", [ColumnsByCorrelation, ColumnsByImportance])
@pytest.mark.parametrize("wrapped", [lambda cut: cut, lambda cut: LimitedOverlap(cut, 20)], ids=["bare", "wrapped"])
def test_a_cut_by_training_records_is_named_unless_it_is_declared_public(kind, wrapped):
    data, public = (
        InMemory(TRAIN, partitioner=wrapped(kind(2, public=public)), normaliser=Unchanged()) for public in (False, True)
    )
    (said,) = data.private_statistics()
    assert "divides the columns by the training records; use another partitioner, or declare the parts public" in said
    assert not public.private_statistics()
    assert repr(data.partitioner) == repr(public.partitioner)  # the cut is the same, so a checkpoint takes either


def test_categories_of_the_training_records_are_named_unless_they_are_declared_public(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,c,y\n" + "".join(f"{i},{'uv'[i % 2]},{i % 2}\n" for i in range(20)))
    settings = {"tables": {"a": path}, "label_party": "a", "label_column": "y", "normaliser": Unchanged()}
    (said,) = CSVTables(**settings, categorical=["c"]).private_statistics()
    assert "one-hot columns are the categories of the training records" in said
    assert not CSVTables(**settings, categorical=["c"], public_categories=True).private_statistics()
    miniature.write_adult(tmp_path)
    usual = {"data_dir": tmp_path, "expected_records": (420, 84)}
    assert len(datamodules.Adult(**usual).private_statistics()) == 2
    assert len(datamodules.Adult(**usual, public_categories=True).private_statistics()) == 1
    assert not datamodules.Adult(**usual, normaliser=Unchanged(), public_categories=True).private_statistics()


def test_constants_of_pictures_are_fitted_to_nothing(tmp_path):
    assert len(ImageFolderVFL(data_dir=tmp_path).private_statistics()) == 1
    assert not ImageFolderVFL(data_dir=tmp_path, mean=[0.5] * 3, deviation=[0.5] * 3).private_statistics()
    miniature.write_pictures(tmp_path)
    data = ImageFolderVFL(data_dir=tmp_path, size=8, normaliser=Given())
    data.setup("fit")
    assert not data.private_statistics()
    assert torch.equal(data.fitted.shift, torch.full((192,), 0.5))
    assert torch.equal(data.fitted.scale, torch.full((192,), 0.5))


def test_the_known_bounds_are_those_of_the_data():
    bounded = {
        name: c.known_bounds
        for name, c in PUBLIC.items()
        if isinstance(c, type) and issubclass(c, VerticalDataModule) and c.known_bounds is not None
    }
    pictures = {name for name, bounds in bounded.items() if bounds == (0.0, 1.0)}
    assert pictures == {"MNIST", "FashionMNIST", "EMNIST", "CIFAR10", "ModelNet10Views", "ImageFolderVFL"}
    assert IDXImages.known_bounds == (0.0, 1.0)
    assert {name: bounded[name] for name in bounded.keys() - pictures} == {
        "Digits": (0.0, 16.0),
        "Phishing": (-1.0, 1.0),
        "HumanActivity": (-1.0, 1.0),
    }
    digits = Digits(normaliser=Given())
    digits.setup("fit")
    assert (digits.records("train").features.min(), digits.records("train").features.max()) == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "write", "settings"),
    [
        (Phishing, miniature.write_phishing, {"expected_records": 200}),
        (HumanActivity, miniature.write_activity, {"expected_records": (60, 24)}),
    ],
)
def test_given_leaves_data_alone_that_have_one_scale_already(tmp_path, kind, write, settings):
    write(tmp_path)
    usual, given = (kind(data_dir=tmp_path, normaliser=make, **settings) for make in (None, Given()))
    assert not moved(usual, given)
    assert np.abs(given.records("train").features.numpy()).max() <= 1
