"""Arrays in memory: shapes, scaling by kind, labels as they were given, and new records of a trained model."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import predictions_of
from lightning_vfl.datamodules import Arrays, Standardise, Unchanged, Views
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.score import score
from lightning_vfl.export.write import export_model
from tests.exported import one_registry
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

FRAME = pd.DataFrame({"x": np.arange(RECORDS) / 7})


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


def test_a_trained_model_takes_arrays_by_the_names_of_their_parties(tmp_path):
    draw = np.random.default_rng(0)
    given = {"b": draw.normal(5.0, 3.0, (RECORDS, 4)), "a": draw.normal(size=(RECORDS, 4))}
    module = split(Mean(), width=4)
    trainer(tmp_path).fit(module, datamodule=Arrays(given, LABELS, batch_size=10))
    turned = Arrays({name: given[name] for name in ("a", "b")}, LABELS)
    assert predictions_of(module, turned).equals(predictions_of(module, Arrays(given, LABELS)))
    assert turned.party_names == ("b", "a")
    for other in ({"a": given["a"], "c": given["b"]}, {"a": given["a"]}, {**given, "c": given["b"]}):
        with pytest.raises(ConfigurationError, match="was trained with arrays of b, a, these are of"):
            predictions_of(module, Arrays(other))


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
        ({"arrays": {"a": [[1.5], [1, 2]]}}, "array of party 'a' cannot be read"),
        ({"arrays": {"a": np.full((RECORDS, 1), 2**24 + 1)}}, r"whole numbers above 2\^24"),
        ({"arrays": {"a": np.zeros((9, 2))}}, "a 9, ids 9, labels 60"),
        ({"labels": np.linspace(0, 1, RECORDS)}, "use task='regression'"),
        ({"labels": None}, "training needs labels"),
        ({"new_records": True}, "training needs labels and old records"),
        ({"ids": [1] * RECORDS}, "ids are not unique"),
        ({"ids": np.linspace(0, 1, RECORDS)}, "ids must be whole numbers or texts; got float64"),
        ({"arrays": {"a": np.ma.masked_less(np.ones((RECORDS, 2)), 2)}}, "party 'a' has 120 masked numbers; fill"),
        ({"arrays": {"a": FRAME, "b": FRAME[::-1]}}, "'a' and 'b' have different indexes, and rows would be joined by"),
        ({"arrays": {"a": FRAME}, "labels": FRAME["x"][::-1]}, "'a' and 'labels' have different indexes"),
        ({"task": "regression"}, "labels of a regression must be numbers"),
        ({"task": "regression", "labels": np.arange(RECORDS).astype("M8[D]")}, "must be numbers; got datetime64"),
        ({"task": "regression", "labels": [*range(RECORDS - 1), math.nan]}, "label nan of row 59 is NaN or infinite"),
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


# ---- whole numbers and truths


class Words(nn.Module):
    """The mean of the embeddings of the first numbers of a text, whose length comes first."""

    def __init__(self, shape, width):
        super().__init__()
        self.table = nn.Embedding(900, width)

    def forward(self, text):
        length, words = text[:, :1], text[:, 1:]
        there = torch.arange(words.shape[1]) < length
        return (self.table(words) * there[..., None]).sum(1) / length.clamp(min=1)


class Seen(nn.Module):
    """Keeps the dtype and the values of what it is given."""

    def __init__(self, shape, width):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), width)
        self.inputs = []

    def forward(self, x):
        self.inputs.append(x.detach().clone())
        return self.layer(x.to(self.layer.weight.dtype).flatten(1))


def texts():
    draw = np.random.default_rng(4)
    return [draw.integers(1, 900, draw.integers(0, 7)).tolist() for _ in range(RECORDS)]


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "64-true", "bf16-mixed"])
def test_whole_numbers_and_truths_reach_bottoms_as_they_are_given(precision, tmp_path):
    draw = np.random.default_rng(3)
    given = {name: draw.integers(0, 100, (RECORDS, 2)).astype(name) for name in ("int8", "int16", "int32", "int64")}
    given["int64"] += 2**24 - 200  # bfloat16 has 8 bits
    given["bool"] = draw.random((RECORDS, 3)) < 0.5
    given["uint16"] = np.full((RECORDS, 1), 60_000, np.uint16)
    module = split(Mean(), width=4, bottom=Seen)
    trainer(tmp_path, precision=precision).fit(module, datamodule=Arrays(given, LABELS, batch_size=10))
    for bottom, (name, array) in zip(module.bottoms.parties, given.items(), strict=True):
        seen = [x for x in bottom.inputs if len(x) > 2 and not x.is_floating_point()]
        assert {x.dtype for x in seen} == {torch.int64 if name == "uint16" else getattr(torch, name)}
        rows = {tuple(row) for row in array.tolist()}
        assert {tuple(row) for x in seen for row in x.tolist()} <= rows


def test_an_embedding_trains_predicts_and_exports(tmp_path):
    given = texts()
    module = split(Mean(), width=4, bottom_of={0: Words})
    before = trainer(tmp_path)
    before.fit(module, datamodule=Arrays({"text": given}, LABELS, batch_size=10))
    assert module.hparams["party_shapes"][0] == [1 + max(map(len, given))]
    new = Arrays(
        {"text": [[1] * max(map(len, given)), *given[11:20]]}, ids=range(10)
    )  # the first as long as the longest
    found = predictions_of(module, new)
    before.save_checkpoint(tmp_path / "m.ckpt")
    again = type(module).load_from_checkpoint(tmp_path / "m.ckpt", trusted=[__name__.partition(".")[0]])
    np.testing.assert_allclose(predictions_of(again, new)["probability_yes"], found["probability_yes"])
    with one_registry():
        export_model(module, tmp_path / "halves")
    numbers = new._arrays["text"]
    table = pd.DataFrame({"id": range(10), **{f"text.{i}": numbers[:, i] for i in range(numbers.shape[1])}})
    path = tmp_path / "text.csv"
    table.to_csv(path, index=False)
    folders = [tmp_path / "halves" / name for name in ("party-0", "server")]
    scored = score(folders, {"party-0": path})
    np.testing.assert_allclose(scored["probability_yes"], found["probability_yes"], atol=1e-5)
    broken = table.astype({"text.1": float})
    broken.loc[3, "text.1"] = 2.5
    broken.to_csv(path, index=False)
    with pytest.raises(ConfigurationError, match="features of party 'party-0' must be int64"):
        score(folders, {"party-0": path})


def test_texts_become_lengths_numbers_and_zeros():
    data = Arrays({"text": [[7, 8], [], [9]] * 20}, LABELS)
    assert data._arrays["text"].tolist()[:3] == [[2, 7, 8], [0, 0, 0], [1, 9, 0]]


def test_real_numbers_for_a_model_of_whole_numbers_are_refused(tmp_path):
    module = split(Mean(), width=4)
    usual = {"normaliser": Unchanged(), "batch_size": 10}
    trainer(tmp_path).fit(module, datamodule=Arrays({"text": arrays()["text"]}, LABELS, **usual))
    with pytest.raises(ConfigurationError, match="trained on int64 of party 0, and these are real numbers"):
        predictions_of(module, Arrays({"text": arrays()["text"] + 0.5}, ids=range(RECORDS), **usual))


def test_a_bottom_that_does_not_take_whole_numbers_is_refused_before_training(tmp_path):
    module = split(Mean(), width=4, bottom=lambda shape, width: nn.Linear(shape[0], width))
    with pytest.raises(ConfigurationError, match="the bottom of party text does not take its features"):
        trainer(tmp_path).fit(module, datamodule=Arrays({"text": arrays()["text"]}, LABELS, batch_size=10))


def test_scaled_whole_numbers_are_real(tmp_path):
    data = Arrays({"text": arrays()["text"]}, LABELS, normaliser=Standardise())
    data.setup("fit")
    assert data.records("train").rows(torch.arange(2))[0].dtype == torch.float32
