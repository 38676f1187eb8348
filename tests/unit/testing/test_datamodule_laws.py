"""The laws of data sets hold for data sets in memory, and each law finds a data set that breaks it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import ContiguousColumns, Layout, LimitedOverlap, Part, Partitioner, Split
from lightning_vfl.testing import LawBroken, check_datamodule, datamodule_laws
from tests.subjects import Blobs, Values
from tests.unit.testing.small_classes import SmallClasses


class PartlyHeld(Blobs):
    partly_held = True


SOUND = {
    "SmallClasses": lambda: SmallClasses(batch_size=9),
    "Values": lambda: Values(batch_size=9),
    "PartlyHeld": lambda: PartlyHeld(batch_size=9),
    "LimitedOverlap": lambda: Blobs(LimitedOverlap(ContiguousColumns(3), aligned=30), drop_last=True, batch_size=8),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_data_keep_all_laws(name):
    check_datamodule(SOUND[name])


class Doubles(SmallClasses):
    def setup(self, stage):
        super().setup(stage)
        self._records["train"].features = self._records["train"].features.double()


class NotFinite(SmallClasses):
    def setup(self, stage):
        super().setup(stage)
        self._records["train"].features[0] = float("nan")


class FloatLabels(SmallClasses):
    def load(self, names):
        splits = super().load(names)
        for split in splits.values():
            split.labels = split.labels.float()
        return splits


class Leaking(SmallClasses):
    """The first test record is a training record."""

    def load(self, names):
        splits = super().load(names)
        if "test" in splits:
            splits["test"].ids = splits["test"].ids.copy()
            splits["test"].ids[0] = 1000
            splits["test"].features[0] = super().load(("train",))["train"].features[0]
        return splits


class Drawing(SmallClasses):
    """Draws from the global generator."""

    def load(self, names):
        splits = super().load(names)
        for split in splits.values():
            split.features += torch.rand(split.features.shape)
        return splits


class ByCompany(SmallClasses):
    """A split is another one if other splits are loaded with it."""

    def load(self, names):
        splits = super().load(names)
        for split in splits.values():
            split.features += len(names)
        return splits


class ByFirstStage(SmallClasses):
    """The stage that is set up first changes the records."""

    first = None

    def setup(self, stage):
        self.first = self.first or stage
        super().setup(stage)
        if stage == "fit" and self.first == "test":
            self._records["train"].features += 1.0


class FitsToTests(SmallClasses):
    """The scaling is fitted to the test records."""

    def setup(self, stage):
        super().setup(stage)
        self._records["train"].features += 0.5


class NamesTooFew(SmallClasses):
    @property
    def layout(self):
        return Layout((8,), ()) if not hasattr(self, "_parts") else _Layout((8,), ("a",))


class _Layout(Layout):
    """Without the checks of ``Layout``."""

    def __post_init__(self):
        return


class NotZero(PartlyHeld):
    def setup(self, stage):
        super().setup(stage)
        self._records["train"].features += 1.0


class TwiceTheFirst(SmallClasses):
    def train_dataloader(self):
        loader = super().train_dataloader()
        epoch = loader.schedule.epoch
        loader.schedule.epoch = lambda number: [epoch(number)[0], *epoch(number)]
        return loader


class OtherRows(SmallClasses):
    """A batch has the features of the next record."""

    def train_dataloader(self):
        return [batch._replace(features=tuple(x.roll(1, 0) for x in batch.features)) for batch in _of(self)]


class BySize(SmallClasses):
    def setup(self, stage):
        super().setup(stage)
        if self.batch_size == 1:
            self._records["train"].features += 1.0


class Forgetful(SmallClasses):
    """It loads what it has not saved."""

    def load_state_dict(self, state_dict):
        self.fits = state_dict["fits"]


def _of(data):
    return SmallClasses.train_dataloader(data)


BROKEN = {
    "columns have one holder": NamesTooFew,
    "shapes are those of the records": Doubles,
    "values are finite": NotFinite,
    "labels fit the task": FloatLabels,
    "the same settings give the same records": Drawing,
    "a split does not depend on the others": ByCompany,
    "the order of set ups changes no record": ByFirstStage,
    "no record is in two splits": Leaking,
    "scaling is fitted to training records": FitsToTests,
    "features that nobody holds are zero": NotZero,
    "an epoch has every record once": TwiceTheFirst,
    "a batch has the rows of its records": OtherRows,
    "the batch size changes no record": BySize,
    "a checkpoint accepts its own data": Forgetful,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_law_finds_who_breaks_it(name):
    (law,) = [law for law in datamodule_laws(lambda: BROKEN[name](batch_size=9)) if law.name == name]
    with pytest.raises(LawBroken) as error:
        law()
    said = str(error.value)
    assert said.startswith(f"{BROKEN[name].__name__} breaks the law '{name}': ")
    assert "\n" not in said


def test_every_law_has_a_breaker():
    assert [law.name for law in datamodule_laws(SmallClasses)] == list(BROKEN)


def first_broken(make):
    with pytest.raises(LawBroken) as error:
        check_datamodule(make)
    return str(error.value)


class DrawnSplits(SmallClasses):
    """Each call of ``load`` draws who is in the test, so that training records are tested; the draw is the cause."""

    def load(self, names):
        order = torch.randperm(90)
        splits = super().load(("train", "val", "test"))
        x, y, ids = torch.cat([s.features for s in splits.values()]), torch.arange(90) % 3, np.arange(90)
        ends = {"train": order[:54], "val": order[54:72], "test": order[72:]}
        return {name: Split(x[ends[name]], y[ends[name]], ids[ends[name]]) for name in names if name in ends}


class ScaledByAll(SmallClasses):
    """Scales by all records that are loaded together."""

    def load(self, names):
        splits = super().load(names)
        largest = max(float(split.features.max()) for split in splits.values())
        return {name: replace(split, features=split.features / largest) for name, split in splits.items()}


def test_the_cause_is_told_before_what_follows_from_it():
    said = first_broken(lambda: DrawnSplits(batch_size=9))
    assert "'the same settings give the same records': the train records of a second object have other ids" in said
    assert "'a split does not depend on the others'" in first_broken(lambda: ScaledByAll(batch_size=9))
    said = first_broken(lambda: SmallClasses(Holding(Part(np.arange(8), (9,))), batch_size=9))
    assert "'columns have one holder': ConfigurationError: Holding gives party 0 8 columns in the shape (9,)" in said


class Holding(Partitioner):
    def __init__(self, *own):
        self.own = own

    def parts(self, layout):
        return self.own
