"""A federation inside a Flower app: SuperLink and SuperNodes are real processes, with TLS and keys of the nodes."""

import time

import pytest
import torch

from tests.integration.federations import Federation, cut_digits
from tests.integration.flower_runs import Flower, programs
from tests.integration.test_federated import MASKED

pytestmark = [pytest.mark.slow, pytest.mark.processes]

NAMES = ("party0", "party1")
SHORT = (
    *("--trainer.max_epochs", "1", "--trainer.limit_val_batches", "1"),
    *("--trainer.num_sanity_val_steps", "0"),
)
RECIPES = {
    "mean": ("--config", "protocol/mean"),
    "masked": ("--config", "protocol/mean", *MASKED),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Digits as a table for each of two parties, and one with the labels."""
    programs()  # skips without Flower
    return cut_digits(tmp_path_factory.mktemp("parts"), parties=2)


@pytest.fixture
def running(parts, tmp_path):
    """Makes a federation of a recipe, and the Flower processes that carry it."""
    made = []

    def make(recipe, batches=4):
        data = ("--config", str(parts / "csv_tables.yaml"), "--data.data_dir", str(parts))
        one = Federation(tmp_path, NAMES, (*data, *recipe, *SHORT, "--trainer.limit_train_batches", str(batches)))
        sockets = {name: tmp_path / f"{name}.sock" for name in NAMES}
        flower = Flower(tmp_path / "flower", sockets, tmp_path / "server.sock")
        made.extend([one, flower])
        one.serve("--relay", str(flower.server))
        for name in NAMES:
            one.party(name, "--relay", str(sockets[name]))
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
