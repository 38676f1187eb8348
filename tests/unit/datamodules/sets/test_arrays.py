"""Arrays in memory: shapes, scaling by kind, labels as they were given, and new records of a trained model."""

import numpy as np
import pytest
import torch

from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import predictions_of
from lightning_vfl.datamodules import Arrays, Views
from lightning_vfl.errors import ConfigurationError
from tests.subjects import split, trainer

RECORDS = 60


def arrays():
    draw = np.random.default_rng(0)
    return {
        "camera": draw.integers(0, 256, (RECORDS, 2, 3, 3)).astype(np.uint8),
        "text": draw.integers(0, 900, (RECORDS, 5)),
        "table": torch.from_numpy(draw.normal(3.0, 2.0, (RECORDS, 4))),
        "flag": draw.random(RECORDS) < 0.5,
    }


LABELS = np.random.default_rng(1).permutation(["no", "yes"] * (RECORDS // 2))


def test_each_party_has_the_shape_of_its_rows_and_is_scaled_by_its_kind():
    given = arrays()
    data = Arrays(given, LABELS)
    data.setup("fit")
    assert data.party_shapes == ((2, 3, 3), (5,), (4,), (1,))
    assert data.party_names == ("camera", "text", "table", "flag")
    train = data.records("train")
    camera, text, table, flag = (x.double().numpy() for x in train.rows(torch.arange(len(train))))
    rows = train.ids
    pictures = given["camera"][rows] / 255.0
    np.testing.assert_allclose(camera, (pictures - pictures.mean()) / pictures.std(), atol=1e-5)
    assert np.array_equal(text, given["text"][rows])
    own = given["table"].numpy()[rows]
    np.testing.assert_allclose(table, (own - own.mean(0)) / own.std(0), atol=1e-5)
    assert np.array_equal(flag[:, 0], given["flag"][rows])


def test_splits_are_stratified_and_hold_every_record_once():
    data = Arrays(arrays(), LABELS, ids=[f"r{i}" for i in range(RECORDS)])
    data.setup("fit")
    data.setup("test")
    found = [data.records(name) for name in ("train", "val", "test")]
    assert sorted(name for own in found for name in own.ids) == sorted(f"r{i}" for i in range(RECORDS))
    for own in found:
        yes = sum(LABELS[int(name[1:])] == "yes" for name in own.ids)
        assert abs(yes - len(own) / 2) <= 0.5


def test_a_trained_model_predicts_new_arrays_and_labels_come_back(tmp_path):
    given = arrays()
    module = split(Mean(), width=4)
    trainer(tmp_path).fit(module, datamodule=Arrays(given, LABELS, batch_size=10))
    everything = predictions_of(module, Arrays(given, LABELS))
    new = {name: array[10:20] for name, array in given.items()}
    found = predictions_of(module, Arrays(new, ids=[f"n{i}" for i in range(10)]))
    assert found["record"].tolist() == [f"n{i}" for i in range(10)]
    np.testing.assert_allclose(found["probability_yes"], everything["probability_yes"][10:20], atol=1e-6)
    assert set(found["decision"]) <= {"no", "yes"}
    (scores,) = trainer(tmp_path).test(module, datamodule=Arrays(new, LABELS[10:20], new_records=True), verbose=False)
    right = (found["decision"].to_numpy() == LABELS[10:20]).mean()
    assert scores["test/accuracy"] == pytest.approx(right)


def test_real_labels_and_one_partitioner_for_two_views(tmp_path):
    given = {name: array for name, array in arrays().items() if name in ("table", "flag")}
    real = np.random.default_rng(2).normal(50.0, 9.0, RECORDS)
    data = Arrays(given, real, task="regression", partitioner=Views(1), batch_size=10)
    module = split(Mean(), width=4)
    trainer(tmp_path).fit(module, datamodule=data)
    assert data.party_shapes == ((5,),)
    assert "val/rmse" in module.trainer.callback_metrics


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"arrays": np.zeros((3, 2))}, "arrays must give each party an array"),
        ({"arrays": {"a": [["x"], ["y"]]}}, "array of party 'a' must have a row of numbers for each record"),
        ({"arrays": {"a": [[1], [1, 2]]}}, "array of party 'a' cannot be read"),
        ({"arrays": {"a": np.full((RECORDS, 1), 2**24 + 1)}}, r"whole numbers above 2\^24"),
        ({"arrays": {"a": np.zeros((9, 2))}}, "a 9, ids 9, labels 60"),
        ({"labels": np.linspace(0, 1, RECORDS)}, "use task='regression'"),
        ({"labels": None}, "training needs labels"),
        ({"new_records": True}, "training needs labels and old records"),
        ({"ids": [1] * RECORDS}, "ids are not unique"),
        ({"task": "ranking"}, "task 'ranking' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(settings, words):
    with pytest.raises(ConfigurationError, match=words) as refused:
        Arrays(**{"arrays": arrays(), "labels": LABELS, **settings}).setup("fit")
    assert "\n" not in str(refused.value)


class Half(torch.utils.data.Dataset[object]):
    """Some features of a record, with the label or without it."""

    def __init__(self, features: np.ndarray, labels: np.ndarray | None = None) -> None:
        self.features = features
        self.labels = labels

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, place: int) -> object:
        features = torch.from_numpy(self.features[place])
        return features if self.labels is None else (features, self.labels[place])


@pytest.mark.parametrize("labels", [LABELS, np.arange(RECORDS) % 3])
def test_a_dataset_a_party_has_the_records_of_its_array(labels):
    given = arrays()
    camera, text = given["camera"], given["text"]
    expected = Arrays({"camera": camera, "text": text}, labels)
    for tables, about in (
        ({"camera": Half(camera, labels), "text": Half(text)}, {}),
        ({"camera": Half(camera), "text": text}, {"labels": labels}),
        ({"camera": Half(camera, labels), "text": Half(text, labels)}, {"label_party": "text"}),
    ):
        data = Arrays(tables, **about)
        for one in (data, expected):
            one.setup("fit")
        assert data.party_shapes == expected.party_shapes
        assert data.class_names == expected.class_names
        for name in ("train", "val"):
            own, there = data.records(name), expected.records(name)
            assert torch.equal(own.labels, there.labels)
            every = torch.arange(len(there))
            for features, other in zip(own.rows(every), there.rows(every), strict=True):
                assert torch.equal(features, other)


def test_datasets_that_do_not_fit_are_refused_in_one_line():
    camera = arrays()["camera"]
    stream = type("Stream", (torch.utils.data.IterableDataset,), {"__iter__": lambda self: iter(())})()
    three = torch.utils.data.TensorDataset(*[torch.zeros(5, 2)] * 3)
    pairs = Half(camera, LABELS)
    for tables, about, words in (
        ({"a": stream}, {}, "the dataset of party 'a' has no length"),
        ({"a": three}, {}, "must be features, or a pair of features and label; got 3 parts"),
        ({"a": Half(camera[:0])}, {}, "has no items"),
        ({"a": pairs, "b": pairs}, {}, "datasets of a, b have labels; name one of them as label_party"),
        ({"a": Half(camera)}, {"label_party": "a"}, "the dataset of label_party 'a' has no labels"),
        ({"a": [np.zeros(2)] * 5, "b": pairs}, {}, "all arrays must have a row for each record"),
    ):
        with pytest.raises(ConfigurationError, match=words) as error:
            Arrays(tables, **about)
        assert "\n" not in str(error.value)
