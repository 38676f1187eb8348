"""A head at every party, between processes with tables that all have the labels: kills, replays, and unequal labels."""

import time

import pandas as pd
import pytest
import torch

from lightning_vfl.federation.charter import Weights
from tests.integration.federations import Federation
from tests.integration.kills import differing, included

pytestmark = [pytest.mark.slow, pytest.mark.processes]

NAMES = ("shop", "bank")
EPOCH = 14  # rounds: 420 records in batches of 32
DROPOUT = ("--model.bottom.activation", "torch.nn.Dropout", "--model.top.activation", "torch.nn.Dropout")


def write_tables(folder, changed=()):
    """Columns of a shop and of a bank, with the labels in both; ``changed``: records whose label the bank has wrong."""
    numbers = torch.rand(600, 6, generator=torch.Generator().manual_seed(0)).numpy()
    ids = [f"c{i}" for i in range(600)]
    labels = (numbers.sum(1) > 3).astype(int)
    pd.DataFrame({"id": ids, "y": labels}).to_csv(folder / "labels.csv", index=False)
    for name, columns in (("shop", [0, 1, 2]), ("bank", [3, 4, 5])):
        table = pd.DataFrame(numbers[:, columns], columns=[f"x{c}" for c in columns])
        table.insert(0, "id", ids)
        table["y"] = labels
        if name == "bank":
            table.loc[list(changed), "y"] = 1 - labels[list(changed)]
        table.to_csv(folder / f"{name}.csv", index=False)
    words = ("--config", "data/csv_tables", "--data.data_dir", str(folder), "--data.label_party", "labels")
    words += ("--data.tables", "{shop: shop.csv, bank: bank.csv, labels: labels.csv}", "--data.label_column", "y")
    return (*words, "--data.label_copies", "[shop, bank]")


@pytest.fixture
def made(tmp_path):
    """Makes federations, and ends what is left of them."""
    kept = []

    def make(protocol, epochs, changed=(), **settings):
        recipe = ("--config", f"protocol/{protocol}", *DROPOUT, "--trainer.max_epochs", str(epochs))
        kept.append(Federation(tmp_path, NAMES, (*write_tables(tmp_path, changed), *recipe), **settings))
        return kept[-1]

    yield make
    for one in kept:
        one.stop()


@pytest.mark.parametrize("weights", [str(one) for one in Weights])
@pytest.mark.parametrize("protocol", ["ensemble", "laser"])
def test_the_replay_is_equal_and_each_party_has_its_own_networks_alone(made, protocol, weights):
    one = made(protocol, 12, weights=weights)
    one.everybody()
    assert set(one.wait().values()) == {0}, one.log("scorer")
    assert differing(one) == []
    for party, name in enumerate(NAMES):
        kept = torch.load(one.checkpoint(name), weights_only=True)["state_dict"]
        assert all(weight.startswith((f"bottoms.parties.{party}.", f"top.{party}.")) for weight in kept)
    server = torch.load(one.checkpoint("scorer"), weights_only=True)
    assert not server["state_dict"]
    assert server["callbacks"]["ExperimentRecord"]["points"]["val/accuracy"][-1][1] > 0.7


@pytest.mark.parametrize("at", [EPOCH + 5, 2 * EPOCH - 1], ids=["training", "validation"])
@pytest.mark.parametrize("protocol", ["ensemble", "laser"])
def test_a_party_that_is_killed_comes_back(made, protocol, at):
    """Others learn alone meanwhile, or wait for it where parties exchange embeddings."""
    one = made(protocol, 12 if protocol == "laser" else 60)
    one.everybody()
    one.await_round(at)
    one.kill("bank")
    time.sleep(0.3)
    one.party("bank", "--ckpt_path", "last")
    assert set(one.wait(120).values()) == {0}, one.log("bank")
    assert max(included(one, "bank")) == max(included(one, "shop"))
    assert differing(one) == []


@pytest.mark.parametrize("protocol", ["ensemble", "laser"])
def test_all_that_resume_go_on(made, protocol):
    one = made(protocol, 6)
    one.everybody()
    one.await_round(2 * EPOCH + 5)
    one.kill("scorer")
    one.serve("--ckpt_path", "last")
    assert one.wait(60, NAMES) == dict.fromkeys(NAMES, 1)
    for name in NAMES:
        one.party(name, "--ckpt_path", "last")
    assert set(one.wait(120).values()) == {0}, one.log("scorer")
    assert differing(one) == []


def test_a_copy_of_the_labels_that_differs_is_refused_on_all_sides(made):
    one = made("ensemble", 1, changed=[17])
    one.everybody()
    assert set(one.wait().values()) == {1}
    for name in ("scorer", *NAMES):
        assert "the labels of party bank are not those of the server for the same records" in one.log(name)
        assert "Traceback" not in one.log(name)
