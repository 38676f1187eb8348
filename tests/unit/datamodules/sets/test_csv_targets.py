"""Several labels of a record: as files have them, trained, measured by scikit-learn's definitions, and predicted."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import r2_score, roc_auc_score

from lightning_vfl.callbacks import PredictionWriter
from lightning_vfl.datamodules import CSVTables
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import MultiLabel, Regression
from tests.own_tables import files, write
from tests.subjects import split, trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A clinic with two diagnoses and two measurements, which depend on columns of both parties."""
    folder, rng = tmp_path_factory.mktemp("clinic"), np.random.default_rng(0)
    ids, x = np.arange(300), rng.normal(size=(300, 4))
    clinic = pd.DataFrame(x[:, :2], columns=["age", "weight"]).assign(id=ids)
    clinic["flu"] = np.where(x[:, 0] + x[:, 2] > 0, "yes", "no")
    clinic["cold"] = (x[:, 1] - x[:, 3] > 0.5) * 1
    clinic["pulse"], clinic["fever"] = x[:, 0] * 2 - x[:, 3], x[:, 1] + x[:, 2]
    write(folder, {"clinic": clinic, "lab": pd.DataFrame(x[:, 2:], columns=["iron", "zinc"]).assign(id=ids)})
    return folder


def tables(folder, labels, **settings):
    usual = {"label_party": "clinic", "label_column": labels, "preprocess": "auto", "batch_size": 32}
    other = [name for name in ("flu", "cold", "pulse", "fever") if name not in labels]
    return CSVTables(
        files(folder, "clinic", "lab"), **usual | {"preprocess": {"clinic": dict.fromkeys(other, "drop")}} | settings
    )


def trained(folder, objective, data, where):
    writer = PredictionWriter(str(where / "p.csv"))
    module, fit = split(objective=objective), trainer(where, max_epochs=12, callbacks=[writer])
    fit.fit(module, datamodule=data)
    (scores,) = fit.test(module, datamodule=data, verbose=False)
    fit.predict(module, datamodule=data)
    table = pd.read_csv(where / "p.csv").set_index("record")
    return scores, table.loc[data.records("test").ids], data.records("test").labels.numpy()


def test_several_labels_are_as_the_file_has_them_and_measured_as_by_scikit_learn(folder, tmp_path):
    data = tables(folder, ["flu", "cold"])
    scores, table, labels = trained(folder, MultiLabel(2), data, tmp_path)
    clinic = pd.read_csv(folder / "clinic.csv", index_col="id").loc[data.records("test").ids]
    assert labels.tolist() == np.column_stack([clinic["flu"] == "yes", clinic["cold"]]).astype(int).tolist()
    assert table.columns.tolist() == ["probability_flu", "decision_flu", "probability_cold", "decision_cold"]
    found = table[["probability_flu", "probability_cold"]].to_numpy()
    assert scores["test/auroc"] == pytest.approx(roc_auc_score(labels, found), abs=1e-6)
    assert scores["test/accuracy"] == pytest.approx((labels == (found >= 0.5)).mean(), abs=1e-6)
    assert scores["test/auroc"] > 0.9


def test_several_values_are_measured_as_by_scikit_learn(folder, tmp_path):
    data = tables(folder, ["pulse", "fever"], task="regression")
    scores, table, labels = trained(folder, Regression(targets=2), data, tmp_path)
    assert table.columns.tolist() == ["value_pulse", "value_fever"]
    assert scores["test/r2"] == pytest.approx(r2_score(labels, table.to_numpy()), abs=1e-5)
    assert scores["test/mse"] == pytest.approx(((labels - table.to_numpy()) ** 2).mean(), abs=1e-5)
    assert scores["test/r2"] > 0.5


def test_new_tables_need_no_labels(folder, tmp_path):
    data = tables(folder, ["flu", "cold"])
    data.setup("fit")
    clinic = pd.read_csv(folder / "clinic.csv").drop(columns=["flu", "cold"])
    write(tmp_path, {"clinic": clinic, "lab": pd.read_csv(folder / "lab.csv")})
    new = tables(tmp_path, ["flu", "cold"])
    new.use(data.fitted)
    new.setup("predict")
    assert len(new.records("predict")) == 300
    assert new.records("predict").labels is None


def test_the_objective_that_fits_is_named(folder, tmp_path):
    for labels, task, named in (
        (["flu", "cold"], "classification", r"\(flu, cold\); use objective: MultiLabel with labels: 2"),
        (["pulse", "fever"], "regression", r"\(pulse, fever\); use objective: Regression with targets: 2"),
    ):
        with pytest.raises(ConfigurationError, match=f"records have 2 labels {named}"):
            trainer(tmp_path, max_epochs=1).fit(split(), datamodule=tables(folder, labels, task=task))
    with pytest.raises(
        ConfigurationError, match="the objective has 3 labels, records of the data have one; use another"
    ):
        trainer(tmp_path, max_epochs=1).fit(split(objective=MultiLabel(3)), datamodule=tables(folder, "flu"))
    with pytest.raises(
        ConfigurationError, match="'age' of party 'clinic' is neither true nor false in 300 records; wri"
    ):
        tables(folder, ["age", "flu"]).setup("fit")
    with pytest.raises(
        ConfigurationError, match="labels of MultiLabel must be a whole number, 2 or more; got 1; use Binary"
    ):
        MultiLabel(1)


def test_losses_are_torch_s():
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.arange(15).reshape(5, 3) % 2
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
    torch.testing.assert_close(MultiLabel(3).loss(logits, labels), theirs)
    torch.testing.assert_close(Regression(targets=3).loss(logits, labels), ((logits - labels) ** 2).mean())
