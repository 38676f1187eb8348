"""Mistakes in a data set or a partitioner of one's own end in one line that names the class and the fix."""

import re
from dataclasses import replace

import numpy as np
import pytest

from lightning_vfl.datamodules import Part, Partitioner
from lightning_vfl.errors import ConfigurationError
from tests.unit.testing.small_classes import SmallClasses

EIGHT = np.arange(8)


class Holding(Partitioner):
    """Gives the parts that it is made with."""

    covering = False

    def __init__(self, own):
        self.own = own

    def parts(self, layout):
        return self.own


def part(positions, *shape):
    """A part with whatever positions."""
    return Part(positions, shape)


WRONG_PARTS = {
    "nothing": (None, "parts of Holding must be a tuple with a Part for each party; got None"),
    "no parts": ((), "parts of Holding must be a tuple with a Part for each party; got ()"),
    "positions alone": ((EIGHT,), "parts of Holding must be a tuple with a Part for each party; got (array"),
    "a list": ((part([0, 1], 2),), "positions of party 0 that Holding gives are list; give an int64 array, such as"),
    "numbers": ((part(EIGHT * 1.0, 8),), "positions of party 0 that Holding gives are float64 (8,); give an int64"),
    "a mask": ((part(EIGHT < 3, 3),), "positions of party 0 that Holding gives are bool (8,); give an int64 array"),
    "a table": ((Part(EIGHT[None], (8,)),), "positions of party 0 that Holding gives are int64 (1, 8); give an int64"),
    "negative": (
        (Part(EIGHT - 8, (8,)),),
        "Holding gives party 0 the columns -8 to -1, but records have the columns 0",
    ),
    "no such column": ((Part(EIGHT, (8,)), Part(EIGHT[:2] + 7, (2,))), "party 1 the columns 7 to 8, but records have"),
    "another shape": (
        (Part(EIGHT, (2, 3)),),
        "Holding gives party 0 8 columns in the shape (2, 3) of 6 numbers; use (8",
    ),
    "no column": ((Part(EIGHT[:0], (0,)),), "Holding gives party 0 no column"),
}


@pytest.mark.parametrize("name", WRONG_PARTS)
def test_wrong_parts(name):
    own, message = WRONG_PARTS[name]
    with pytest.raises(ConfigurationError, match=re.escape(message)) as error:
        SmallClasses(Holding(own)).setup("fit")
    assert "\n" not in str(error.value)


def test_narrow_integers_and_images_are_accepted():
    data = SmallClasses(Holding((Part(EIGHT[:4].astype(np.int32), (2, 2)), Part(EIGHT, (8,)))))
    data.setup("fit")
    assert data.party_shapes == ((2, 2), (8,))


class Unmade(SmallClasses):
    def __init__(self, partitioner=None, *, size=32, **loader):
        self.size = size


class Own(SmallClasses):
    """Returns what ``change`` makes of the splits."""

    def __init__(self, change, **loader):
        super().__init__(**loader)
        self.change = change

    def load(self, names):
        return self.change(super().load(names))


WRONG_LOADS = {
    "nothing": (lambda splits: None, "of Own must return a Split by the name of each split, such as {'train': Spl"),
    "tuples": (
        lambda splits: dict.fromkeys(splits, (1, 2)),
        "of each split, such as {'train': Split(features, lab",
    ),
    "no train": (lambda splits: {"val": splits["val"]}, "load of Own returns no split 'train', to which columns and"),
    "no ids": (
        lambda splits: {name: replace(split, ids=None) for name, split in splits.items()},
        "ids of the train records are None; give an array with an id for each record",
    ),
}


@pytest.mark.parametrize("name", WRONG_LOADS)
def test_wrong_loads(name):
    change, message = WRONG_LOADS[name]
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        Own(change).setup("fit")


@pytest.mark.parametrize(
    "use", [lambda data: data.setup("fit"), lambda data: data.party_shapes], ids=["setup", "parts"]
)
def test_a_constructor_that_does_not_call_that_of_the_base_class(use):
    with pytest.raises(
        ConfigurationError, match=re.escape("call super().__init__(partitioner, **loader) in its __init")
    ):
        use(Unmade())


class WithoutPredict(SmallClasses):
    """Looks up its rows by the name of the split, and has none to predict."""

    def load(self, names):
        rows = {"train": slice(54), "val": slice(54, 72), "test": slice(72, 90)}
        whole = super().load(("train",))["train"]
        return {name: replace(whole, features=whole.features[rows[name]][:9], labels=None, ids=EIGHT) for name in names}


def test_a_split_that_is_asked_for_and_not_there():
    message = "load of WithoutPredict has nothing for the split 'predict', which it is asked for; leave a split that"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        WithoutPredict().setup("predict")

    def broken(splits):
        return splits["a column"]

    with pytest.raises(KeyError, match="a column"):  # an error of the class's own stays what it is
        Own(broken).setup("fit")
