"""Parties that are killed, frozen and started again: the federation goes on, and a replay of its record is equal."""

import random
import signal
import time

import pytest
import torch

from tests.integration.federations import Federation, cut_digits
from tests.integration.kills import NAMES, differing, included
from tests.integration.test_federated import LATE, MASKED, RING, VARYING

pytestmark = [pytest.mark.slow, pytest.mark.processes]

MEAN = ("--config", "protocol/mean", "--model.waiting", "Deadline", "--model.waiting.seconds", "0.5")
RECIPES = {
    "stale": (*MEAN, "--model.missing", "Stale"),
    "zeros": (*MEAN, "--model.missing", "Zeros"),
    "exclude": MEAN,
    "masked": (
        *(
            "--config",
            "protocol/mean",
            *MASKED,
            *VARYING,
            "--model.waiting",
            "WaitForAll",
            "--model.waiting.timeout",
            "5",
        ),
    ),
    "recovery": ("--config", "protocol/mean", *MASKED, "--model.aggregator.recovery", "auto", *LATE, *VARYING),
    "lagrange_shared": ("--config", "protocol/lagrange_shared", *LATE, *VARYING),
    "skip": (*MEAN, "--model.missing", "Skip"),
}
RECIPES["waits"] = ("--config", "protocol/mean", "--model.waiting", "WaitForAll")  # as long as the connection lives
RECIPES["masked, skip"] = (*RECIPES["masked"], "--model.missing", "Skip")
RECIPES["compressed"] = (
    *(*MEAN, "--model.compressor", "TopK", "--model.compressor.k", "8", "--model.compressor.feedback", "true"),
    *("--model.gradient_compressor", "TopK", "--model.gradient_compressor.k", "8"),
    *("--model.gradient_compressor.feedback", "true"),
)
GOES_ON = ("stale", "zeros", "exclude", "masked", "recovery", "lagrange_shared")


@pytest.mark.parametrize("name", GOES_ON)
def test_a_party_that_is_killed_is_left_out(federation, name):
    one = federation(RECIPES[name])
    one.everybody()
    one.await_round(60)
    one.kill("party2")
    killed = time.monotonic()
    last = int(one.rounds()[-1]["round"])
    one.await_round(last + 3)
    seconds = time.monotonic() - killed
    statuses = one.wait()
    assert statuses == dict.fromkeys(("scorer", "party0", "party1", "party3"), 0)
    rounds = {int(row["round"]) for row in one.rounds()}
    assert rounds == set(range(len(rounds)))
    assert max(included(one, "party2")) <= last + 2
    assert max(included(one, "party0")) == max(rounds)
    print(f"{name}: three rounds {1000 * seconds:.0f} ms after the end of a party")
    assert seconds < 5.0  # less than any time-out but the deadlines of the recipe
    assert differing(one, without=(2,)) == []


@pytest.mark.parametrize("name", [*GOES_ON, "skip", "masked, skip", "compressed"])
def test_a_party_that_comes_back_learns_again(federation, name):
    one = federation(RECIPES[name], epochs=20)
    one.everybody()
    one.await_round(60)
    one.kill("party2")
    time.sleep(0.3)
    one.party("party2", "--ckpt_path", "last")
    assert one.wait(120) == dict.fromkeys(("scorer", *NAMES), 0)
    back = [(int(row["round"]), int(row["restored"])) for row in one.rounds() if row["restored"]]
    assert len(back) == 1
    assert back[0][1] < 60 < back[0][0]
    last = int(one.rounds()[-1]["round"])
    assert max(included(one, "party2")) == last
    assert differing(one) == []


SILENCE = 4.0  # seconds


@pytest.mark.parametrize("name", ["stale", "recovery", "waits"])
def test_a_frozen_party_is_left_out_after_the_silence_until_it_goes_on(federation, name):
    one = federation(RECIPES[name], epochs=40, silence=SILENCE)
    one.everybody()
    one.await_round(60)
    one.kill("party2", signal.SIGSTOP)
    frozen = time.monotonic()
    while not any(row["name"] == "party2" and row["called"] == "0" for row in one.rounds()):
        assert time.monotonic() - frozen < SILENCE + 2.0
        time.sleep(0.05)
    print(f"{name}: a frozen party was no longer called after {time.monotonic() - frozen:.1f} s")
    time.sleep(max(0.0, frozen + SILENCE + 2.0 - time.monotonic()))
    one.kill("party2", signal.SIGCONT)
    assert one.wait(300) == dict.fromkeys(("scorer", *NAMES), 0)
    assert max(included(one, "party2")) == int(one.rounds()[-1]["round"])
    assert differing(one) == []


def test_a_party_may_be_killed_while_keys_are_exchanged(federation):
    recipe = (*RECIPES["recovery"], "--model.aggregator.rekey_every", "1")
    one = federation(recipe, epochs=20)
    one.everybody()
    for number, name in ((40, "party1"), (300, "party3")):
        one.await_round(number)
        one.kill(name)
        time.sleep(0.2)
        one.party(name, "--ckpt_path", "last")
    assert one.wait(120) == dict.fromkeys(("scorer", *NAMES), 0)
    assert differing(one) == []


def test_a_party_of_a_ring_is_killed_and_comes_back(tmp_path):
    """Each of six parties shares secrets with four neighbours; the others go on, and renew all keys when it is back."""
    parts, names = cut_digits(tmp_path, 6), tuple(f"party{m}" for m in range(6))
    data = ("--config", str(parts / "csv_tables.yaml"), "--data.data_dir", str(parts))
    one = Federation(tmp_path, names, (*data, *RING, "--trainer.max_epochs", "5"))
    try:
        one.everybody()
        for number, name in ((40, "party1"), (100, "party4")):
            one.await_round(number, 300)
            one.kill(name)
            one.await_round(int(one.rounds()[-1]["round"]) + 3, 300)
            one.party(name, "--ckpt_path", "last")
        assert one.wait(300) == dict.fromkeys(("scorer", *names), 0)
        last = int(one.rounds()[-1]["round"])
        for name in ("party1", "party4"):
            assert max(included(one, name)) == last
            assert len(included(one, name)) <= last - 2
        assert differing(one) == []
    finally:
        one.stop()


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("name", ["exclude", "recovery"])
def test_a_batch_that_is_lost_with_a_party_is_evaluated_again(federation, name, seconds):
    one = federation(RECIPES[name], epochs=12)
    one.everybody()
    one.await_round(79)  # the last round before the second evaluation
    time.sleep(seconds)
    one.kill("party3")
    time.sleep(0.2)
    one.party("party3", "--ckpt_path", "last")
    assert one.wait(120) == dict.fromkeys(("scorer", *NAMES), 0)
    points = torch.load(one.checkpoint("scorer"), weights_only=True)["callbacks"]["ExperimentRecord"]["points"]
    assert [epoch for epoch, _ in points["val/loss"]] == list(range(1, 13))
    assert differing(one) == []


@pytest.mark.parametrize("name", ["exclude", "recovery"])
def test_all_that_resume_from_their_checkpoints_go_on_as_if_nothing_had_been(federation, tmp_path, name):
    recipe = (*RECIPES[name], "--model.waiting.seconds", "30")  # nobody is late
    whole = federation(recipe, folder=tmp_path / "whole")
    whole.everybody()
    assert set(whole.wait().values()) == {0}
    cut = federation(recipe, folder=tmp_path / "cut", reconnect=2)
    cut.everybody()
    cut.await_round(60)
    cut.kill("scorer")
    assert set(cut.wait().values()) == {1}
    assert "has not answered for 2 s" in cut.log("party0")
    cut.serve("--ckpt_path", "last")
    for party in NAMES:
        cut.party(party, "--ckpt_path", "last")
    assert set(cut.wait().values()) == {0}
    one, two = whole.states(), cut.states()
    assert [key for key in one if not torch.equal(one[key], two[key])] == []
    assert differing(cut) == []


def test_twenty_kills_at_any_time(federation, tmp_path):
    ended, equal, said = 0, 0, []
    for seed in range(20):
        drawn = random.Random(seed)
        name = drawn.choice(GOES_ON)
        one = federation(RECIPES[name], epochs=8, folder=tmp_path / str(seed))
        one.everybody()
        party = drawn.choice(NAMES)
        one.await_round(drawn.randrange(1, 200))
        time.sleep(drawn.random() / 50)
        at = one.rounds()[-1]["round"]
        one.kill(party)
        time.sleep(drawn.random())
        saved = any((tmp_path / str(seed) / "runs" / party).rglob("*.ckpt"))
        one.party(party, *(("--ckpt_path", "last") if saved else ()))
        statuses = one.wait(120)  # longer than a party calls a server that has ended
        others = [status for who, status in statuses.items() if who != party]
        ended += others == [0] * 4
        found = differing(one, () if statuses[party] == 0 else (NAMES.index(party),))
        equal += not found
        said.append(f"{seed}: {name}, {party} killed at {at}, {statuses}, {len(found)} differ")
    assert (ended, equal) == (20, 20), "\n".join(said)
