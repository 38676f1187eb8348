"""Asynchronous events between processes: the first upload is served first, and a replay of the record is equal."""

import signal
import time
from collections import Counter

import pytest
import torch

from tests.integration.kills import NAMES, differing

pytestmark = [pytest.mark.slow, pytest.mark.processes]

DRAWS = ("--model.bottom.activation", "torch.nn.Dropout", "--model.top.activation", "torch.nn.Dropout")
VAFL = ("--config", "protocol/vafl", "--model.noise", "0.05", *DRAWS)


EPOCH = 4 * 39  # events: each party has 1,257 records, in batches of 32


def served(one):
    """The party of each event, in order."""
    rows = [row for row in one.rounds() if row["included"] == "1"]
    assert [int(row["round"]) for row in rows] == list(range(len(rows)))
    return [row["name"] for row in rows]


def test_events_come_in_the_order_of_arrival_and_the_replay_is_equal(federation):
    one = federation(VAFL)
    one.everybody()
    assert set(one.wait().values()) == {0}
    order = served(one)
    assert len(order) == 4 * EPOCH
    counts = Counter(order)
    assert set(counts) == set(NAMES)
    assert min(counts.values()) > 100  # four equal processes
    for name in NAMES:  # each party uses its own batches one after the other
        requests = [int(row["request"]) for row in one.rounds() if row["name"] == name and row["request"]]
        assert requests == list(range(len(requests)))
    assert differing(one) == []


def test_the_others_go_on_without_a_party_that_is_killed(federation):
    one = federation(VAFL)
    one.everybody()
    one.await_round(200)
    one.kill("party2")
    last = int(one.rounds()[-1]["round"])
    assert one.wait() == dict.fromkeys(("scorer", "party0", "party1", "party3"), 0)
    order = served(one)
    assert len(order) == 4 * EPOCH
    assert "party2" not in order[last + 3 :]
    assert differing(one, without=(2,)) == []


@pytest.mark.parametrize("saved", [True, False], ids=["with its checkpoint", "anew"])
def test_a_party_that_comes_back_is_served_again(federation, saved):
    one = federation(VAFL, epochs=8)
    one.everybody()
    one.await_round(200)
    one.kill("party2")
    time.sleep(0.3)
    one.party("party2", *(("--ckpt_path", "last") if saved else ()))
    assert one.wait(150) == dict.fromkeys(("scorer", *NAMES), 0)
    back = [(int(row["round"]), int(row["restored"])) for row in one.rounds() if row["restored"]]
    assert len(back) == 1
    assert back[0][0] > 200
    assert back[0][1] in ((EPOCH,) if saved else (0,))
    assert "party2" in served(one)[-40:]
    assert differing(one) == []


def test_nobody_waits_for_a_party_that_is_frozen(federation):
    one = federation(VAFL, epochs=12)
    one.everybody()
    one.await_round(100)
    one.kill("party2", signal.SIGSTOP)
    frozen = len(served(one))
    time.sleep(2)
    meanwhile = served(one)[frozen:]
    one.kill("party2", signal.SIGCONT)
    assert len(meanwhile) > 20
    assert meanwhile.count("party2") <= 1  # its upload may have been on the way
    assert one.wait(150) == dict.fromkeys(("scorer", *NAMES), 0)
    assert "party2" in served(one)[-40:]
    assert differing(one) == []


def test_all_that_resume_from_their_checkpoints_are_their_replay(federation):
    one = federation(VAFL, reconnect=2)
    one.everybody()
    one.await_round(200)
    one.kill("scorer")
    assert set(one.wait().values()) == {1}
    one.serve("--ckpt_path", "last")
    for party in NAMES:
        one.party(party, "--ckpt_path", "last")
    assert set(one.wait().values()) == {0}
    states = torch.load(one.checkpoint("scorer"), weights_only=True)
    assert states["lightning_vfl"]["rounds"]["fit"] == 4 * EPOCH
    assert differing(one) == []
