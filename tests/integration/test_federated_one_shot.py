"""One-shot training between processes: kills in each of its phases, and replays of the record."""

import time

import pytest
import torch

from lightning_vfl.federation.charter import Weights
from tests.integration.injected import DIGITS, federated, simulated
from tests.integration.kills import NAMES, differing, included, kill_and_resume_server
from tests.integration.test_federated import SHORT, without_loss

pytestmark = [pytest.mark.slow, pytest.mark.processes]

EPOCH = 40  # rounds: 1,257 records in batches of 32
DROPOUT = ("--model.bottom.activation", "torch.nn.Dropout", "--model.top.activation", "torch.nn.Dropout")
ONE_SHOT = ("--config", "protocol/one_shot", "--model.local_epochs", "3", *DROPOUT)
EPOCHS = 6  # the owner's phase begins with the fifth
PHASES = {"exchange": 10, "local": 2 * EPOCH + 10, "owner": 4 * EPOCH + 10}


@pytest.mark.parametrize("faults", [None, "unreliable", "dvfl_guest_crashes"])
def test_a_federation_with_the_faults_of_the_recipe_is_the_simulation(tmp_path, faults):
    """The server is not told the losses of the parties."""
    recipe = (*DIGITS, *ONE_SHOT, *SHORT, "--trainer.max_epochs", "5")
    if faults is not None:
        recipe += ("--config", f"faults/{faults}", "--model.waiting", "WaitForAll", "--model.waiting.timeout", "1.0")
    one, two = simulated(tmp_path, *recipe), federated(tmp_path, *recipe)
    assert one.books["rounds"]["fit"] == 50
    assert {"up/embeddings", "up/final embeddings"} < one.books["meter"].keys()
    assert without_loss(one).differences(without_loss(two)) == []


@pytest.mark.parametrize("weights", [str(one) for one in Weights])
def test_the_replay_of_a_federation_is_equal(federation, weights):
    one = federation(ONE_SHOT, EPOCHS, weights=weights)
    one.everybody()
    assert set(one.wait().values()) == {0}
    assert included(one, "party0") == [*range(EPOCH), 4 * EPOCH]  # the exchange, and the last upload
    assert differing(one) == []
    server = torch.load(one.checkpoint("scorer"), weights_only=True)
    assert server["callbacks"]["ExperimentRecord"]["points"]["val/accuracy"][-1][1] > 0.7


@pytest.mark.parametrize("weights", [str(one) for one in Weights])
@pytest.mark.parametrize("phase", PHASES)
def test_a_party_that_is_killed_comes_back(federation, phase, weights):
    one = federation(ONE_SHOT, 30 if phase == "owner" else EPOCHS, weights=weights)
    one.everybody()
    one.await_round(PHASES[phase])
    one.kill("party2")
    time.sleep(0.3)
    saved = any((one.folder / "runs" / "party2").rglob("*.ckpt"))
    one.party("party2", *(("--ckpt_path", "last") if saved else ()))
    assert one.wait(120) == dict.fromkeys(("scorer", *NAMES), 0), one.log("party2")
    assert max(included(one, "party2")) == max(included(one, "party0")) >= 4 * EPOCH
    assert differing(one) == []


@pytest.mark.parametrize("phase", PHASES)
def test_all_that_resume_are_those_that_were_not_interrupted(federation, tmp_path, phase):
    whole = federation(ONE_SHOT, EPOCHS, folder=tmp_path / "whole")
    whole.everybody()
    assert set(whole.wait().values()) == {0}
    one = federation(ONE_SHOT, EPOCHS, folder=tmp_path / "killed")
    one.everybody()
    one.await_round(EPOCH + 5 if phase == "exchange" else PHASES[phase])
    kill_and_resume_server(one, NAMES, 30)
    assert set(one.wait(120).values()) == {0}
    weights, expected = one.states(), whole.states()
    assert weights.keys() == expected.keys()
    assert [name for name in weights if not torch.equal(weights[name], expected[name])] == []
    assert differing(one) == []


def test_a_party_without_its_checkpoint_is_refused_after_the_last_upload(federation):
    one = federation(ONE_SHOT, 200)
    one.everybody()
    one.await_round(PHASES["owner"])
    one.kill("party2")
    one.party("party2")
    assert one.wait(30, ["party2"]) == {"party2": 1}
    assert "its embeddings are collected, and a bottom that begins anew has others" in one.log("party2")
    assert "Traceback" not in one.log("party2")
    one.stop()
