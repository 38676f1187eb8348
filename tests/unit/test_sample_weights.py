"""Sample weights: scikit-learn's weighted means, and the same training as with repeated records."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import log_loss, mean_squared_error
from torch import nn

from lightning_vfl.datamodules import CSVTables, Standardise, Unchanged
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import Binary, MultiClass, MultiLabel, Objective, Regression, mean_loss
from lightning_vfl.types import VerticalBatch
from tests.own_tables import files, write
from tests.subjects import split, trainer

pytestmark = pytest.mark.filterwarnings("ignore:label 'y' has classes of fewer than 10 records")
N = 24
OUTPUT = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHTS = torch.rand(N, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
CLASSES = torch.arange(N) % 3
FLAGS = torch.stack([CLASSES == 1, CLASSES > 0, torch.arange(N) < 9], 1).long()


def weighted(objective, output, labels, weights=WEIGHTS):
    normal = None if weights is None else weights / weights.mean()
    return mean_loss(objective, output, VerticalBatch((), labels, torch.arange(len(labels)), weights=normal)).item()


def with_weights(objective, classes):
    objective.prepare(classes)
    return objective


def test_the_loss_is_scikit_learn_s_weighted_mean():
    two = OUTPUT[:, 0].sigmoid()
    found = weighted(Binary(), OUTPUT[:, :1], CLASSES % 2)
    assert found == pytest.approx(log_loss(CLASSES % 2, two, sample_weight=WEIGHTS), rel=1e-6)
    found = weighted(MultiClass(), OUTPUT, CLASSES)
    assert found == pytest.approx(log_loss(CLASSES, OUTPUT.softmax(1), sample_weight=WEIGHTS), rel=1e-6)
    found = weighted(Regression(targets=3), OUTPUT, OUTPUT.flip(0))
    assert found == pytest.approx(mean_squared_error(OUTPUT.flip(0), OUTPUT, sample_weight=WEIGHTS), rel=1e-6)
    found = weighted(MultiLabel(3), OUTPUT, FLAGS)
    each = [log_loss(FLAGS[:, t], OUTPUT[:, t].sigmoid(), sample_weight=WEIGHTS) for t in range(3)]
    assert found == pytest.approx(np.mean(each), rel=1e-6)


@pytest.mark.parametrize(
    ("objective", "output", "labels"),
    [
        (with_weights(MultiClass(class_weights=[0.5, 2.0, 1.0]), 3), OUTPUT, CLASSES),
        (with_weights(Binary(class_weights=[1.0, 3.0]), 2), OUTPUT[:, :1], CLASSES % 2),
        (Regression(nn.HuberLoss()), OUTPUT[:, :1], OUTPUT[:, 1]),
    ],
)
def test_equal_weights_change_nothing_and_halves_have_the_mean_of_the_whole(objective, output, labels):
    assert weighted(objective, output, labels, torch.ones(N)) == pytest.approx(objective.loss(output, labels).item())
    assert weighted(objective, output, labels, None) == objective.loss(output, labels).item()
    batch = VerticalBatch((), labels, torch.arange(N), weights=WEIGHTS)
    halves = [mean_loss(objective, output[h], batch._replace(labels=labels[h], weights=WEIGHTS[h])).item()
              for h in (slice(0, 12), slice(12, N))]  # fmt: skip
    assert mean_loss(objective, output, batch).item() == pytest.approx(np.mean(halves))


class Own(Objective):
    def outputs(self, num_classes):
        return 1

    def loss(self, output, labels):
        return output.mean()

    def predict(self, output):
        return output

    def metrics(self, num_classes):
        return {}


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (Own(), "Own has no losses of single records"),
        (MultiClass(nn.CrossEntropyLoss(torch.ones(3))), "CrossEntropyLoss has class weights of its own"),
        (MultiClass(nn.CrossEntropyLoss(reduction="sum")), "CrossEntropyLoss has no reduction: mean"),
        (MultiClass(nn.Identity()), "Identity has no reduction: mean"),
    ],
)
def test_a_loss_without_losses_of_records_is_refused(objective, message):
    with pytest.raises(ConfigurationError, match=message):
        weighted(objective, OUTPUT, CLASSES)


# ---- of tables


def write_tables(folder, weights, repeat=False):
    """Two parties' tables; with ``repeat`` every record is there as often as it weighs, and nothing else weighs."""
    rng = np.random.default_rng(3)
    times = weights if repeat else np.ones(len(weights), dtype=int)
    bank = pd.DataFrame({"y": rng.integers(0, 2, len(weights)), "age": rng.normal(size=len(weights)), "w": weights})
    telco = pd.DataFrame({"minutes": rng.normal(size=len(weights))})
    tables = {"bank": bank.drop(columns=["w"] * repeat), "telco": telco}
    for name, table in tables.items():
        tables[name] = table.loc[np.repeat(table.index, times)].reset_index(drop=True).rename_axis("id").reset_index()
    write(folder, tables)
    return files(folder, "bank", "telco")


def tables(paths, **settings):
    usual = {"normaliser": Unchanged(), "val_share": 0.0, "test_share": 0.0, "batch_size": 6}
    return CSVTables(paths, "bank", "y", **usual | settings)


def test_a_record_of_weight_three_is_three_records(tmp_path):
    weights, trained = np.array([1, 3, 2, 0, 1, 2, 1, 4] * 3), []
    for name, repeat in (("weights", False), ("repeated", True)):
        whole = int(weights.sum()) if repeat else len(weights)
        paths = write_tables(tmp_path / name, weights, repeat)
        data = tables(paths, sample_weight=None if repeat else "w", batch_size=whole)
        torch.manual_seed(0)
        module = split(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5))
        trainer(tmp_path, max_epochs=4, limit_val_batches=0).fit(module, datamodule=data)
        trained.append(module.state_dict())
        assert data.records("train").widths == (1, 1)  # a weight is no feature
    for name, value in trained[0].items():
        torch.testing.assert_close(value, trained[1][name], msg=name)


def test_metrics_are_not_weighted_and_new_tables_need_no_weights(tmp_path):
    paths = write_tables(tmp_path, np.arange(40) / 7)
    data = tables(paths, sample_weight="w", val_share=0.2, test_share=0.2, normaliser=Standardise(), batch_size=5)
    for stage in ("fit", "test"):
        data.setup(stage)
    batch = next(iter(data.train_dataloader()))
    assert batch.weights.shape == (5,)
    assert next(iter(data.val_dataloader())).weights is next(iter(data.test_dataloader())).weights is None
    weights = data.records("train").weights
    assert weights.mean().item() == pytest.approx(1.0, rel=1e-6)
    given = data.records("train").ids / 7
    np.testing.assert_allclose(weights, given / given.mean(), rtol=1e-6)
    assert any("sample weights are divided by their mean" in told for told in data.private_statistics())
    without = tables(
        write_tables(tmp_path / "new", np.ones(9, int), repeat=True), sample_weight="w", normaliser=Standardise()
    )
    without.use(data.fitted)
    without.setup("predict")
    assert len(without.records("predict")) == 9


@pytest.mark.parametrize(
    ("column", "weights", "message"),
    [
        ("w", [1, -2, 3, 1, 1, 1], "1 sample weights 'w' of party 'bank' are negative or infinite, first of record 1"),
        ("w", [0] * 6, "all 6 training records are 0"),
        ("w", [1, None, 1, 1, 1, 1], "1 values of column 'w' .* are missing"),
        ("w", list("abcdef"), "column 'w' of party 'bank' is text"),
        ("weight", [1] * 6, "sample_weight names column 'weight', which party 'bank' does not have"),
    ],
)
def test_bad_weights_are_refused(tmp_path, column, weights, message):
    paths = write_tables(tmp_path, np.ones(6, dtype=int))
    pd.read_csv(paths["bank"]).assign(w=weights).to_csv(paths["bank"], index=False)
    with pytest.raises(ConfigurationError, match=message):
        tables(paths, sample_weight=column).setup("fit")
