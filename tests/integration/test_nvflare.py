"""A federation as a job of NVFlare, in its simulator and with a server and sites as processes."""

import os
import shutil
import signal
import time

import pandas as pd
import pytest
import torch
import yaml

from tests.integration.federations import Federation, cut_digits
from tests.integration.nvflare_runs import Job, await_lines, program

pytestmark = [pytest.mark.slow, pytest.mark.processes]

NAMES = ("party0", "party1", "party2")
WITH_LABELS = ("CascadeVFL", "LaserVFL")  # protocols in which every party has the labels
MASKED = {"class_path": "MaskedSum", "init_args": {"clip": 4.0, "rekey_every": 3}}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Digits as a table for each of three parties, one with the labels, and the job."""
    program()  # skips without NVFlare
    folder = tmp_path_factory.mktemp("parts")
    return cut_digits(folder, parties=3, more=("--nvflare", str(folder / "job")))


def copy_labels(parts, folder, settings):
    """Give every party's table the labels, in a folder of its own."""
    labels = pd.read_parquet(parts / "labels.parquet")[["id", "label"]]
    for name in NAMES:
        pd.read_parquet(parts / f"{name}.parquet").merge(labels, on="id").to_parquet(folder / f"{name}.parquet")
    shutil.copy(parts / "labels.parquet", folder)
    settings |= {"data_dir": str(folder), "label_copies": list(NAMES)}


@pytest.fixture
def made(parts, tmp_path):
    """Makes a federation over gRPC, which does not run, and the same in NVFlare."""
    jobs = []

    def make(epochs=1, batches=10, protocol="SplitVFL", **model):
        data = yaml.safe_load((parts / "csv_tables.yaml").read_text())
        if protocol in WITH_LABELS:
            copy_labels(parts, tmp_path, data["data"]["init_args"])
        trainer = {"max_epochs": epochs, "limit_train_batches": batches, "limit_val_batches": 1}
        trainer |= {"num_sanity_val_steps": 0, "enable_progress_bar": False, "accelerator": "cpu"}
        recipe = {**data, "seed_everything": 0, "trainer": trainer}
        recipe |= {"model": {"class_path": protocol, "init_args": model}}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        one = Federation(tmp_path, NAMES, ("--config", str(tmp_path / "recipe.yaml")), join=120, reconnect=120)
        jobs.append(Job(tmp_path / "nvflare", one, recipe, parts / "job"))
        return one, jobs[0]

    yield make
    for job in jobs:
        job.one.stop()
        job.stop()


def milliseconds(lines, rounds):
    """Of a round: the middle half of the rounds, whose lines are written as they end."""
    first, last = rounds // 4, 3 * rounds // 4
    began = await_lines(lines, 1 + len(NAMES) * first, 300.0)
    ended = await_lines(lines, 1 + len(NAMES) * last, 100.0)
    return 1e3 * (ended - began) / (last - first)


@pytest.mark.parametrize("aggregator", ["Mean", "MaskedSum"])
def test_a_job_in_the_simulator_is_the_federation_over_grpc_to_the_last_bit(made, aggregator):
    one, job = made(aggregator=MASKED if aggregator == "MaskedSum" else aggregator)
    one.everybody()
    assert one.wait(200) == dict.fromkeys(("scorer", *NAMES), 0)
    job.simulate()
    assert job.wait(300) == 0, job.log()
    expected, weights = one.states(), job.states()
    assert expected.keys() == weights.keys()
    assert [name for name in weights if not torch.equal(weights[name], expected[name])] == []
    assert len(job.lines()) == len(one.rounds()) + 1 == 31


@pytest.mark.parametrize(
    ("protocol", "epochs", "model"),
    [
        ("AsyncVFL", 2, {"aggregator": "Mean", "noise": 0.05}),
        ("CascadeVFL", 2, {"aggregator": "Concat"}),
        ("DecoupledVFL", 4, {"guest_epochs": 2, "hosts": 2}),
        ("LaserVFL", 1, {"aggregator": "Mean"}),
        ("OneShotVFL", 5, {"aggregator": "Concat", "local_epochs": 2}),
    ],
    ids=str,
)
def test_the_replay_of_a_job_of_every_protocol_is_equal_to_the_last_bit(made, protocol, epochs, model):
    one, job = made(epochs, protocol=protocol, **model)
    job.simulate()
    assert job.wait(300) == 0, job.log()
    one.events = job.events()
    weights, replayed = job.states(), one.replay()
    assert weights.keys() == replayed.keys()
    assert [name for name in weights if not torch.equal(weights[name], replayed[name])] == []


def test_a_round_of_both(made):
    one, job = made(epochs=5, batches=40, aggregator="Mean")
    job.simulate()
    over_nvflare = milliseconds(job.lines, 200)
    assert job.wait(200) == 0, job.log()
    one.everybody()
    over_grpc = milliseconds(lambda: one.events.read_text().splitlines() if one.events.exists() else [], 200)
    assert one.wait(200) == dict.fromkeys(("scorer", *NAMES), 0)
    assert 0 < over_grpc < 1000
    assert 0 < over_nvflare < 1000
    print(f"a round of {len(NAMES)} parties: NVFlare {over_nvflare:.1f} ms, gRPC {over_grpc:.1f} ms")


def test_a_party_that_is_killed_at_its_site_is_told_and_taken_back(made):
    one, job = made(epochs=60, batches=30, aggregator="Mean", missing="Stale")
    job.provision()
    one.events = job.events()
    job.submit()
    await_lines(job.lines, 1 + 40 * len(NAMES), 200.0)
    os.kill(job.process("party1"), signal.SIGKILL)
    killed = time.monotonic()
    away = [row for row in one.rounds() if row["name"] == "party1" and row["included"] == "0"]
    while not away:
        assert time.monotonic() - killed < 30.0
        away = [row for row in one.rounds() if row["name"] == "party1" and row["included"] == "0"]
    noticed = time.monotonic() - killed
    while not any(row["restored"] for row in one.rounds()):
        assert time.monotonic() - killed < 150.0
        time.sleep(0.1)
    back = time.monotonic() - killed
    await_lines(job.lines, 1 + 60 * 30 * len(NAMES), 300.0)
    job.finish(120.0)
    assert {row["name"] for row in one.rounds() if row["restored"]} == {"party1"}
    assert one.rounds()[-2]["included"] == "1"
    weights, replayed = job.states(), one.replay()
    assert weights.keys() == replayed.keys()
    assert [name for name in weights if not torch.equal(weights[name], replayed[name])] == []
    print(f"noticed after {noticed:.1f} s, in a round again after {back:.1f} s")
