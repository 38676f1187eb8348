"""A federation inside a Flower app: SuperLink and SuperNodes are real processes, with TLS and keys of the nodes."""

import time

import pytest
import torch

from tests.integration.federations import Federation, cut_digits
from tests.integration.flower_runs import Flower, programs
from tests.integration.kills import differing, included, kill_and_resume_server
from tests.integration.test_federated import MASKED

pytestmark = [pytest.mark.slow, pytest.mark.processes]

NAMES = ("party0", "party1")
SHORT = ("--trainer.limit_val_batches", "1", "--trainer.num_sanity_val_steps", "0")
RECIPES = {"mean": ("--config", "protocol/mean"), "masked": ("--config", "protocol/mean", *MASKED)}
STALE = (
    *("--config", "protocol/mean", "--model.missing", "Stale"),
    *("--model.waiting", "Deadline", "--model.waiting.seconds", "120"),  # longer than a death takes to be noticed
)
CHECK = 10  # seconds after which the relay asks a party whether it is still there


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Digits as a table for each of two parties, and one with the labels."""
    programs()  # skips without Flower
    return cut_digits(tmp_path_factory.mktemp("parts"), parties=2)


@pytest.fixture
def running(parts, tmp_path):
    """Makes a federation of a recipe, and the Flower processes that carry it."""
    made = []

    def make(recipe, batches=4, epochs=1, **patience):
        data = ("--config", str(parts / "csv_tables.yaml"), "--data.data_dir", str(parts))
        length = ("--trainer.max_epochs", str(epochs), "--trainer.limit_train_batches", str(batches))
        sockets = {name: tmp_path / f"{name}.sock" for name in ("scorer", *NAMES)}
        one = Federation(tmp_path, NAMES, (*data, *recipe, *SHORT, *length), sockets, **patience)
        flower = Flower(tmp_path / "flower", {name: sockets[name] for name in NAMES}, sockets["scorer"], CHECK)
        made.extend([one, flower])
        one.everybody()
        flower.start()
        return one, flower

    yield make
    for each in made:
        each.stop()


@pytest.mark.parametrize("name", RECIPES)
def test_a_federation_inside_flower_is_the_simulation_to_the_last_bit(running, name):
    one, _ = running(RECIPES[name])
    one.await_round(0, seconds=300.0)
    began = time.monotonic()
    one.await_round(2, seconds=300.0)
    seconds = (time.monotonic() - began) / 2
    assert one.wait(600) == dict.fromkeys(("scorer", *NAMES), 0)
    weights, replayed = one.states(), one.replay()
    assert weights.keys() == replayed.keys()
    assert [name for name in weights if not torch.equal(weights[name], replayed[name])] == []
    assert [row["round"] for row in one.rounds() if row["included"] == "1"] == sorted([*"0123"] * len(NAMES))
    print(f"{name}: {seconds:.1f} s a round")


def test_parties_that_are_killed_are_noticed_and_come_back(running):
    one, _ = running(STALE, batches=3, epochs=12)
    one.await_round(4, seconds=300.0)
    for name, later in (("party1", 0.0), ("party0", 4.0)):  # before it has the server's answer; while it waits for one
        last = int(one.rounds()[-1]["round"])
        one.await_round(last + 1, seconds=100.0)
        time.sleep(later)
        one.kill(name)
        killed, in_it = time.monotonic(), max(included(one, name))
        one.await_round(in_it + 2, seconds=100.0)
        noticed = time.monotonic() - killed
        assert name not in one.running
        one.party(name, "--ckpt_path", "last")
        began = time.monotonic()
        while max(included(one, name)) < in_it + 2:
            assert time.monotonic() - began < 200.0
            time.sleep(0.1)
        back = time.monotonic() - began
        print(f"{name}: two rounds {noticed:.1f} s after its end, in a round {back:.1f} s after its start")
    assert one.wait(600) == dict.fromkeys(("scorer", *NAMES), 0)
    assert [row["name"] for row in one.rounds() if row["restored"]] == ["party1", "party0"]
    assert differing(one) == []


def test_a_supernode_that_is_killed_is_taken_in_again(running):
    one, flower = running(STALE, batches=3, epochs=8, reconnect=300)
    one.await_round(1, seconds=300.0)
    flower.kill("party1")
    flower.start_node("party1")
    killed, in_it = time.monotonic(), max(included(one, "party1"))
    one.await_round(in_it + 2, seconds=200.0)
    noticed = time.monotonic() - killed
    while max(included(one, "party1")) < in_it + 2:
        assert time.monotonic() - killed < 300.0
        if "Failed to activate SuperNode" in flower.log("party1"):  # the SuperLink has not missed the old one yet
            flower.kill("party1")  # it neither ends nor tries again
            flower.start_node("party1")
        time.sleep(0.1)
    back = time.monotonic() - killed
    print(f"SuperNode: two rounds {noticed:.1f} s after its end, its party in a round after {back:.1f} s")
    assert one.wait(600) == dict.fromkeys(("scorer", *NAMES), 0)
    assert [row["name"] for row in one.rounds() if row["restored"]] == []  # the party's process has lived on
    assert max(included(one, "party1")) == int(one.rounds()[-1]["round"])
    assert differing(one) == []


def test_a_server_that_is_killed_is_resumed(running):
    one, _ = running(STALE, batches=3, epochs=4, join=300)
    one.await_round(4, seconds=300.0)
    kill_and_resume_server(one, NAMES, 200)
    assert one.wait(600) == dict.fromkeys(("scorer", *NAMES), 0)
    assert int(one.rounds()[-1]["round"]) == 11
    assert differing(one) == []
