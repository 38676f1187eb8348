"""``federate --local`` with a table for each party."""

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.commands.program import run_or_exit
from tests.integration.federations import BASE, prepare
from tests.integration.injected import federated, simulated
from tests.integration.test_federated_walls import apart
from tests.integration.test_new_records import IDS, write_tables

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_the_parties_are_those_of_the_tables(tmp_path):
    write_tables(tmp_path, IDS)

    def role():
        prepare()
        recipe = ["--config", "data/csv_tables", "--config", "protocol/mean", "--data.data_dir", str(tmp_path)]
        recipe += ["--data.tables", "{bank: bank.csv, shop: shop.csv}", "--data.label_party", "bank"]
        recipe += ["--data.label_column", "y", "--trainer.max_epochs", "1"]
        run_or_exit(["federate", "--local", *recipe, *BASE, "--trainer.default_root_dir", str(tmp_path / "runs")])

    apart(role, tmp_path / "log.txt")
    (folder,) = (tmp_path / "runs").glob("federation-*")
    assert {"server", "bank", "shop"} <= {path.name for path in folder.iterdir()}
    assert list((folder / "server").rglob("*.ckpt"))


@pytest.mark.parametrize("active", [(), ("--model.active", "0")])
def test_tables_of_any_length_are_federated_to_the_bit(tmp_path, active):
    """Two windows of blocks; each process reads its own file, whose row groups are its own."""
    records, draw = 100_000, np.random.default_rng(0)
    ids = draw.permutation(records)
    x = draw.normal(size=(records, 5)).astype(np.float32)
    bank = pd.DataFrame({"id": ids, "y": (x.sum(1) > 0).astype(int)} | {f"x{i}": x[:, i] for i in range(3)})
    telco = pd.DataFrame({"id": ids} | {f"x{i}": x[:, i] for i in range(3, 5)})
    bank.to_parquet(tmp_path / "bank.parquet", row_group_size=9000, index=False)
    telco.to_parquet(tmp_path / "telco.parquet", index=False)
    recipe = ["--config", "data/parquet_tables", "--config", "protocol/mean", "--data.data_dir", str(tmp_path)]
    recipe += ["--data.tables", "{bank: bank.parquet, telco: telco.parquet}", "--data.label_party", "bank"]
    recipe += ["--data.label_column", "y", "--data.id_column", "id", "--data.window_mb", "1", "--data.fit_records"]
    recipe += ["20000", "--data.batch_size", "4096", "--trainer.max_epochs", "2", *active]
    whole = simulated(tmp_path, *recipe)
    assert whole.books["rounds"]["fit"] == 36
    assert whole.differences(federated(tmp_path, *recipe, parties=("bank", "telco"))) == []
