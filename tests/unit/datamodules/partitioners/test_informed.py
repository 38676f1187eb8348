"""Cuts that depend on training records: on these alone, the same in every stage, refused where they would differ."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import (
    ColumnsByCorrelation,
    ColumnsByImportance,
    ContiguousColumns,
    Groups,
    InformedPartitioner,
    LabelPartition,
    Layout,
    LimitedOverlap,
    MissingAtTest,
    OverlappingColumns,
    Part,
    Partitioner,
    Split,
    TrainingRecords,
)
from lightning_vfl.datamodules.partitioners.informed import fingerprint
from lightning_vfl.datamodules.records.feature_stores import LoadedFeatures
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.split import SplitVFL
from lightning_vfl.streams import permutation
from tests.subjects import trainer

from ..miniature import InMemory, table


class BySize(InformedPartitioner):
    """Columns in the order of their largest values."""

    def __init__(self, parties: int = 2) -> None:
        self.parties = parties
        self._seen_records: list[TrainingRecords] = []

    def parts_by(self, layout: Layout, training: TrainingRecords) -> tuple[Part, ...]:
        self._seen_records.append(training)
        order = np.argsort(-training.features.max(0), kind="stable")
        return tuple(Part(run, (len(run),)) for run in np.array_split(order, self.parties))


class Counting(InMemory):
    """Says how often splits are loaded."""

    def load(self, names):
        self.loaded = [*getattr(self, "loaded", []), names]
        return super().load(names)


def splits(seed=0):
    return {
        "train": table(23, 5, seed),
        "val": table(9, 5, seed + 1),
        "test": table(8, 5, seed + 2),
        "predict": table(7, 5, seed + 3),
    }


def order(split):
    return split.features.max(0).values.argsort(descending=True, stable=True).tolist()


def cut(data):
    return [part.positions.tolist() for part in data.parts]


# ---- what it is shown


def test_it_sees_the_training_records_and_nothing_else():
    own = splits()
    data = InMemory(own, partitioner=BySize())
    data.setup("fit")
    (seen,) = data.partitioner._seen_records
    assert np.array_equal(seen.features, own["train"].features.double().numpy())
    assert np.array_equal(seen.labels, own["train"].labels.numpy())
    assert (seen.features.dtype, seen.labels.dtype) == (np.float64, np.int64)
    assert cut(data) == [order(own["train"])[:3], order(own["train"])[3:]]
    shown = torch.cat(data.records("train").rows(torch.arange(23)), 1)
    assert torch.allclose(shown.max(0).values, shown.max(0).values.sort(descending=True).values, atol=10)
    for name in ("train", "val"):
        assert data.records(name).widths == (3, 2)


def test_real_values_stay_real():
    split = dataclasses.replace(table(6, 4), labels=torch.rand(6))
    data = InMemory({"train": split}, classes=None, partitioner=BySize())
    assert data.party_shapes == ((2,), (2,))
    assert data.partitioner._seen_records[0].labels.dtype == np.float64
    data = InMemory({"train": dataclasses.replace(split, labels=None)}, partitioner=BySize())
    assert data.party_shapes == ((2,), (2,))
    assert data.partitioner._seen_records[0].labels is None


def test_images_are_flattened():
    images = dataclasses.replace(table(6, 12), features=torch.rand(6, 3, 2, 2))
    data = InMemory({"train": images}, partitioner=BySize())
    assert data.party_shapes == ((6,), (6,))
    assert np.array_equal(data.partitioner._seen_records[0].features, images.features.flatten(1).double())


def test_of_many_records_a_draw_is_shown(monkeypatch):
    monkeypatch.setattr(InformedPartitioner, "most_records", 10)
    train = splits()["train"]
    data = InMemory({"train": train}, partitioner=BySize())
    data.setup("fit")
    rows = np.sort(permutation(23, 0, "informed partition")[:10])
    (seen,) = data.partitioner._seen_records
    assert np.array_equal(seen.features, train.features[rows].double().numpy())
    assert np.array_equal(seen.labels, train.labels[rows].numpy())


# ---- once, and the same in every stage


@pytest.mark.parametrize("stages", [("fit", "test"), ("test", "fit"), ("validate", "predict"), ("predict",)])
def test_every_stage_cuts_alike_whatever_its_own_records(stages):
    own = splits()
    for others in (own, splits(20) | {"train": own["train"]}):
        data = InMemory(others, partitioner=BySize())
        for stage in stages:
            data.setup(stage)
            assert cut(data) == [order(own["train"])[:3], order(own["train"])[3:]]
    assert cut(InMemory(splits(20), partitioner=BySize())) != cut(InMemory(own, partitioner=BySize()))


def test_training_records_are_loaded_once():
    data = Counting(splits(), partitioner=BySize())
    data.setup("fit")
    assert data.party_shapes == ((3,), (2,))
    data.state_dict()
    assert data.loaded == [("train", "val")]
    data.setup("test")
    assert data.loaded == [("train", "val"), ("test",)]
    assert len(data.partitioner._seen_records) == 1


def test_shapes_are_known_before_setup():
    data = Counting(splits(), partitioner=BySize())
    assert data.party_shapes == ((3,), (2,))
    assert data.loaded == [("train",)]


def test_a_cut_that_sees_no_value_loads_nothing():
    data = Counting(splits(), partitioner=Groups(ContiguousColumns(2), [1, 2]))
    assert data.party_shapes == ((3,), (2,), (2,))
    assert "columns" not in data.state_dict()
    assert not hasattr(data, "loaded")


# ---- under other partitioners


class Own(Partitioner):
    """As users have written them: over another, without a base class for that."""

    covering = False

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return ContiguousColumns(2).split(layout)


def test_partitioners_that_know_nothing_of_it_stay_as_they_are():
    own = Own()
    assert own.informed_by(lambda: splits()["train"]) is own
    over = LimitedOverlap(own, 3)
    assert over.informed_by(lambda: splits()["train"]) is over
    assert InMemory(splits(), partitioner=own).party_shapes == ((3,), (2,))


def test_other_partitioners_hand_the_records_on():
    train = splits()["train"]
    first, second = order(train)[:3], order(train)[3:]
    data = InMemory(splits(), partitioner=Groups(LabelPartition(BySize(), active=1), [1, 2]))
    assert cut(data) == [first, second, second]
    assert repr(data.partitioner.partitioner.partitioner) == "BySize(parties=2)"
    data = InMemory(splits(), partitioner=MissingAtTest(LimitedOverlap(BySize(), 6), [1]))
    data.setup("fit")
    assert cut(data) == [first, second]
    assert int(data.records("train").present.all(1).sum()) == 6
    assert not data.records("val").present[:, 1].any()
    data = InMemory(splits(), partitioner=OverlappingColumns(BySize(), 1.0))
    assert cut(data) == [[*first, *sorted(second)], [*second, *sorted(first)]]


def test_the_partitioner_itself_remembers_no_records():
    cut = BySize()
    data = InMemory(splits(), partitioner=cut)
    data.setup("fit")
    with pytest.raises(ConfigurationError, match="pass it to a datamodule, or call informed_by"):
        cut.split(Layout((5,)))


# ---- checkpoints


def test_a_checkpoint_is_for_the_cut_of_its_training_records():
    own = splits()
    state = InMemory(own, partitioner=BySize()).state_dict()
    InMemory(own, partitioner=BySize()).load_state_dict(state)
    others = splits(20) | {"train": own["train"]}
    InMemory(others, partitioner=BySize()).load_state_dict(state)
    changed = own | {"train": dataclasses.replace(own["train"], features=own["train"].features.flip(1))}
    with pytest.raises(ConfigurationError) as error:
        InMemory(changed, partitioner=BySize()).load_state_dict(state)
    first, second = (InMemory(data, partitioner=BySize()).state_dict()["columns"] for data in (own, changed))
    assert first != second
    assert str(error.value) == (
        f"the checkpoint was trained on InMemory with columns = {first}, these data have {second}; give the same "
        "training records"
    )
    with pytest.raises(ConfigurationError, match=r"partitioner = BySize.*; give the same partitioner"):
        InMemory(own, partitioner=BySize(3)).load_state_dict(state)


def test_a_trained_model_is_tested_on_the_same_cut(tmp_path):
    def data():
        return InMemory(splits(), partitioner=ColumnsByImportance(2, 5.0), batch_size=5)

    module = SplitVFL(Mean(), width=3, seed=0)
    first = trainer(tmp_path, max_epochs=2)
    first.fit(module, datamodule=data())
    first.save_checkpoint(tmp_path / "x.ckpt")
    expected = first.test(module, datamodule=data(), verbose=False)
    again = SplitVFL.load_from_checkpoint(tmp_path / "x.ckpt", aggregator=Mean())
    told = trainer(tmp_path).test(again, datamodule=data(), ckpt_path=tmp_path / "x.ckpt", verbose=False)
    assert told == expected
    other = InMemory(splits(20), partitioner=ColumnsByImportance(2, 5.0), batch_size=5)
    trained = fingerprint(data().parts)
    assert fingerprint(other.parts) != trained
    trainer(tmp_path).test(again, datamodule=other, ckpt_path=tmp_path / "x.ckpt", verbose=False)
    assert fingerprint(other.parts) == trained  # other records are divided as those that the model was trained on


# ---- what cannot be


def refused(message, split, **settings):
    with pytest.raises(ConfigurationError) as error:
        InMemory({"train": split}, partitioner=BySize(), **settings).setup("fit")
    assert message in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(value):
    split = table(10, 4)
    split.features[6, 3] = split.features[8, 0] = value
    refused(
        "2 feature values of the training records are NaN or infinite, first in position 3; impute or remove them, "
        "because BySize uses these values",
        split,
    )
    refused("first in column 'd'; impute", split, columns=("a", "b", "c", "d"))


def test_data_that_say_who_holds_what():
    split = dataclasses.replace(table(10, 4), present=torch.ones(10, 2, dtype=torch.bool))
    refused("these data decide themselves which party holds which record, so BySize cannot divide their columns", split)


def test_values_that_stay_on_disk():
    class OnDisk(InMemory):
        @property
        def layout(self) -> Layout:
            return Layout((3, 8, 8))

        def _open(self, names, missing):
            return (splits := self.load(names)), LoadedFeatures(splits, self.layout)

    split = Split(torch.empty(5, 0), torch.arange(5) % 2, np.arange(5))
    with pytest.raises(ConfigurationError, match=r"these data stay on the disk; use a partitioner that ne"):
        OnDisk({"train": split}, partitioner=BySize()).setup("fit")


@pytest.mark.parametrize("partitioner", [ColumnsByImportance(2), ColumnsByCorrelation(2), BySize()])
def test_without_training_records(partitioner):
    with pytest.raises(ConfigurationError) as error:
        OverlappingColumns(partitioner).split(Layout((5,)))
    assert str(error.value) == (
        f"{type(partitioner).__name__} needs training records; pass it to a datamodule, or call informed_by "
        f"before split"
    )


def test_a_broken_promise_is_noticed():
    class Twice(BySize):
        def parts_by(self, layout, training):
            part, *_ = super().parts_by(layout, training)
            return part, part

    with pytest.raises(
        ConfigurationError, match="Twice must give every column to exactly one party, but 2 columns go to no party"
    ):
        InMemory(splits(), partitioner=Twice()).setup("fit")


def test_loads_are_of_the_split_that_is_asked_for():
    data = Counting(splits(), partitioner=BySize())
    data.setup("validate")
    assert Counter(name for names in data.loaded for name in names) == {"train": 1, "val": 1}
