"""Federations of real processes whose parties have tables of their own, for tests that kill and freeze processes."""

import pytest

from tests.integration.federations import Federation, cut_digits
from tests.integration.kills import NAMES


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Digits as a table for each party, and one with the labels."""
    return cut_digits(tmp_path_factory.mktemp("parts"))


@pytest.fixture
def federation(parts, tmp_path):
    """Makes federations of a recipe, and ends what is left of them."""
    made = []

    def make(recipe, epochs=4, folder=tmp_path, **patience):
        folder.mkdir(exist_ok=True)
        data = ("--config", str(parts / "csv_tables.yaml"), "--data.data_dir", str(parts))
        made.append(Federation(folder, NAMES, (*data, *recipe, "--trainer.max_epochs", str(epochs)), **patience))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def wandb_offline(monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")  # Lightning refuses offline: true together with log_model
    wandb.teardown()  # it keeps the settings that an earlier test has found in the environment
    yield
    wandb.finish()
