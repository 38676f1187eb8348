"""The laws of data sets (``lightning_vfl.datamodules.VerticalDataModule``), for a data set of your own."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.datamodules import VerticalDataModule
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.datamodules.records.records import Records
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.testing.law import Law, require, require_close, require_same_bits

LABELLED: tuple[SplitName, ...] = ("train", "val", "test")
STAGE: dict[SplitName, str] = {"train": "fit", "val": "fit", "test": "test", "predict": "predict"}


@dataclass(frozen=True)
class Subject:
    """A data set under test; ``make`` gives a new object with the same settings each time."""

    make: Callable[[], VerticalDataModule]

    @cached_property
    def data(self) -> VerticalDataModule:
        """The data set after the set-up of all stages."""
        return self.after("fit", "test", "predict")

    @cached_property
    def splits(self) -> dict[SplitName, Records]:
        """The records of every split that the data have."""
        found = {}
        for name in STAGE:
            try:
                found[name] = self.data.records(name)
            except ConfigurationError:
                continue
        return found

    def after(self, *stages: str) -> VerticalDataModule:
        """A new object after the set-up of these stages."""
        data = self.make()
        for stage in stages:
            data.setup(stage)
        return data

    def features(self, records: Records) -> tuple[Tensor, ...]:
        """All features of a split, by party."""
        return records.rows(torch.arange(len(records)))


def check_datamodule(make: Callable[[], VerticalDataModule]) -> None:
    """Check all laws of a data set. All splits are loaded several times, so give a small one.

    Args:
        make: makes a new object with the same settings each time, for example the class itself.

    Raises:
        LawBroken: for the first law that is broken, with its name and the numbers.
    """
    for law in datamodule_laws(make):
        law()


def datamodule_laws(make: Callable[[], VerticalDataModule]) -> tuple[Law, ...]:
    """The laws that ``check_datamodule`` checks, one object each.

    Examples:
        >>> from lightning_vfl.datamodules import Digits
        >>> [law.name for law in datamodule_laws(Digits)][:2]
        ['columns have one holder', 'shapes are those of the records']
    """
    return tuple(Law(check, Subject(make), type(make()).__name__) for check in LAWS)


# ---- the laws


def shapes_are_those_of_the_records(subject: Subject) -> None:
    """Every split has features (N, *party_shapes[m]) of every party, in float32, and one id for each record."""
    shapes = subject.data.party_shapes
    require(len(shapes) > 0, "party_shapes is empty; there must be at least one party")
    require("train" in subject.splits, "there are no train records; load must return a split 'train'")
    for name, records in subject.splits.items():
        given = [(tuple(x.shape), x.dtype) for x in subject.features(records)]
        expected = [((len(records), *shape), torch.float32) for shape in shapes]
        require(given == expected, f"the features of the {name} records are {given} instead of {expected}")
        require(len(records) > 0, f"there are no {name} records; leave the split out")


def values_are_finite(subject: Subject) -> None:
    """No feature is NaN or infinite."""
    for name, records in subject.splits.items():
        for party, x in enumerate(subject.features(records)):
            bad = int((~torch.isfinite(x)).sum())
            require(bad == 0, f"{bad} of {x.numel()} feature values of party {party} in the {name} records")


def labels_fit_the_task(subject: Subject) -> None:
    """Training, validation and test records have labels: integers in 0..num_classes-1, or finite numbers."""
    classes = subject.data.num_classes
    for name in (name for name in LABELLED if name in subject.splits):
        labels, records = subject.splits[name].labels, len(subject.splits[name])
        if labels is None:
            raise ValueError(f"the {name} records have no labels")
        require(len(labels) == records, f"{records} {name} records have {len(labels)} labels")
        if classes is None:
            require(labels.is_floating_point(), f"the labels of the {name} records are {labels.dtype}; use float32")
            require(bool(torch.isfinite(labels).all()), f"labels of the {name} records are not finite")
            continue
        require(labels.dtype == torch.int64, f"the labels of the {name} records are {labels.dtype}; use int64")
        low, high = int(labels.min()), int(labels.max())
        require(low >= 0 and high < classes, f"labels of the {name} records go from {low} to {high} of {classes}")


def no_record_is_in_two_splits(subject: Subject) -> None:
    """An id is once in its split. Train and val share no id; records of test with an id of train are other records."""
    seen: dict[str, tuple[SplitName, Tensor]] = {}
    for name in (name for name in LABELLED if name in subject.splits):
        records = subject.splits[name]
        rows = torch.cat([x.flatten(1) for x in subject.features(records)], dim=1)
        ids = [str(one) for one in records.ids]
        repeated = len(ids) - len(set(ids))
        require(repeated == 0, f"{repeated} of {len(ids)} ids of the {name} records are repeated")
        both = [
            (one, seen[one][0])
            for one, row in zip(ids, rows, strict=True)
            if one in seen
            and (
                name != "test" or torch.equal(seen[one][1], row)  # published test files number their records anew
            )
        ]
        require(not both, f"{len(both)} records are in {name} and in another split, first {both[:1]}")
        seen |= {one: (name, row) for one, row in zip(ids, rows, strict=True)}


def the_same_settings_give_the_same_records(subject: Subject) -> None:
    """A second object has the same records to the bit."""
    _require_same_records(subject, subject.after("fit", "test", "predict"), "a second object")


def the_order_of_set_ups_changes_no_record(subject: Subject) -> None:
    """An object that is set up to test before it is set up to fit has the same records to the bit."""
    other = subject.after("test", "fit", "predict")
    _require_same_records(subject, other, "an object that is set up to test first")


def _require_same_records(subject: Subject, again: VerticalDataModule, what: str) -> None:
    for name, records in subject.splits.items():
        other = again.records(name)
        same = np.array_equal(other.ids, records.ids)
        require(same, f"the {name} records of {what} have other ids; draw from streams that the seed names")
        for party, (a, b) in enumerate(zip(subject.features(other), subject.features(records), strict=True)):
            require_same_bits(a, b, f"features of party {party} in the {name} records of {what}")
        if records.labels is not None and other.labels is not None:
            require_same_bits(other.labels, records.labels, f"labels of the {name} records of {what}")


def a_split_does_not_depend_on_the_others(subject: Subject) -> None:
    """``load`` returns the same split, whichever splits are asked for with it."""
    together = subject.make().load(tuple(subject.splits))
    for name, split in together.items():
        alone = subject.make().load((name,))[name]
        require(
            np.array_equal(alone.ids, split.ids), f"load of '{name}' alone gives other records than with the others"
        )
        require_same_bits(alone.features, split.features, f"features of '{name}', loaded alone")


def scaling_is_fitted_to_training_records(subject: Subject) -> None:
    """Where the normaliser standardises, each training column has mean 0; no other split is looked at."""
    if type(subject.data.normaliser).__name__ != "Standardise" or "train" not in subject.splits:
        return
    records = subject.splits["train"]
    if (
        records.present is not None
        or len(records) < 2
        or subject.data.partitioner.kept("train", len(records)) is not None
    ):
        return  # a party scales the records that it holds, also those that are left out afterwards
    for party, x in enumerate(subject.features(records)):
        mean = x.double().flatten(1).mean(0)
        require_close(mean, torch.zeros_like(mean), 0.0, 1e-3, f"means of the training columns of party {party}")


def columns_have_one_holder(subject: Subject) -> None:
    """Every part's positions are columns of the layout, and the shape of a part has as many numbers as positions."""
    data = subject.make()  # before a set-up, which needs parts that fit
    columns, names = prod(data.layout.shape), data.layout.columns
    require(not names or len(names) == columns, f"the layout names {len(names)} of {columns} columns")
    for party, part in enumerate(data.parts):
        held = len(part.positions)
        require(held == prod(part.shape), f"party {party} holds {held} columns in a shape of {prod(part.shape)}")
        require(held > 0, f"party {party} holds no column")
        low, high = int(np.min(part.positions)), int(np.max(part.positions))
        require(low >= 0 and high < columns, f"party {party} holds the columns {low} to {high} of {columns}")
        require(len(set(part.positions.tolist())) == held, f"party {party} holds a column twice")


def features_that_nobody_holds_are_zero(subject: Subject) -> None:
    """Where ``present`` is False, a party's features are exactly zero."""
    for name, records in subject.splits.items():
        if records.present is None:
            continue
        form = (len(records), len(subject.data.party_shapes))
        require(
            tuple(records.present.shape) == form, f"present of {name} is {tuple(records.present.shape)}, not {form}"
        )
        for party, x in enumerate(subject.features(records)):
            other = int((x[~records.present[:, party]] != 0).sum())
            require(other == 0, f"{other} feature values of {name} records that party {party} does not hold are not 0")


def an_epoch_has_every_record_once(subject: Subject) -> None:
    """A training epoch visits each record once, in an order of the seed; evaluation visits them in order."""
    loader = subject.data.train_dataloader()
    count = len(subject.data.records("train"))
    order = torch.cat([batch.record_ids for batch in loader])
    whole = count - count % subject.data.batch_size if subject.data.drop_last else count
    require(len(order) == whole, f"an epoch has {len(order)} rows, there are {whole} training records to visit")
    twice = len(order) - len(set(order.tolist()))
    require(twice == 0, f"{twice} records are visited twice")
    again = torch.cat([batch.record_ids for batch in subject.after("fit").train_dataloader()])
    require_same_bits(again, order, "the order of the first epoch of a second object")
    if "test" in subject.splits:
        tested = torch.cat([batch.record_ids for batch in subject.data.test_dataloader()])
        require_same_bits(tested, torch.arange(len(subject.splits["test"])), "the order of the test records")


def a_batch_has_the_rows_of_its_records(subject: Subject) -> None:
    """The features and labels of a batch are those of the records at its ``record_ids``."""
    records = subject.data.records("train")
    batch = next(iter(subject.data.train_dataloader()))
    for party, (got, own) in enumerate(zip(batch.features, records.rows(batch.record_ids), strict=True)):
        require_same_bits(got, own, f"features of party {party} in the first batch")
        alone = records.features_of(party, batch.record_ids)
        require_same_bits(alone, own, f"features_of party {party} against rows")
    if batch.labels is not None and records.labels is not None:
        require_same_bits(batch.labels, records.labels[batch.record_ids], "labels of the first batch")


def the_batch_size_changes_no_record(subject: Subject) -> None:
    """Batches of one record have the same features as larger ones."""
    data = subject.make()
    data.batch_size = 1
    data.setup("fit")
    records = subject.data.records("train")
    require(len(data.records("train")) == len(records), "another batch_size gives another number of training records")
    for batch, _ in zip(data.train_dataloader(), range(3), strict=False):
        for party, (got, own) in enumerate(zip(batch.features, records.rows(batch.record_ids), strict=True)):
            require_same_bits(got, own, f"features of party {party} in a batch of one record")


def a_checkpoint_accepts_its_own_data(subject: Subject) -> None:
    """``state_dict`` survives a file that is read safely; an equal object accepts it, another seed is refused."""
    file = io.BytesIO()
    torch.save(subject.data.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    equal = subject.after("fit")
    equal.load_state_dict(state)
    other = subject.make()
    other.seed += 1
    try:
        other.load_state_dict(state)
    except ConfigurationError:
        return
    require(
        False, f"a checkpoint of seed {subject.data.seed} is accepted with seed {other.seed}; keep state_dict's seed"
    )


LAWS = (  # a law comes before the laws that fail for the same reason
    columns_have_one_holder,
    shapes_are_those_of_the_records,
    values_are_finite,
    labels_fit_the_task,
    the_same_settings_give_the_same_records,
    a_split_does_not_depend_on_the_others,
    the_order_of_set_ups_changes_no_record,
    no_record_is_in_two_splits,
    scaling_is_fitted_to_training_records,
    features_that_nobody_holds_are_zero,
    an_epoch_has_every_record_once,
    a_batch_has_the_rows_of_its_records,
    the_batch_size_changes_no_record,
    a_checkpoint_accepts_its_own_data,
)
