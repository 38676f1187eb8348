"""``contribution``: by absence of a trained model, and by trainings without parties."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.cli import run
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError

FIT = ["--config", "data/breast_cancer", "--config", "protocol/mean", "--trainer.max_epochs", "1"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_values_of_a_trained_model_and_of_its_columns_are_written():
    run(["fit", *FIT])
    run(["contribution", "--ckpt_path", "best", "--columns", "1", "--resamples", "5"])
    folder = Path("runs/lightning_logs/version_1")
    table = pd.read_parquet(folder / "contribution.parquet")
    accuracy = table[table["metric"] == "test/accuracy"]
    assert accuracy["value"].sum() == pytest.approx((accuracy["everybody"] - accuracy["nobody"]).iloc[0])
    assert (accuracy["low"] <= accuracy["high"]).all()
    assert (folder / "contribution.svg").is_file()
    columns = pd.read_parquet(folder / "columns_1.parquet")
    assert columns["column"].nunique() == 10
    with pytest.raises(ConfigurationError, match="--columns names party 7, but the last is 2"):
        run(["contribution", "--ckpt_path", "best", "--columns", "7"])


@pytest.mark.slow  # trains four models
def test_trainings_without_parties_give_the_mean_over_all_orders():
    run(["contribution", *FIT, "--by", "retraining", "--model.active", "2"])
    folder = Path("runs/contribution")
    value = {}
    for players, name in (((), "alone"), ((0,), "0"), ((1,), "1"), ((0, 1), "0+1")):
        rows = pd.read_parquet(folder / "runs" / name / "seed-0" / "result.parquet").set_index("metric")
        value[players] = rows["value"]["test/accuracy"]
    shares = np.zeros(2)
    for order in permutations((0, 1)):
        for place, party in enumerate(order):
            shares[party] += (value[tuple(sorted(order[: place + 1]))] - value[tuple(sorted(order[:place]))]) / 2
    table = pd.read_parquet(folder / "contribution.parquet")
    np.testing.assert_allclose(table[table["metric"] == "test/accuracy"]["value"], shares, atol=1e-12)


def test_what_the_options_cannot_do_together_is_refused():
    with pytest.raises(ConfigurationError, match="give --ckpt_path best, or --by retraining"):
        run(["contribution", *FIT])
    for more, words in (
        (["--config", "faults/fedvs_stragglers"], "so Stragglers would be about other parties"),
        (["--config", "protocol/vafl"], "for AsyncVFL use --by absence"),
    ):
        recipes = FIT[:2] if "protocol/vafl" in more else FIT
        with pytest.raises(ConfigurationError, match=words):
            run(["contribution", *recipes, *more, "--by", "retraining"])
    with pytest.raises(UsageError, match="--columns needs one trained model"):
        run(["contribution", *FIT, "--by", "retraining", "--columns", "1"])
