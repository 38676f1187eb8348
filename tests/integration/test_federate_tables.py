"""``federate --local`` with a table for each party."""

import pytest

from lightning_vfl.commands.program import run_or_exit
from tests.integration.federations import BASE, prepare
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
