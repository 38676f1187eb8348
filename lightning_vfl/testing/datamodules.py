"""The laws of data sets (``lightning_vfl.datamodules.VerticalDataModule``), for a data set of your own."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.datamodules import VerticalDataModule
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.datamodules.records.records import DIVIDED, SPLITS, Records
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.testing.law import Law, LawBroken, checked, laws_of, require, require_close, require_same_bits
from lightning_vfl.types import Tensors, VerticalBatch


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
        splits: dict[SplitName, Records] = {}
        for name in SPLITS:
            with suppress(ConfigurationError):
                splits[name] = self.data.records(name)
        return splits

    @property
    def labelled(self) -> dict[SplitName, Records]:
        """The records of the splits that have labels."""
        return {name: self.splits[name] for name in DIVIDED if name in self.splits}

    def after(self, *stages: str) -> VerticalDataModule:
        """A new object after the set-up of these stages."""
        data = self.make()
        for stage in stages:
            data.setup(stage)
        return data

    def columns(self) -> Iterator[tuple[SplitName, Records, int, Tensor]]:
        """The features of every party in every split: name and records of the split, party, and features."""
        for name, records in self.splits.items():
            for party, x in enumerate(_features(records)):
                yield name, records, party, x


def _features(records: Records) -> Tensors:
    """All features of a split, by party."""
    return records.rows(torch.arange(len(records)))


def datamodule_laws(make: Callable[[], VerticalDataModule]) -> tuple[Law, ...]:
    """The laws that ``check_datamodule`` checks, one object each; they load all splits several times: give a small set.

    Args:
        make: makes a new object with the same settings each time, for example the class itself.

    Examples:
        >>> from lightning_vfl.datamodules import Digits
        >>> [law.name for law in datamodule_laws(Digits)][:2]
        ['columns have one holder', 'shapes are those of the records']
    """
    return laws_of(make(), Subject(make), LAWS)


check_datamodule = checked(datamodule_laws)
"""Check all laws of a data set; the arguments are those of ``datamodule_laws``."""


# ---- the laws


def shapes_are_those_of_the_records(subject: Subject) -> None:
    """Every split has features (N, *party_shapes[m]) of every party and an id for each record; reals are float32."""
    shapes = subject.data.party_shapes
    require(len(shapes) > 0, "party_shapes is empty; there must be at least one party")
    require("train" in subject.splits, "there are no train records; load must return a split 'train'")
    for name, records in subject.splits.items():
        forms = [(tuple(x.shape), x.dtype if x.is_floating_point() else torch.float32) for x in _features(records)]
        expected = [((len(records), *shape), torch.float32) for shape in shapes]
        require(forms == expected, f"the features of the {name} records are {forms} instead of {expected}")
        require(len(records) > 0, f"there are no {name} records; leave the split out")


def values_are_finite(subject: Subject) -> None:
    """No feature is NaN or infinite."""
    for name, _, party, x in subject.columns():
        bad = int((~torch.isfinite(x)).sum())
        require(bad == 0, f"{bad} of {x.numel()} feature values of party {party} in the {name} records")


def labels_fit_the_task(subject: Subject) -> None:
    """Training, validation and test records have labels: integers in 0..num_classes-1, or finite numbers."""
    classes = subject.data.num_classes
    for name, records in subject.labelled.items():
        labels = records.labels
        if labels is None:
            raise ValueError(f"the {name} records have no labels")
        require(len(labels) == len(records), f"{len(records)} {name} records have {len(labels)} labels")
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
    for name, records in subject.labelled.items():
        rows = torch.cat([x.flatten(1) for x in _features(records)], dim=1)
        row_of = dict(zip(map(str, records.ids), rows, strict=True))
        repeated = len(records) - len(row_of)
        require(repeated == 0, f"{repeated} of {len(records)} ids of the {name} records are repeated")
        both = [(one, seen[one][0]) for one in row_of if one in seen]
        if name == "test":  # published test files number their records anew
            both = [(one, other) for one, other in both if torch.equal(seen[one][1], row_of[one])]
        require(not both, f"{len(both)} records are in {name} and in another split, first {both[:1]}")
        seen |= {one: (name, row) for one, row in row_of.items()}


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
        _require_same_features(_features(other), _features(records), f"the {name} records of {what}")
        if records.labels is not None and other.labels is not None:
            require_same_bits(other.labels, records.labels, f"labels of the {name} records of {what}")


def _require_same_features(got: Sequence[Tensor], expected: Sequence[Tensor], what: str) -> None:
    for party, (a, b) in enumerate(zip(got, expected, strict=True)):
        require_same_bits(a, b, f"features of party {party} in {what}")


def a_split_does_not_depend_on_the_others(subject: Subject) -> None:
    """``load`` returns the same split, whichever splits are asked for with it."""
    together = subject.make().load(tuple(subject.splits))
    for name, split in together.items():
        alone = subject.make().load((name,))[name]
        same = np.array_equal(alone.ids, split.ids)
        require(same, f"load of '{name}' alone gives other records than with the others")
        require_same_bits(alone.features, split.features, f"features of '{name}', loaded alone")


def scaling_is_fitted_to_training_records(subject: Subject) -> None:
    """Where the normaliser standardises, each training column has mean 0; no other split is looked at."""
    if type(subject.data.normaliser).__name__ != "Standardise" or "train" not in subject.splits:
        return
    records = subject.splits["train"]
    left_out = subject.data.partitioner.kept("train", len(records)) is not None
    if records.present is not None or len(records) < 2 or left_out:
        return  # a party scales the records that it holds, also those that are left out afterwards
    for party, x in enumerate(_features(records)):
        mean = x.double().flatten(1).mean(0)
        require_close(mean, torch.zeros_like(mean), 0.0, 1e-3, f"means of the training columns of party {party}")


def columns_have_one_holder(subject: Subject) -> None:
    """Every part's positions are columns of the layout, and the shape of a part has as many numbers as positions."""
    data = subject.make()  # before a set-up, which needs parts that fit
    columns = prod(data.layout.shape)
    names = data.layout.columns
    require(not names or len(names) == columns, f"the layout names {len(names)} of {columns} columns")
    for party, part in enumerate(data.parts):
        positions = part.positions.tolist()
        size = prod(part.shape)
        require(len(positions) == size, f"party {party} holds {len(positions)} columns in a shape of {size}")
        require(size > 0, f"party {party} holds no column")
        low, high = min(positions), max(positions)
        require(low >= 0 and high < columns, f"party {party} holds the columns {low} to {high} of {columns}")
        require(len(set(positions)) == size, f"party {party} holds a column twice")


def features_that_nobody_holds_are_zero(subject: Subject) -> None:
    """Where ``present`` is False, a party's features are exactly zero."""
    for name, records, party, x in subject.columns():
        present = records.present
        if present is None:
            continue
        form = (len(records), len(subject.data.party_shapes))
        require(tuple(present.shape) == form, f"present of {name} is {tuple(present.shape)}, not {form}")
        other = int((x[~present[:, party]] != 0).sum())
        require(other == 0, f"{other} feature values of {name} records that party {party} does not hold are not 0")


def an_epoch_has_every_record_once(subject: Subject) -> None:
    """A training epoch visits each record once, in an order of the seed; evaluation visits them in order."""
    count = len(subject.data.records("train"))
    order = _order(subject.data.train_dataloader())
    whole = count - count % subject.data.batch_size if subject.data.drop_last else count
    require(len(order) == whole, f"an epoch has {len(order)} rows, there are {whole} training records to visit")
    twice = len(order) - len(set(order.tolist()))
    require(twice == 0, f"{twice} records are visited twice")
    again = _order(subject.after("fit").train_dataloader())
    require_same_bits(again, order, "the order of the first epoch of a second object")
    if "test" in subject.splits:
        tested = _order(subject.data.test_dataloader())
        require_same_bits(tested, torch.arange(len(subject.splits["test"])), "the order of the test records")


def _order(loader: Iterable[VerticalBatch]) -> Tensor:
    return torch.cat([batch.record_ids for batch in loader])


def a_batch_has_the_rows_of_its_records(subject: Subject) -> None:
    """The features and labels of a batch are those of the records at its ``record_ids``."""
    records = subject.data.records("train")
    batch = next(iter(subject.data.train_dataloader()))
    rows = records.rows(batch.record_ids)
    _require_same_features(batch.features, rows, "the first batch")
    alone = [records.features_of(party, batch.record_ids) for party in range(len(rows))]
    _require_same_features(alone, rows, "features_of against rows")
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
        _require_same_features(batch.features, records.rows(batch.record_ids), "a batch of one record")


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
    seeds = f"a checkpoint of seed {subject.data.seed} is accepted with seed {other.seed}"
    raise LawBroken(f"{seeds}; keep state_dict's seed")


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
