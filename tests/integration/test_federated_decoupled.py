"""Decoupled training between processes: guests that are killed and come back, and replays of the record."""

import time

import pandas as pd
import pytest
import torch

from lightning_vfl.federation.charter import Weights
from tests.integration.federations import Federation
from tests.integration.kills import NAMES, differing, included, kill_and_resume_server
from tests.integration.test_federated_kept import alone, told

pytestmark = [pytest.mark.slow, pytest.mark.processes]

EPOCH = 40  # rounds: 1,257 records in batches of 32
DVFL = (
    *("--config", "protocol/dvfl", "--model.guest_epochs", "3", "--model.replay_epochs", "1", "--model.hosts", "2"),
    *("--model.bottom.activation", "torch.nn.Dropout"),
)
EPOCHS = 6  # the owner's phase begins with the fifth


@pytest.mark.parametrize("weights", [str(one) for one in Weights])
def test_the_replay_of_a_federation_is_equal(federation, weights):
    one = federation(DVFL, EPOCHS, weights=weights)
    one.everybody()
    assert set(one.wait().values()) == {0}
    assert included(one, "party0") == [*range(3 * EPOCH), 4 * EPOCH]  # the last collects the final embeddings
    assert differing(one) == []


def test_hosts_learn_without_a_guest_and_the_owner_waits_for_it(federation):
    one = federation(DVFL, EPOCHS)
    one.everybody()
    one.await_round(EPOCH + 10)
    one.kill("party2")
    one.await_round(4 * EPOCH - 1)  # the hosts have gone on
    time.sleep(1.0)
    one.party("party2", "--ckpt_path", "last")
    assert one.wait(120) == dict.fromkeys(("scorer", *NAMES), 0)
    assert max(included(one, "party2")) == max(included(one, "party0")) > 4 * EPOCH
    given_up = [int(row["round"]) for row in one.rounds() if row["skipped"] == "1"]
    assert set(given_up) == {4 * EPOCH}
    assert differing(one) == []


def test_a_guest_that_comes_back_learns_again(federation):
    one = federation((*DVFL, "--model.guest_epochs", "8"), 10)
    one.everybody()
    one.await_round(EPOCH + 10)
    one.kill("party2")
    time.sleep(0.3)
    one.party("party2", "--ckpt_path", "last")
    assert one.wait(120) == dict.fromkeys(("scorer", *NAMES), 0)
    back = [(int(row["round"]), int(row["restored"])) for row in one.rounds() if row["restored"]]
    assert [since for _, since in back] == [EPOCH]
    assert 8 * EPOCH - 1 in included(one, "party2")
    assert differing(one) == []


def test_a_guest_may_be_lost_in_the_owners_phase(federation):
    one = federation(DVFL, 30)
    one.everybody()
    one.await_round(5 * EPOCH)
    one.kill("party2")
    time.sleep(0.3)
    one.party("party2", "--ckpt_path", "last")
    assert one.wait(120) == dict.fromkeys(("scorer", *NAMES), 0)
    assert differing(one) == []


def test_predictions_are_those_of_the_simulation(federation, tmp_path):
    one = federation(DVFL, EPOCHS)
    one.everybody()
    assert set(one.wait().values()) == {0}
    assert differing(one) == []
    predict = ("--do", "predict", "--ckpt_path", "last")
    one.serve(*predict, *told(tmp_path / "server.csv"))
    for name in NAMES:
        one.party(name, *predict, *told(tmp_path / f"{name}.csv"))
    assert set(one.wait().values()) == {0}, one.log("scorer")
    replayed = ("--ckpt_path", str(one.checkpoint("replay")))
    alone(tmp_path / "sim", "predict", *one.recipe, *replayed, *told(tmp_path / "sim.csv"))
    written = pd.read_csv(tmp_path / "server.csv")
    pd.testing.assert_frame_equal(written, pd.read_csv(tmp_path / "sim.csv"), check_exact=True)
    assert not (tmp_path / "party0.csv").exists()


@pytest.mark.parametrize("killed", [EPOCH + 10, 3 * EPOCH + 10, 5 * EPOCH + 10], ids=["guests", "replay", "owner"])
def test_all_that_resume_are_those_that_were_not_interrupted(federation, tmp_path, killed):
    whole = federation(DVFL, EPOCHS, folder=tmp_path / "whole")
    whole.everybody()
    assert set(whole.wait().values()) == {0}
    one = federation(DVFL, EPOCHS, folder=tmp_path / "killed")
    one.everybody()
    one.await_round(killed)
    kill_and_resume_server(one, NAMES, 30)
    assert set(one.wait(120).values()) == {0}
    weights, expected = one.states(), whole.states()
    assert weights.keys() == expected.keys()
    assert [name for name in weights if not torch.equal(weights[name], expected[name])] == []
    assert differing(one) == []


# ---- the labels at a party, which is the owner


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The recipe of a shop and of a bank, which has the labels too."""
    folder = tmp_path_factory.mktemp("tables")
    numbers = torch.rand(600, 6, generator=torch.Generator().manual_seed(0)).numpy()
    for name, columns in (("shop", [0, 1, 2]), ("bank", [3, 4, 5])):
        table = pd.DataFrame(numbers[:, columns], columns=[f"x{c}" for c in columns])
        table.insert(0, "id", [f"c{i}" for i in range(600)])
        if name == "bank":
            table["y"] = (numbers.sum(1) > 3).astype(int)
        table.to_csv(folder / f"{name}.csv", index=False)
    words = ("--config", "data/csv_tables", "--data.data_dir", str(folder), "--data.label_party", "bank")
    return (*words, "--data.tables", "{shop: shop.csv, bank: bank.csv}", "--data.label_column", "y")


OWNER = (*DVFL, "--model.active", "1", "--model.top.activation", "torch.nn.Dropout")
HALVES = ("--config", "protocol/u_shape", "--model.active", "1")


def no_labels_leave():
    """In the process of a party: end it if it sends labels."""
    from lightning_vfl.federation.link import Link

    ask = Link.ask

    def watched(self, key, say, header=None, tensors=(), bits=None):
        assert "labels" not in (header or {})
        assert all(tensor.is_floating_point() for tensor in tensors) or say != "tell"
        return ask(self, key, say, header, tensors, bits)

    Link.ask = watched


@pytest.mark.parametrize("weights", [str(one) for one in Weights])
def test_no_label_leaves_a_party_that_is_the_owner(tmp_path, tables, weights):
    one = Federation(tmp_path, ("shop", "bank"), (*tables, *OWNER, "--trainer.max_epochs", "12"), weights=weights)
    one.before = dict.fromkeys(one.names, no_labels_leave)
    one.everybody()
    assert set(one.wait().values()) == {0}, one.log("bank")
    states = torch.load(one.checkpoint("bank"), weights_only=True)
    assert any(name.startswith("top.") for name in states["state_dict"])
    assert states["callbacks"]["ExperimentRecord"]["points"]["val/accuracy"][-1][1] > 0.7
    assert differing(one) == []


def test_all_end_with_one_line_if_the_owner_is_lost(tmp_path, tables):
    one = Federation(tmp_path, ("shop", "bank"), (*tables, *OWNER, "--trainer.max_epochs", "500"))
    one.everybody()
    one.await_round(150)
    one.kill("bank")
    assert one.wait(60) == {"scorer": 1, "shop": 1}
    for name in ("scorer", "shop"):
        assert "party bank, which has the labels, is lost, and nobody else learns" in one.log(name)
        assert "Traceback" not in one.log(name)


@pytest.mark.parametrize("recipe", [OWNER, HALVES], ids=["owner of DVFL", "top in halves"])
def test_all_wait_for_the_label_holder_that_is_lost_in_training(tmp_path, tables, recipe):
    one = Federation(tmp_path, ("shop", "bank"), (*tables, *recipe, "--trainer.max_epochs", "8"))
    one.everybody()
    one.await_round(20)
    one.kill("bank")
    time.sleep(0.3)
    one.party("bank", "--ckpt_path", "last")
    assert one.wait() == dict.fromkeys(("scorer", "shop", "bank"), 0), one.log("bank")
    assert max(included(one, "bank")) == max(included(one, "shop"))
    assert differing(one) == []
