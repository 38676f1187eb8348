"""``woe`` of tables: counts of labels reach another party noised, declared public, or not at all."""

import numpy as np
import pandas as pd
import pytest
from lightning.pytorch import Trainer

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import CSVTables, Unchanged
from lightning_vfl.downlinks import RandomizedResponse
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Seat

N = 300
RNG = np.random.default_rng(0)
INCOME = RNG.normal(size=N)
CALLS = np.where(RNG.random(N) < 0.1, np.nan, RNG.integers(0, 6, N))
DEFAULT = (INCOME + np.nan_to_num(CALLS, nan=5) / 3 + RNG.normal(size=N) > 1).astype(int)
BANK = pd.DataFrame({"id": range(N), "income": INCOME, "default": DEFAULT})
TELCO = pd.DataFrame({"id": range(N), "calls": CALLS, "age": RNG.integers(18, 80, N)})
WOE = {"bank": {"income": "woe"}, "telco": {"calls": {"woe": 8}}}


def tables(bank=BANK, telco=TELCO, **settings):
    usual = {"label_party": "bank", "label_column": "default", "preprocess": WOE, "normaliser": Unchanged()}
    return CSVTables({"bank": bank, "telco": telco}, **usual | settings)


def oracle(train):
    """The weight of evidence of ``calls`` and its information value by pandas, on the joined training records."""
    joined = TELCO.merge(BANK, on="id").set_index("id").loc[train]
    counts = pd.crosstab(joined["calls"].fillna(-1), joined["default"]) + 0.5
    shares = counts / counts.sum()
    weights = np.log(shares[1] / shares[0])
    return weights, ((shares[1] - shares[0]) * weights).sum()


def of_calls(data):
    return data.records("train").features[:, list(data.layout.columns).index("calls")].numpy()


def test_counts_in_the_clear_give_what_pandas_gives_on_the_joined_table(told):
    data = tables(label_counts="public")
    data.setup("fit")
    train = data.records("train").ids
    weights, information = oracle(train)
    expected = weights.loc[TELCO.set_index("id").loc[train, "calls"].fillna(-1)].to_numpy()
    np.testing.assert_allclose(of_calls(data), expected, rtol=1e-6)
    said = "\n".join(told)
    assert f"information value {information:.3f}" in " ".join(said.split())
    assert "counts of labels for 1 columns of other parties, in the clear (label_counts: public)" in said


def test_counts_with_noise_are_drawn_once_and_belong_to_the_trained_model(told):
    data = tables(label_counts=0.5)
    data.setup("fit")
    weights, _ = oracle(data.records("train").ids)
    noisy = of_calls(data)
    assert np.abs(np.unique(noisy)[:, None] - weights.to_numpy()).min(1).max() > 1e-3
    data.use(None)
    data.setup("fit")
    np.testing.assert_array_equal(of_calls(data), noisy)
    assert sum("ε = 0.5 of the label of a record, for all of them together" in line for line in told) == 1
    new = tables(bank=BANK.drop(columns="default"), label_counts=0.5)
    new.use(data.fitted)
    new.setup("predict")
    everybody = new.records("predict").features[:, 1].numpy()
    np.testing.assert_array_equal(everybody[data.records("train").ids], noisy)


def test_a_party_needs_no_leave_to_count_its_own_labels():
    data = tables(preprocess={"bank": {"income": "woe"}})
    data.setup("fit")
    assert len(np.unique(data.records("train").features[:, 0])) == 10


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "woe of column 'calls' of party 'telco' needs counts of the labels, which 'bank' has; give label_counts"),
        ({"label_counts": 0.0}, "label_counts must be an ε above 0, or public; got 0.0"),
        ({"label_counts": "clear"}, "label_counts must be an ε above 0, or public; got clear"),
        ({"label_counts": 1.0, "preprocess": "auto"}, "label_counts is for steps woe of other parties"),
        ({"label_counts": 1.0, "task": "regression"}, "woe takes one label of two classes"),
        ({"label_counts": 1.0, "label_column": ["default"]}, "woe takes one label of two classes"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_data_are_made(settings, line):
    with pytest.raises(ConfigurationError, match=line):
        tables(**settings)


def test_labels_of_three_classes_are_refused_before_training():
    data = tables(bank=BANK.assign(default=RNG.integers(0, 3, N)), label_counts="public")
    with pytest.raises(ConfigurationError, match="woe takes labels of two classes; got 3"):
        data.setup("fit")


def test_a_downlink_that_protects_labels_refuses_features_that_are_made_of_them():
    module = SplitVFL(Mean(), downlink=RandomizedResponse(1.0, draws="seeded"))
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigurationError, match=r"does not protect .* labels: woe of bank\.income, telco\.calls"):
        trainer.fit(module, tables(label_counts=1.0))


def test_accounting_of_privacy_names_the_counts():
    data = tables(label_counts="public")
    data.setup("fit")
    assert "quantiles and counts of labels (bank.income, telco.calls)" in data.private_statistics()[0]


def test_a_federation_refuses_it_for_a_party_without_the_labels():
    data = tables(label_counts=1.0)
    for seat in (Seat(0), Seat(1)):
        with pytest.raises(ConfigurationError, match="woe of column 'calls' of party 'telco' needs the labels, which"):
            data.take_seat(seat, ("bank", "telco"), labels_at=0)
