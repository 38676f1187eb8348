"""Parties of a federation pretrain on records that never leave them, with the bits of the simulation."""

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_vfl.commands.program import run_or_exit
from tests.integration.federations import prepare
from tests.integration.injected import federated, simulated
from tests.integration.test_federated_walls import apart

RECIPE = (
    *("--config", "data/csv_tables", "--config", "protocol/pretrained", "--data.label_party", "labels"),
    *("--data.label_column", "y", "--trainer.max_epochs", "1", "--optimizer.fused", "false"),
    *("--data.tables", "{labels: labels.csv, bank: bank.csv, shop: shop.csv}"),
)


def write(folder):
    draw = np.random.default_rng(0)
    for number, party in enumerate(("bank", "shop")):
        ids = np.r_[0:150, 1000 * (number + 1) : 1000 * (number + 1) + 90]
        columns = {f"{party}{c}": draw.normal(size=len(ids)) for c in range(3)}
        pd.DataFrame({"id": ids, **columns}).to_csv(folder / f"{party}.csv", index=False)
    pd.DataFrame({"id": range(150), "y": draw.choice(["no", "yes"], 150)}).to_csv(folder / "labels.csv", index=False)


@pytest.mark.slow
@pytest.mark.processes
def test_pretraining_in_a_federation_is_that_of_the_simulation(tmp_path):
    write(tmp_path)
    recipe = (*RECIPE, "--data.data_dir", str(tmp_path), "--data.extra", "{bank: bank.csv, shop: shop.csv}")
    one, two = simulated(tmp_path, *recipe), federated(tmp_path, *recipe, parties=("bank", "shop"))
    assert one.books.pop("clock") > two.books.pop("clock")  # the server does not know how many records parties have
    assert one.differences(two) == []
    alone = simulated(tmp_path / "without", *recipe, "--data.extra", "{}")
    assert not any(torch.equal(one.weights[name], alone.weights[name]) for name in one.weights)


@pytest.mark.slow
@pytest.mark.processes
def test_each_party_tells_of_its_own_records_alone(tmp_path):
    write(tmp_path)

    def role():
        prepare()
        more = ("--data.data_dir", str(tmp_path), "--data.extra", "{bank: bank.csv}")
        run_or_exit(["federate", "--local", *RECIPE, *more, "--trainer.default_root_dir", str(tmp_path / "runs")])

    apart(role, tmp_path / "log.txt")
    told = (tmp_path / "log.txt").read_text()
    assert told.count("extra records of party 'bank'") == 1
    assert "extra records of party 'shop'" not in told
    assert "party 'bank' has learnt from 195 records of its own" in told
    assert "party 'shop' has learnt from 105 records of its own" in told
