"""Cascade training between processes with tables that all have the labels: kills, replays, and what is refused."""

import time

import pytest
import torch

from lightning_vfl.federation.charter import Weights
from tests.integration.federations import Federation
from tests.integration.kills import differing, included
from tests.integration.test_federated_heads import NAMES, write_tables

pytestmark = [pytest.mark.slow, pytest.mark.processes]

EPOCH = 12  # events: each party holds 210 labels, in batches of 32
DROPOUT = ("--model.bottom.activation", "torch.nn.Dropout", "--model.top.activation", "torch.nn.Dropout")


@pytest.fixture
def made(tmp_path):
    """Makes federations, and ends what is left of them."""
    kept = []

    def make(epochs, *more, folder=tmp_path, **settings):
        folder.mkdir(exist_ok=True)
        recipe = ("--config", "protocol/cvfl", *DROPOUT, "--trainer.max_epochs", str(epochs), *more)
        kept.append(Federation(folder, NAMES, (*write_tables(folder), *recipe), **settings))
        return kept[-1]

    yield make
    for one in kept:
        one.stop()


@pytest.mark.parametrize("weights", [str(one) for one in Weights])
@pytest.mark.parametrize("more", [(), ("--model.variant", "sync"), ("--model.slower", "{1: 0.5}")], ids=str)
def test_the_replay_is_equal_and_each_party_has_its_own_bottom_alone(made, weights, more):
    one = made(12, *more, weights=weights)
    one.everybody()
    assert set(one.wait().values()) == {0}, one.log("scorer")
    assert differing(one) == []
    assert included(one, "bank") == [*range(12 * EPOCH)]
    for party, name in enumerate(NAMES):
        kept = torch.load(one.checkpoint(name), weights_only=True)["state_dict"]
        assert all(weight.startswith(f"bottoms.parties.{party}.") for weight in kept)
    server = torch.load(one.checkpoint("scorer"), weights_only=True)
    assert all(weight.startswith("top.") for weight in server["state_dict"])
    assert server["callbacks"]["ExperimentRecord"]["points"]["val/accuracy"][-1][1] > 0.7


@pytest.mark.parametrize("weights", [str(one) for one in Weights])
@pytest.mark.parametrize("at", [5, EPOCH + 5, 2 * EPOCH - 1], ids=["first epoch", "training", "validation"])
def test_all_wait_for_a_party_that_is_killed(made, at, weights):
    one = made(12, weights=weights)
    one.everybody()
    one.await_round(at)
    one.kill("bank")
    time.sleep(0.3)
    saved = any((one.folder / "runs" / "bank").rglob("*.ckpt"))
    one.party("bank", *(("--ckpt_path", "last") if saved else ()))
    assert set(one.wait(120).values()) == {0}, one.log("bank")
    assert max(included(one, "bank")) == max(included(one, "shop"))
    assert differing(one) == []


def test_all_that_resume_are_those_that_were_not_interrupted(made, tmp_path):
    whole = made(6, folder=tmp_path / "whole")
    whole.everybody()
    assert set(whole.wait().values()) == {0}
    one = made(6, folder=tmp_path / "killed")
    one.everybody()
    one.await_round(2 * EPOCH + 5)
    one.kill("scorer")
    one.serve("--ckpt_path", "last")
    assert one.wait(60, NAMES) == dict.fromkeys(NAMES, 1)
    for name in NAMES:
        one.party(name, "--ckpt_path", "last")
    assert set(one.wait(120).values()) == {0}, one.log("scorer")
    weights, expected = one.states(), whole.states()
    assert [name for name in weights if not torch.equal(weights[name], expected[name])] == []
    assert differing(one) == []
