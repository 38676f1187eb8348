"""Bad data end in an error that names the fix, before training starts; good data arrive in the right hands."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lightning_vfl.aggregators import Concat
from lightning_vfl.datamodules import (
    EMNIST,
    MNIST,
    Adult,
    BankMarketing,
    Caltech7,
    ContiguousColumns,
    CreditDefault,
    CSVTables,
    Digits,
    Handwritten,
    HumanActivity,
    ImageFolderVFL,
    ModelNet10Views,
    MultiView,
    NamedColumns,
    Parkinson,
    Phishing,
    RowStrips,
    Split,
    Unchanged,
)
from lightning_vfl.datamodules.records.folders import data_folder
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.split import SplitVFL
from lightning_vfl.schedules.batches import InOrder

from .miniature import InMemory, table

TABLES = {"tables": {"bank": "bank.csv"}, "label_party": "bank", "label_column": "y"}


def refused(message: str, split: Split, stage: str = "fit", **settings: Any):
    with pytest.raises(ConfigurationError, match=message):
        InMemory({"train": split}, **settings).setup(stage)


def features(value: float, *places: tuple[int, int]):
    def change(split: Split) -> None:
        for place in places:
            split.features[place] = value

    return change


def labels(change: Any):
    return lambda split: setattr(split, "labels", change(split.labels))


NAN, INFINITY = float("nan"), float("inf")
NAMED = NamedColumns({"x": ["b", "c", "d"], "y": ["a"]})
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    **{
        f"features of {value}": (
            features(value, (6, 3), (8, 0)),
            {},
            "2 feature values of the train .* first of party 1, position 3, record r6; impute or remove",
        )
        for value in (NAN, INFINITY, -INFINITY)
    },
    "a column with a name": (features(NAN, (6, 3)), {"columns": (*"abcd",)}, "first of party 1, column 'd', record r6"),
    "the party with the column": (
        features(NAN, (0, 0)),
        {"partitioner": NAMED, "columns": (*"abcd",)},
        "1 feature values .* first of party 1, column 'a', record r0",
    ),
    "a label below 0": (
        labels(lambda y: y.index_fill(0, torch.tensor([5]), -1)),
        {},
        "labels of the train records run from -1 to 1, outside 0..1; correct num_classes or the labels",
    ),
    "a label too large": (
        labels(lambda y: y.index_fill(0, torch.tensor([5]), 2)),
        {},
        "run from 0 to 2, outside 0..1;",
    ),
    "a real label": (
        labels(lambda y: y.float().index_fill(0, torch.tensor([4]), NAN)),
        {"classes": None},
        "1 labels of the train records are NaN or infinite, first of record r4",
    ),
    "missing labels": (labels(lambda y: y[:9]), {}, "10 train records have 9 labels; give one label for each record"),
    "few columns": (
        labels(torch.clone),
        {"partitioner": ContiguousColumns(5)},
        "5 parties cannot share 4 columns; use",
    ),
    "no images": (labels(torch.clone), {"partitioner": RowStrips(2)}, "strips and grids need images"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_training_records_are_refused(name):
    spoil, settings, message = REFUSED[name]
    split = table(10, 4)
    spoil(split)
    refused(message, split, **settings)
    if not settings:  # and bad validation records too
        with pytest.raises(ConfigurationError, match=message.replace("train", "val")):
            InMemory({"train": table(10, 4), "val": split}).setup("fit")


def test_finite_values_whose_sum_is_not_are_accepted():
    split = table(10, 2)
    split.features[:, 0] = 3e38
    data = InMemory({"train": split})
    data.setup("fit")
    assert torch.isfinite(data.records("train").features).all()


def test_a_batch_larger_than_the_data():
    data = InMemory({"train": table(10, 4)}, batch_size=11)
    data.setup("fit")
    with pytest.raises(ConfigurationError, match="batch_size must be a whole number from 1 to 10; got 11"):
        data.train_dataloader()


def test_a_batch_of_nothing():
    with pytest.raises(ConfigurationError, match="batch_size must be at least 1; got 0"):
        InMemory({"train": table(10, 4)}, batch_size=0)


def test_records_before_setup():
    with pytest.raises(ConfigurationError, match="InMemory has no 'train' records in this stage; call setup first"):
        InMemory({"train": table(10, 4)}).records("train")


def test_data_without_labels_are_allowed():
    split = table(10, 4)
    split.labels = None
    data = InMemory({"train": split})
    data.setup("fit")
    assert next(iter(data.train_dataloader())).labels is None


def test_parties_get_their_own_columns():
    splits = {name: table(10, 5, seed) for seed, name in enumerate(("train", "val", "test", "predict"))}
    data = InMemory(splits)
    data.normaliser = Unchanged()
    assert data.party_shapes == ((3,), (2,))
    for stage in ("fit", "validate", "test", "predict"):
        data.setup(stage)
    loaders = {"val": data.val_dataloader(), "test": data.test_dataloader(), "predict": data.predict_dataloader()}
    for name, batches in loaders.items():
        got = list(batches)
        for party, own in enumerate(splits[name].features.split([3, 2], dim=1)):
            assert torch.equal(torch.cat([batch.features[party] for batch in got]), own)
        assert torch.equal(torch.cat([batch.labels for batch in got]), splits[name].labels)
        assert np.array_equal(data.records(name).ids, splits[name].ids)


def test_training_batches_are_shuffled_by_the_seed():
    data = InMemory({"train": table(10, 4)}, seed=7)
    data.setup("fit")
    order = torch.cat([batch.record_ids for batch in data.train_dataloader()]).tolist()
    assert sorted(order) == list(range(10)) != order


@pytest.mark.parametrize("name", ["train", "val"])
def test_with_several_processes_each_has_a_batch_of_its_own(name):
    order = []
    for rank in range(2):
        data = InMemory({"train": table(10, 4), "val": table(10, 4)}, batch_size=3)
        data.setup("fit")
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2, lightning_module=None)
        batches = list(getattr(data, f"{name}_dataloader")())
        assert [(len(batch.labels), batch.joint.total) for batch in batches] == [(3, 6), (2, 4)]
        order += torch.cat([batch.record_ids for batch in batches]).tolist()
    assert sorted(order) == list(range(10))


def test_the_protocol_says_the_order_of_training():
    class Backwards(SplitVFL):
        def schedule(self, records, batch_size, seed, drop_last=False):
            plan = InOrder(len(records), batch_size)
            plan.epoch = lambda epoch: list(InOrder(len(records), batch_size).epoch(epoch))[::-1]
            return plan

    data = InMemory({"train": table(10, 4)})
    data.setup("fit")
    data.trainer = SimpleNamespace(global_rank=0, world_size=1, lightning_module=Backwards(Concat()))
    assert [batch.record_ids.tolist() for batch in data.train_dataloader()] == [[8, 9], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_setup_again_keeps_the_records_and_a_split_may_be_missing():
    data = InMemory({"train": table(10, 4)})
    data.setup("fit")
    records = data.records("train")
    data.setup("fit")
    assert data.records("train") is records
    assert data.val_dataloader() == []


def test_the_data_s_own_tensor_is_left_as_it_was():
    split = table(10, 4)
    before = split.features.clone()
    InMemory({"train": split}).setup("fit")
    assert torch.equal(split.features, before)


CONSTANTS = {"mean": (0.5, 0.5, 0.5), "deviation": (0.25, 0.25, 0.25)}
SETTINGS = [
    (MNIST, {}, {"val_records": 7}),
    (CreditDefault, {}, {"val_share": 0.3}),
    (CreditDefault, {}, {"test_share": 0.3}),
    (Handwritten, {}, {"val_share": 0.3}),
    (Handwritten, {}, {"test_share": 0.3}),
    (Caltech7, {}, {"test_share": 0.3}),
    (MultiView, {}, {"views": ("voice", "face")}),
    (MultiView, {}, {"labels": "class"}),
    (Parkinson, {}, {"split": "rows"}),
    (Parkinson, {}, {"test_share": 0.2}),
    (BankMarketing, {}, {"val_share": 0.3}),
    (BankMarketing, {}, {"test_share": 0.3}),
    (BankMarketing, {}, {"categorical": ("job", "month")}),
    (BankMarketing, {"partitioner": ContiguousColumns(3)}, {"drop": ("duration", "age")}),
    (Adult, {}, {"val_share": 0.3}),
    (Phishing, {}, {"test_share": 0.3}),
    (HumanActivity, {}, {"val_share": 0.3}),
    (HumanActivity, {}, {"drop_last_column": False}),
    (EMNIST, {}, {"split": "letters"}),
    (ModelNet10Views, {}, {"size": 8}),
    (ModelNet10Views, {"partitioner": ContiguousColumns(3)}, {"channels": 3}),
    (ImageFolderVFL, {}, {"val_share": 0.2}),
    (ImageFolderVFL, {}, {"size": 64}),
    (ImageFolderVFL, {}, {"fit_records": None}),
    (ImageFolderVFL, CONSTANTS, {"mean": (0.4, 0.4, 0.4)}),
    (CSVTables, TABLES, {"val_share": 0.3}),
    (CSVTables, TABLES, {"test_share": 0.3}),
    (CSVTables, TABLES, {"overlap": "keep"}),
    (CSVTables, TABLES, {"task": "regression"}),
    (CSVTables, TABLES | {"tables": {"bank": "b", "n": "n", "s": "s"}}, {"groups": (("n", "s"),)}),
    (CSVTables, TABLES, {"categorical": ("job",)}),
    (CSVTables, TABLES, {"preprocess": {"bank": {"x": ["log"]}}}),
    (Digits, {}, {"seed": 1}),
    (Digits, {}, {"partitioner": RowStrips(2)}),
    (Digits, {}, {"normaliser": Unchanged()}),
]


@pytest.mark.parametrize(("kind", "usual", "other"), SETTINGS)
def test_a_checkpoint_is_for_the_same_records_and_columns(kind, usual, other, tmp_path):
    """Also after a way through a file, as the safe loader reads it."""
    torch.save(kind(**usual).state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    kind(**usual).load_state_dict(state)
    ((name, value),) = other.items()
    said = repr(value) if name in ("partitioner", "normaliser") else value
    with pytest.raises(ConfigurationError) as error:
        kind(**usual | other).load_state_dict(state)
    assert str(error.value) == (
        f"the checkpoint was trained on {kind.__name__} with {name} = {state[name]}, these data have {said}; give the "
        f"same {name}"
    )


def test_a_checkpoint_from_before_the_shares_were_kept_is_accepted():
    state = CreditDefault().state_dict()
    del state["val_share"], state["test_share"]
    CreditDefault(val_share=0.3).load_state_dict(state)


@pytest.mark.parametrize("kind", [MNIST, CreditDefault, Handwritten, Parkinson, BankMarketing, Adult])
def test_batches_and_folders_are_not_part_of_a_checkpoint(kind, tmp_path):
    kind(data_dir=tmp_path, batch_size=7, drop_last=True).load_state_dict(kind().state_dict())


def test_folder_of_file_based_data(monkeypatch, tmp_path):
    monkeypatch.delenv("LIGHTNING_VFL_DATA", raising=False)
    assert data_folder(None, "mnist").parts == ("data", "mnist")
    monkeypatch.setenv("LIGHTNING_VFL_DATA", str(tmp_path))
    assert data_folder(None, "mnist") == tmp_path / "mnist"
    assert data_folder("elsewhere", "mnist").parts == ("elsewhere",)


def test_fewer_records_than_processes_are_refused_where_metrics_are_reduced(monkeypatch):
    data = InMemory({"train": table(8, 2), "val": table(1, 2)})
    data.setup("fit")
    monkeypatch.setattr(data, "_place", lambda: (0, 2))
    with pytest.raises(ConfigurationError, match="cannot be shared by 2 processes; use at most 1"):
        data.val_dataloader()


def test_one_record_is_predicted_by_two_processes(monkeypatch):
    data = InMemory({"train": table(8, 2), "predict": table(1, 2)})
    data.setup("fit")
    data.setup("predict")
    batches = []
    for rank in range(2):
        monkeypatch.setattr(data, "_place", lambda rank=rank: (rank, 2))
        batches += list(data.predict_dataloader())
    assert [len(batch.record_ids) for batch in batches] == [0, 1]


def test_a_stage_without_records_is_refused():
    data = InMemory({"train": table(8, 2), "val": table(0, 2)})
    data.setup("fit")
    with pytest.raises(ConfigurationError, match="there are no val records; correct load, or leave out this stage"):
        data.val_dataloader()


@pytest.mark.parametrize(
    ("names", "classes", "line"),
    [
        (("no", "yes", "perhaps"), 2, "class_names has 3 names for 2 classes; give one name for each class$"),
        (("no",), 2, "class_names has 1 names for 2 classes"),
        ((1, "1"), 2, "class_names has a name twice: 1, 1; give each class its own"),
        (("no", "yes"), None, "class_names has 2 names for no classes; .*, and none for real values"),
    ],
)
def test_names_of_classes_are_checked_before_training(names, classes, line, monkeypatch):
    monkeypatch.setattr(InMemory, "class_names", names)
    split = table(10, 4)
    split.labels = split.labels if classes else split.labels.float()
    refused(line, split, classes=classes)
