"""What the commands of a federation refuse before they start or call another process."""

import pytest

from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from tests.further import few

BLOCKS = ["--config", "data/parquet_tables", "--config", "protocol/mean", "--data.tables={bank: bank.parquet}"]
BLOCKS += ["--data.label_party", "bank", "--data.label_column", "y"]
COMMANDS = ("federate --local", "serve federation.yaml", "party federation.yaml --name bank")


@pytest.mark.parametrize("command", few(COMMANDS, COMMANDS[1]))
def test_tables_that_are_read_in_blocks(monkeypatch, command):
    """No file that the command names is there, so nothing has been read either."""
    monkeypatch.setattr("lightning_vfl.commands.federation.start", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(ConfigurationError, match="ParquetTables are simulated in one process, not between processes"):
        run([*command.split(), *BLOCKS])


@pytest.mark.parametrize("command", few(COMMANDS, COMMANDS[0]))
def test_a_missing_package(monkeypatch, command):
    monkeypatch.setattr("lightning_vfl.commands.federation.find_spec", lambda name: None)
    recipe = ["--config", "data/digits", "--config", "protocol/mean"]
    with pytest.raises(ConfigurationError, match=f"{command.split()[0]} needs the package grpcio; pip install"):
        run([*command.split(), *recipe])


@pytest.mark.parametrize("command", few(COMMANDS, COMMANDS[2]))
def test_a_protocol_that_is_simulated(monkeypatch, command):
    monkeypatch.setattr("lightning_vfl.commands.federation.start", lambda *_: pytest.fail("a process was started"))
    recipe = ["--config", "data/digits", "--config", "protocol/cvfl"]
    with pytest.raises(ConfigurationError, match="CascadeVFL does not support parties on hosts"):
        run([*command.split(), *recipe])
