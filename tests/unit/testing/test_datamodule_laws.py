"""The laws of data sets hold for data sets in memory, and each law finds a data set that breaks it."""

import pytest
import torch

from lightning_vfl.datamodules import ContiguousColumns, Layout, LimitedOverlap
from lightning_vfl.testing import LawBroken, check_datamodule, datamodule_laws
from lightning_vfl.testing.small_data import SmallClasses
from tests.subjects import Blobs, Values


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
    def load_state_dict(self, state_dict):
        return


def _of(data):
    return SmallClasses.train_dataloader(data)


BROKEN = {
    "shapes are those of the records": Doubles,
    "values are finite": NotFinite,
    "labels fit the task": FloatLabels,
    "no record is in two splits": Leaking,
    "the same settings give the same records": Drawing,
    "a split does not depend on the others": ByCompany,
    "scaling is fitted to training records": FitsToTests,
    "columns have one holder": NamesTooFew,
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
