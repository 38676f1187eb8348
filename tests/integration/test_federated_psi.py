"""A federation of processes with ``alignment: psi`` has the weights of one with the ids in the clear."""

import signal
import time

import pandas as pd
import pytest
import torch
import yaml

from tests.integration.federations import Federation

pytestmark = [pytest.mark.slow, pytest.mark.processes]
NAMES = ("bank", "shop")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Tables of a bank, a shop, and a server with labels, each with records that the others lack."""
    folder = tmp_path_factory.mktemp("tables")
    draw = torch.Generator().manual_seed(0)
    numbers = torch.rand(420, 6, generator=draw).numpy()
    for name, first, columns in (("bank", 0, [0, 1, 2]), ("shop", 40, [3, 4, 5]), ("scorer", 20, [])):
        own = pd.DataFrame(numbers[first : first + 360, columns], columns=[f"x{c}" for c in columns])
        own.insert(0, "id", [f"c{i}" for i in range(first, first + 360)])
        if name == "scorer":
            own["y"] = (numbers[first : first + 360].sum(1) > 3).astype(int)
        own.sample(frac=1.0, random_state=0).to_csv(folder / f"{name}.csv", index=False)
    tables = "{bank: bank.csv, shop: shop.csv, scorer: scorer.csv}"
    words = ("--config", "data/csv_tables", "--config", "protocol/mean", "--data.data_dir", str(folder))
    return (*words, "--data.tables", tables, "--data.label_party", "scorer", "--data.label_column", "y")


def run(folder, recipe, alignment, epochs="2"):
    folder.mkdir()
    federation = Federation(folder, NAMES, (*recipe, "--trainer.max_epochs", epochs, "--config", "policy/stale"))
    said = yaml.safe_load(federation.charter.read_text())
    federation.charter.write_text(yaml.safe_dump({**said, "alignment": alignment}, sort_keys=False))
    return federation


def test_masked_ids_give_the_weights_of_ids_in_the_clear(tmp_path, recipe):
    states = []
    for alignment in ("psi", "clear"):
        federation = run(tmp_path / alignment, recipe, alignment)
        federation.everybody()
        ended = federation.wait(180)
        logs = {name: federation.log(name) for name in ended}
        assert set(ended.values()) == {0}, logs
        states.append(federation.states())
    one, two = states
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def test_a_party_that_is_killed_comes_back_with_the_order_that_it_has_kept(tmp_path, recipe):
    federation = run(tmp_path / "back", recipe, "psi", epochs="500")
    federation.everybody()
    federation.await_round(30, 120)
    federation.kill("shop", signal.SIGKILL)
    federation.party("shop", "--ckpt_path", "last")
    end = time.monotonic() + 120
    while not any(row["restored"] for row in federation.rounds()) and time.monotonic() < end:
        time.sleep(0.2)
    assert any(row["party"] == "1" and row["restored"] for row in federation.rounds()), federation.log("shop")
    federation.stop()
