"""Law: a trained model prepares and predicts a record in the same way, whatever other records stand beside it."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import StandardScaler

import lightning_vfl.datamodules as d
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import PredictionWriter
from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.trained.fitted import Fitted, TrainedIds
from tests.further import few
from tests.subjects import Blobs, split, trainer
from tests.unit.aggregators.test_contract import FACTORIES
from tests.unit.datamodules import miniature

TWO = {"partitioner": d.ContiguousColumns(2)}
SETS: dict[str, Any] = miniature.PUBLISHED | {"Digits": (None, {}), "BreastCancer": (None, {})}
QUICK = ("Digits", "MNIST", "CreditDefault", "Adult", "ImageFolderVFL", "MultiView")  # one of every base class


def made(name, folder):
    """The data set with its files in the folder."""
    write, settings = SETS[name]
    if write is not None and not any(folder.iterdir()):
        write(folder)
    return getattr(d, name)(**settings, **({} if write is None else {"data_dir": folder}))


def only(data, rows):
    """The data set with some of its test records, and without training records."""
    load = data.load

    def some(names):
        assert "train" not in names, "the scaling was fitted again"
        splits = load(names)
        if isinstance(data, d.ImageFolderVFL):
            return splits
        return {
            name: replace(s, features=s.features[rows], labels=s.labels[rows], ids=s.ids[rows])
            for name, s in splits.items()
        }

    data.load = some
    return data


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in SETS]
)
def test_a_record_is_prepared_as_in_training_whatever_stands_beside_it(kind, tmp_path):
    trained = made(kind, tmp_path)
    for stage in ("fit", "test"):
        trained.setup(stage)
    records = trained.records("test")
    rows = torch.arange(0, len(records), 3)
    if kind == "ImageFolderVFL":
        rows = torch.arange(len(records))
    new = only(made(kind, tmp_path), rows)
    new.use(Fitted.of(trained.fitted.state()))
    new.setup("test")
    assert len(new.records("test")) == len(rows)
    for there, here in zip(records.rows(rows), new.records("test").rows(torch.arange(len(rows))), strict=True):
        assert torch.equal(there, here)


class Some(Blobs):
    """Some of the blobs to predict, and no training records."""

    rows = range(18)

    def load(self, names):
        return {
            name: replace(s, features=s.features[self.rows], labels=None, ids=s.ids[self.rows])
            for name, s in super().load(names).items()
            if name == "predict"
        }


def predicted(module, rows, folder):
    data = Some(module.partitioner, batch_size=6)
    data.rows = list(rows)
    (*batches,) = trainer(folder).predict(module, datamodule=data)
    return torch.cat([batch.values for batch in batches])


@pytest.mark.parametrize(
    "name", few(FACTORIES, "Concat", "Mean", "Max", "MaskedSum, with recovery", "LagrangeShared", "LocalGaussian")
)
def test_a_prediction_is_that_of_the_record_alone(name, tmp_path):
    """Bit for bit in a batch of the same size, and to 1e-6 in another; MaskedSum rounds at random to steps of 2^-24."""
    bottom = {"bottom": partial(PolynomialNetwork, degree=2)} if name == "LagrangeCoded" else {}
    # noise in the evaluation, which LocalGaussian adds by default, differs from record to record
    module = split(FACTORIES[name](), **bottom, evaluate="plain" if name.startswith("LocalGaussian") else "auto")
    module.partitioner = d.ContiguousColumns(4)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(module.partitioner, batch_size=10))
    every = predicted(module, range(18), tmp_path)
    # the same records in the opposite order, so that each stands beside others, at another place of its batch
    opposite = predicted(module, reversed(range(18)), tmp_path).flip(0)
    assert torch.equal(opposite, every) or (name.startswith("MaskedSum") and (opposite - every).abs().max() < 1e-6)
    for row in (0, 7):
        assert (predicted(module, [row], tmp_path) - every[row]).abs().max() < 1e-6


# ---- tables of one's own


def write_tables(folder, ids, seed=0, cities=("Oslo", "Paris", "Rome"), label=True):
    """A bank and a shop; the label depends on income, visits and city."""
    rng = np.random.default_rng(seed)
    n = len(ids)
    income, visits, city = rng.normal(50, 20, n), rng.poisson(3, n), rng.choice(cities, n)
    y = np.where(income / 20 + visits + (city == cities[0]) > 5.5, "yes", "no")
    bank = pd.DataFrame({"id": ids, "income": income, "city": city} | ({"y": y} if label else {}))
    shop = pd.DataFrame({"id": ids, "visits": visits})
    folder.mkdir(exist_ok=True)
    bank.to_csv(folder / "bank.csv", index=False)
    shop.sample(frac=1, random_state=seed).to_csv(folder / "shop.csv", index=False)
    return bank.merge(shop, on="id")


def tables(folder, **settings):
    files = {name: str(folder / f"{name}.csv") for name in ("bank", "shop")}
    usual = {"categorical": ["city"], "batch_size": 32}
    return d.CSVTables(files, "bank", "y", **usual | settings)


IDS = [f"c{i:04d}" for i in range(400)]
NEW = [f"n{i:04d}" for i in range(96)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint of a model that was trained on tables, and the scaling of its training rows by scikit-learn."""
    folder = tmp_path_factory.mktemp("tables")
    joined = write_tables(folder, IDS).set_index("id")
    data, module = tables(folder), split()
    fit = trainer(folder, max_epochs=3)
    fit.fit(module, datamodule=data)
    fit.save_checkpoint(folder / "m.ckpt")
    train = joined.loc[data.records("train").ids]
    return folder, StandardScaler().fit(train[["income", "visits"]])


def loaded(folder):
    return SplitVFL.load_from_checkpoint(folder / "m.ckpt", aggregator=Mean())


def test_new_tables_are_scaled_by_the_training_rows(trained, tmp_path):
    folder, oracle = trained
    new = write_tables(tmp_path, NEW, seed=1, label=False).sort_values("id")
    data = tables(tmp_path)
    data.use(loaded(folder).fitted)
    data.setup("predict")
    records = data.records("predict")
    assert records.ids.tolist() == NEW
    assert records.labels is None
    assert data.layout.columns == ("income", "city=Oslo", "city=Paris", "city=Rome", "visits")
    expected = oracle.transform(new[["income", "visits"]])
    np.testing.assert_allclose(records.features[:, [0, 4]], expected, rtol=1e-6, atol=1e-6)


def test_all_new_records_are_predicted_with_their_ids_and_the_names_of_the_classes(trained, tmp_path):
    folder, _ = trained
    new = write_tables(tmp_path, NEW, seed=1, label=False)
    for name, rows in (("all", NEW), ("half", NEW[:64]), ("three", NEW[:3])):
        part = tmp_path / name
        part.mkdir()
        for file in ("bank", "shop"):
            table = pd.read_csv(tmp_path / f"{file}.csv")
            table[table["id"].isin(rows)].to_csv(part / f"{file}.csv", index=False)
        writer = PredictionWriter(str(part / "p.csv"))
        trainer(tmp_path, callbacks=[writer]).predict(loaded(folder), datamodule=tables(part))
    every, half, three = (pd.read_csv(tmp_path / name / "p.csv") for name in ("all", "half", "three"))
    assert every.columns.tolist() == ["record", "probability_yes", "decision"]
    assert every["record"].tolist() == sorted(new["id"])
    assert set(every["decision"]) == {"yes", "no"}
    assert ((every["probability_yes"] >= 0.5) == (every["decision"] == "yes")).all()
    assert every[:64].equals(half)  # batches of 32 there and here
    np.testing.assert_allclose(three["probability_yes"], every["probability_yes"][:3], atol=1e-6)


def test_other_categories_are_told_and_cost_no_more_than_their_records(trained, tmp_path, told):
    """Trained on Oslo, Paris and Rome, applied to Berlin, Oslo and Paris."""
    folder, _ = trained
    write_tables(tmp_path, NEW, seed=1, cities=("Oslo", "Paris", "Berlin"))
    known = pd.read_csv(tmp_path / "bank.csv", index_col="id")["city"] != "Berlin"
    data = tables(tmp_path, new_records=True)
    writer = PredictionWriter(str(tmp_path / "p.csv"))
    trainer(tmp_path, callbacks=[writer]).predict(loaded(folder), datamodule=data)
    y = pd.read_csv(tmp_path / "bank.csv", index_col="id")["y"]
    right = pd.read_csv(tmp_path / "p.csv", index_col="record")["decision"] == y
    assert right[known].mean() > 0.7
    said = f"{(~known).sum()} records of party 'bank' have categories of column 'city' that no training record has"
    assert any(said in message for message in told)


def test_new_labelled_tables_are_tested_whole(trained, tmp_path):
    folder, _ = trained
    write_tables(tmp_path, NEW, seed=1)
    data, module = tables(tmp_path, new_records=True), loaded(folder)
    (scores,) = trainer(tmp_path).test(module, datamodule=data, verbose=False)
    assert len(data.records("test")) == 96
    writer = PredictionWriter(str(tmp_path / "p.csv"))
    trainer(tmp_path, callbacks=[writer]).predict(module, datamodule=data)
    y = pd.read_csv(tmp_path / "bank.csv", index_col="id")["y"].sort_index()
    right = pd.read_csv(tmp_path / "p.csv", index_col="record")["decision"] == y
    assert scores["test/accuracy"] == pytest.approx(right.mean())


def test_records_that_were_trained_on_are_counted(trained, tmp_path):
    folder, _ = trained
    write_tables(tmp_path, IDS[:50] + NEW)
    trained_on = tables(folder)
    trained_on.setup("fit")
    known = len(set(trained_on.records("train").ids) & set(IDS[:50]))
    with pytest.warns(UserWarning, match=f"was trained on {known} of the 146 test records"):
        trainer(tmp_path).test(loaded(folder), datamodule=tables(tmp_path, new_records=True), verbose=False)


def test_records_of_a_further_training_are_counted_too(trained, tmp_path):
    """A model that is trained further on other tables keeps its scaling, and the ids of both trainings."""
    folder, _ = trained
    write_tables(tmp_path / "more", NEW, seed=1)
    module, more = loaded(folder), tables(tmp_path / "more")
    first, fit = module.fitted, trainer(tmp_path, max_epochs=1)
    fit.fit(module, datamodule=more)
    fit.save_checkpoint(tmp_path / "m.ckpt")
    kept = loaded(tmp_path).fitted
    assert kept.prepares_as(first)
    again = tables(folder)
    again.setup("fit")
    for data in (again, more):
        assert kept.trained.among(data.records("train").ids).all()
        assert not kept.trained.among(data.records("val").ids).any()


def test_all_records_are_predicted_before_and_after_a_setup_for_training(tmp_path):
    write_tables(tmp_path, NEW)
    for stages in (["predict"], ["fit", "predict"]):
        data = tables(tmp_path)
        for stage in stages:
            data.setup(stage)
        assert data.records("predict").ids.tolist() == NEW


def test_the_test_records_of_the_training_tables_are_still_those(trained, tmp_path):
    folder, _ = trained
    data = tables(folder)
    trainer(tmp_path).test(loaded(folder), datamodule=data, verbose=False)  # no warning: warnings are errors here
    assert len(data.records("test")) == 80


REFUSED = {
    "a missing column": ("bank", lambda t: t.drop(columns="city"), {}, r"'bank' is without city, .* income, city"),
    "a further column": ("shop", lambda t: t.assign(age=3), {}, r"'shop' is with the further age, .* has visits; give"),
    "text among numbers": ("shop", lambda t: t.assign(visits="many"), {}, "'visits' of party 'shop' are not numbers"),
    "a missing value": ("shop", lambda t: t.assign(visits=None), {}, r"96 values of column 'visits' of party 'shop'"),
    "another normaliser": ("shop", lambda t: t, {"normaliser": d.Unchanged()}, r"use the normaliser that it was"),
    "no class of the model": (
        "bank", lambda t: t.assign(y="perhaps"), {"new_records": True}, r"no class of the model, first perhaps; .*yes",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", few(REFUSED, "a missing column", "text among numbers", "another normaliser", "no class of the model")
)
def test_tables_of_another_form_are_refused_in_one_line(trained, tmp_path, name):
    folder, _ = trained
    party, change, settings, message = REFUSED[name]
    write_tables(tmp_path, NEW, seed=1)
    change(pd.read_csv(tmp_path / f"{party}.csv")).to_csv(tmp_path / f"{party}.csv", index=False)
    with pytest.raises(ConfigurationError, match=message) as error:
        trainer(tmp_path).test(loaded(folder), datamodule=tables(tmp_path, **settings), verbose=False)
    assert "\n" not in str(error.value)


def test_new_records_need_a_trained_model(tmp_path):
    write_tables(tmp_path, NEW)
    with pytest.raises(ConfigurationError, match="needs a trained model"):
        tables(tmp_path, new_records=True).setup("fit")


@pytest.mark.parametrize(("unseen", "columns"), [("ignore", 3), ("own", 4)])
def test_categories_of_their_own(trained, tmp_path, unseen, columns):
    write_tables(tmp_path / "a", IDS)
    write_tables(tmp_path / "b", NEW, seed=1, cities=("Oslo", "Berlin"))
    first, second = (tables(tmp_path / part, unseen=unseen, normaliser=d.Unchanged()) for part in "ab")
    first.setup("fit")
    second.use(first.fitted)
    second.setup("predict")
    city = second.records("predict").features[:, 1 : 1 + columns]
    berlin = pd.read_csv(tmp_path / "b/bank.csv", index_col="id").sort_index()["city"] == "Berlin"
    assert city[:, :3].sum(1).tolist() == (~berlin).astype(float).tolist()
    assert unseen == "ignore" or city[:, 3].tolist() == berlin.astype(float).tolist()


def test_the_command_line_predicts_new_tables_without_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path / "old", IDS)
    write_tables(tmp_path / "new", NEW, seed=1, cities=("Paris", "Berlin"), label=False)
    recipe = [
        "--config",
        "protocol/mean",
        "--data",
        "CSVTables",
        "--data.label_party",
        "bank",
        "--data.label_column",
        "y",
    ]
    quiet = ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu", "--data.categorical", "[city]"]

    def given(part):
        return [*recipe, *quiet, f"--data.tables={{bank: {part}/bank.csv, shop: {part}/shop.csv}}"]

    run(["fit", *given("old"), "--trainer.max_epochs", "1", "--trainer.logger", "false"])
    (path,) = tmp_path.rglob("*.ckpt")
    run(["predict", *given("new"), "--ckpt_path", str(path)])
    assert pd.read_csv("predictions.csv")["record"].tolist() == NEW


# ---- what a checkpoint keeps


def test_hashes_of_ids_differ_between_keys_and_not_between_numbers_and_their_texts():
    ids = np.arange(1000)
    first, second = TrainedIds.of(ids), TrainedIds.of(ids)
    assert first.among([str(i) for i in range(0, 2000, 2)]).tolist() == [True] * 500 + [False] * 500
    assert not torch.isin(first.hashes, second.hashes).any()
    assert len(first.hashes.unique()) == 1000
