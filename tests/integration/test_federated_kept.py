"""Records that some party does not hold, in processes of their own: the weights and predictions of the simulation."""

import os

import pandas as pd
import pytest
import torch

from lightning_vfl.commands.program import run_or_exit
from lightning_vfl.federation.local import start
from tests.integration.federations import BASE, Federation, prepare
from tests.integration.injected import DIGITS, federated, simulated
from tests.integration.kills import differing
from tests.integration.test_new_records import write_tables

pytestmark = [pytest.mark.slow, pytest.mark.processes]

HELD = [f"c{i:04d}" for i in range(200)]
NEW = [f"n{i:04d}" for i in range(90)]
SHORT = ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "10", "--trainer.limit_val_batches", "2")
PARTLY = ("--data.partitioner", "LimitedOverlap", "--data.partitioner.aligned", "800")


@pytest.mark.parametrize("faults", [None, "unreliable"])
@pytest.mark.parametrize("name", ["mean", "concat", "wait_dp", "vafl"])
def test_one_file_of_which_parties_hold_parts(tmp_path, name, faults):
    recipe = (*DIGITS, "--config", f"protocol/{name}", *SHORT, *PARTLY)
    recipe += ("--model.aggregator.draws", "seeded") if name == "wait_dp" else ()
    if faults is not None:
        recipe += ("--config", f"faults/{faults}")
        recipe += () if name == "vafl" else ("--model.waiting", "Deadline", "--model.waiting.seconds", "0.3")
    assert simulated(tmp_path, *recipe).differences(federated(tmp_path, *recipe)) == []


def write(folder, ids, seed=0):
    """The shop has two thirds of the bank's records, and 20 of its own."""
    joined = write_tables(folder, ids, seed)
    shop = pd.read_csv(folder / "shop.csv").query("id.str[-1] not in ['1', '4', '7']")
    more = pd.DataFrame({"id": [f"x{i:04d}" for i in range(20)], "visits": range(20)})
    pd.concat([shop, more]).sample(frac=1, random_state=3).to_csv(folder / "shop.csv", index=False)
    return joined


def recipe_of(folder, aggregator):
    return (
        *("--config", "data/csv_tables", "--config", f"protocol/{aggregator}"),
        *("--data.data_dir", str(folder), "--data.tables", "{bank: bank.csv, shop: shop.csv}"),
        *("--data.label_party", "bank", "--data.label_column", "y", "--data.overlap", "keep"),
        *("--trainer.max_epochs", "2"),
    )


def alone(folder, command, *recipe):
    def role():
        prepare()
        run_or_exit([command, *recipe, *BASE, "--trainer.default_root_dir", str(folder)])

    log = folder.parent / f"{folder.name}.{command}.txt"
    _, status = os.waitpid(start(role, log), 0)
    assert status == 0, log.read_text()
    return log.read_text()


@pytest.mark.parametrize(("aggregator", "labels"), [("mean", ()), ("concat", ("--model.active", "0"))])
def test_tables_of_which_parties_hold_parts(tmp_path, aggregator, labels):
    write(tmp_path / "tables", HELD)
    write(tmp_path / "new", NEW, seed=1)
    recipe = (*recipe_of(tmp_path / "tables", aggregator), *labels)
    trial = Federation(tmp_path, ("bank", "shop"), recipe)
    trial.everybody()
    assert set(trial.wait().values()) == {0}, trial.log("scorer")
    assert "200 joined records" in trial.log("shop")
    alone(tmp_path / "sim", "fit", *recipe)
    checkpoint = max((tmp_path / "sim").rglob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    simulation = torch.load(checkpoint, weights_only=True)["state_dict"]
    together = trial.states()
    assert together.keys() == simulation.keys()
    for name, weights in together.items():  # features that lie apart in memory are multiplied with other last bits
        torch.testing.assert_close(weights, simulation[name], rtol=1e-4, atol=1e-6)
    assert differing(trial) == []

    new = (*recipe_of(tmp_path / "new", aggregator), *labels)
    alone(tmp_path / "sim", "predict", *new, "--ckpt_path", str(checkpoint), *told(tmp_path / "sim.csv"))
    expected = pd.read_csv(tmp_path / "sim.csv")
    assert set(expected["parties"]) == {"bank shop", "bank"}
    checkpoints = {name: str(trial.checkpoint(name)) for name in ("scorer", *trial.names)}
    for at in ("server", "parties"):
        again = Federation(tmp_path / at, trial.names, new)
        for name in ("scorer", *trial.names):
            more = ("--do", "predict", "--ckpt_path", checkpoints[name])
            more += told(tmp_path / at / f"{name}.csv", at)
            again.serve(*more) if name == "scorer" else again.party(name, *more)
        assert set(again.wait().values()) == {0}, again.log("scorer")
        if at == "server":
            pd.testing.assert_frame_equal(pd.read_csv(tmp_path / at / "scorer.csv"), expected, rtol=1e-3)
            continue
        for name in trial.names:  # a party writes the records that it holds
            own = expected[expected["parties"].str.split().map(lambda there, name=name: name in there)]
            written = pd.read_csv(tmp_path / at / f"{name}.csv")
            pd.testing.assert_frame_equal(written, own.reset_index(drop=True), rtol=1e-3)
    shop = tmp_path / "parties" / "shop.shop.left_out.csv"
    assert len(pd.read_csv(shop)) == 20


def told(path, at="server"):
    return ("--predictions.path", str(path), "--predictions.at", at)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (("--inject",), "--inject needs the holders of all records in every process; use overlap: inner"),
        (("--config", "protocol/vafl"), "AsyncVFL needs the holders of all records in every process; use overlap"),
        (("--config", "protocol/vfedsec"), "records that some party does not hold are not between processes with"),
    ],
)
def test_what_needs_the_holders_everywhere_is_refused(tmp_path, more, line):
    write(tmp_path / "tables", HELD)
    recipe = recipe_of(tmp_path / "tables", "mean")
    if "--config" in more:
        recipe = (*recipe[:2], *more, *recipe[4:])
        more = ()

    def role():
        prepare()
        run_or_exit(["federate", "--local", *more, *recipe, *BASE, "--trainer.default_root_dir", str(tmp_path / "r")])

    _, status = os.waitpid(start(role, tmp_path / "log.txt"), 0)
    assert status
    said = (tmp_path / "log.txt").read_text()
    assert line in said
    assert "Traceback" not in said
