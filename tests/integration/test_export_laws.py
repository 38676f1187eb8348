"""Law: exported halves together predict what the model predicts, for every aggregator, network and kind of record."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import lightning_vfl.datamodules as d
from lightning_vfl import AsyncVFL, CascadeVFL
from lightning_vfl.aggregators import Concat, Mean
from lightning_vfl.export.manifest import Engine
from lightning_vfl.export.score import score
from lightning_vfl.export.split_model import party_part, server_part
from lightning_vfl.export.trained import Trained
from lightning_vfl.export.write import export_model
from lightning_vfl.networks import MLP, VGG13, ConvNet, Linear, PolynomialNetwork, ResNet18
from lightning_vfl.objectives import MultiLabel, Regression
from lightning_vfl.types import VerticalBatch
from tests.exported import CLOSE, assert_close, built, one_registry, predictions
from tests.integration.test_new_records import IDS, tables, write_tables
from tests.own_tables import write_titanic
from tests.subjects import Blobs
from tests.unit.aggregators.test_contract import FACTORIES


@pytest.fixture(autouse=True, scope="module")
def quick_exports():
    with one_registry():
        yield


def files(folder):
    return {name: folder / f"{name}.csv" for name in ("bank", "shop")}


def raw(data):
    """The features of the test records before they are divided and scaled, and their scaled features."""
    data.setup("test")
    records = data.records("test")
    return data.load(("test",))["test"].features.flatten(1), records.rows(torch.arange(len(records)))


def assert_together(module, data):
    """The networks of the halves, one after the other, predict what the module predicts, whoever holds the records."""
    features, scaled = raw(data)
    parts = [party_part(module, m) for m in range(4)]
    server = server_part(Trained(module, ""))
    rows, present = len(features), torch.rand(len(features), 4, generator=torch.Generator().manual_seed(1)) > 0.4
    with torch.no_grad():
        embeddings = [
            part.network(features[:, party.positions].to(part.example[0].dtype))
            for part, party in zip(parts, module.fitted.parties, strict=True)
        ]
        found = server.network(embeddings, torch.ones(rows, 4, dtype=torch.bool))
        np.testing.assert_allclose(found, module(scaled), atol=1e-6)
        partly = module.output_in_the_clear(VerticalBatch(scaled, None, torch.arange(rows), present))
        np.testing.assert_allclose(server.network(embeddings, present), module.objective.predict(partly), atol=1e-6)


@pytest.mark.parametrize("name", FACTORIES)
def test_halves_together_are_the_module_for_every_aggregator(name):
    bottom = {"bottom": partial(PolynomialNetwork, degree=2)} if name == "LagrangeCoded" else {}
    assert_together(*built(FACTORIES[name](), **bottom))


@pytest.mark.parametrize("kind", [AsyncVFL, CascadeVFL])
def test_halves_together_are_the_module_for_other_protocols(kind):
    data = Blobs(d.ContiguousColumns(4), batch_size=10)
    data.setup("fit")
    module = kind(Mean(), width=5)
    module.build_for(data)
    module.fitted = data.fitted
    assert_together(module.eval(), data)


def written(data, folder, **names):
    """A file of each party's test records, and the arguments of ``score``."""
    features, _ = raw(data)
    ids = data.records("test").ids
    found = {}
    for m, party in enumerate(data.fitted.parties):
        own, path = features[:, party.positions].numpy(), folder / f"{m}"
        if party.columns:
            path = path.with_suffix(".csv")
            pd.DataFrame(own, columns=list(party.columns)).assign(id=ids).to_csv(path, index=False)
        else:
            path = path.with_suffix(".npz")
            np.savez(path, features=own, id=ids)
        found[f"party-{m}"] = path
    return found


def check_all(module, data, folder):
    """Export all halves, and compare ``score`` with ``predict`` in both engines."""
    folders = export_model(module, folder / "out")
    expected = predictions(module, data, folder).sort_values("record", ignore_index=True)
    for engine in Engine:
        found = score(folders, written(data, folder), engine)
        assert_close(found, expected, CLOSE[engine])


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTORIES)
def test_score_is_predict_for_every_aggregator(name, tmp_path):
    bottom = {"bottom": partial(PolynomialNetwork, degree=2)} if name == "LagrangeCoded" else {}
    check_all(*built(FACTORIES[name](), **bottom), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bottom",
    [
        MLP,
        Linear,
        PolynomialNetwork,
        ConvNet,
        partial(ResNet18, base=2),
        partial(ResNet18, base=2, norm="batch"),
        partial(VGG13, base=2),
        partial(VGG13, base=2, batch_norm=True),
    ],
    ids=str,
)
def test_score_is_predict_for_every_network_on_images(bottom, tmp_path):
    module, data = built(Concat(), data=d.Digits(d.RowStrips(2)), bottom=bottom)
    check_all(module, data, tmp_path)


@pytest.mark.slow
def test_score_is_predict_with_a_norm_and_a_large_network_as_top(tmp_path):
    module, data = built(Concat(), norm=torch.nn.BatchNorm1d, top=partial(MLP, hidden=(7,)))
    check_all(module, data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("engine", Engine)
def test_values_and_steps_of_columns(engine, tmp_path):
    """A regression on tables with missing values, booleans and dates, prepared by ``preprocess: auto``."""
    write_titanic(tmp_path)
    new = write_titanic(tmp_path / "new", records=200, seed=1, first=5000)
    settings = {"preprocess": "auto", "task": "regression"}

    def data(folder):
        given = {name: folder / f"{name}.csv" for name in ("ferry", "bank")}
        for path in given.values():
            pd.read_csv(path, dtype={"id": str}).drop(columns="Age", errors="ignore").to_csv(path, index=False)
        return d.CSVTables(given, "ferry", "Pclass", **settings)

    module, _ = built(Mean(), data=data(tmp_path))
    folders = export_model(module, tmp_path / "out")
    expected = predictions(module, data(tmp_path / "new"), tmp_path)
    assert expected.columns.tolist() == ["record", "value"]
    assert len(expected) == len(new)
    given = {name: tmp_path / f"new/{name}.csv" for name in ("ferry", "bank")}
    assert_close(score(folders, given, engine, leave_out=["Pclass"]).astype({"record": int}), expected, CLOSE[engine])


@pytest.mark.slow
@pytest.mark.parametrize("objective", [MultiLabel(2), Regression(targets=2)], ids=["labels", "values"])
def test_several_labels_have_their_names(objective, tmp_path):
    ids = [f"c{i:04d}" for i in range(120)]
    rng = np.random.default_rng(0)
    bank = {"id": ids, "age": rng.normal(size=120), "late": rng.integers(0, 2, 120), "lost": rng.integers(0, 2, 120)}
    pd.DataFrame(bank).to_csv(tmp_path / "bank.csv", index=False)
    pd.DataFrame({"id": ids, "visits": rng.normal(size=120)}).to_csv(tmp_path / "shop.csv", index=False)
    task = "classification" if isinstance(objective, MultiLabel) else "regression"
    data = d.CSVTables(files(tmp_path), "bank", ["late", "lost"], task=task)
    module, _ = built(Mean(), data=data, objective=objective)
    folders = export_model(module, tmp_path / "out")
    new = d.CSVTables(files(tmp_path), "bank", ["late", "lost"], task=task, new_records=True)
    expected = predictions(module, new, tmp_path)
    assert expected.columns[1].endswith("_late")
    found = score(folders, files(tmp_path), leave_out=["late", "lost"])
    assert_close(found, expected, CLOSE[Engine.ONNX])


# ---- records that a party does not hold, and groups


@pytest.mark.slow
@pytest.mark.parametrize("engine", Engine)
def test_records_that_a_party_lacks_are_predicted_without_it(engine, tmp_path):
    write_tables(tmp_path, IDS)
    shop = pd.read_csv(tmp_path / "shop.csv")
    shop[::2].to_csv(tmp_path / "shop.csv", index=False)
    module, _ = built(Mean(), data=tables(tmp_path, overlap="keep"))
    folders = export_model(module, tmp_path / "out", overlap="keep")
    expected = predictions(module, tables(tmp_path, overlap="keep", new_records=True), tmp_path)
    assert len(expected) == len(IDS)
    for who in ("bank", None):  # whose table has all records
        found = score(folders, files(tmp_path), engine, leave_out=["y"], records_of=who)
        assert_close(found, expected, CLOSE[engine])
    one = score(folders, files(tmp_path), engine, leave_out=["y"], records_of="shop")
    assert_close(one, expected[expected["record"].isin(shop["id"][::2])].reset_index(drop=True), CLOSE[engine])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Mean", "Concat", "MaskedSum"])
def test_parties_of_a_group_have_a_half_each(name, tmp_path):
    write_tables(tmp_path, IDS)
    shop = pd.read_csv(tmp_path / "shop.csv")
    shop[:200].to_csv(tmp_path / "shop.csv", index=False)
    shop[200:].to_csv(tmp_path / "east.csv", index=False)
    three = {name: str(tmp_path / f"{name}.csv") for name in ("bank", "shop", "east")}

    def data(**more):
        return d.CSVTables(three, "bank", "y", categorical=["city"], groups=[["shop", "east"]], **more)

    module, _ = built(FACTORIES[name](), data=data())
    folders = export_model(module, tmp_path / "out")
    expected = predictions(module, data(new_records=True), tmp_path)
    for engine in Engine:
        assert_close(score(folders, three, engine, leave_out=["y"]), expected, CLOSE[engine])
