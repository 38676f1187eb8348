"""What the commands of a federation refuse before they start or call another process."""

import pytest
import yaml

from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.identity import make_identity
from tests.further import few

COMMANDS = ("federate --local", "serve federation.yaml", "party federation.yaml --name bank")


@pytest.mark.parametrize("command", few(COMMANDS, COMMANDS[0]))
def test_a_missing_package(monkeypatch, command):
    monkeypatch.setattr("lightning_vfl.commands.federation.find_spec", lambda name: None)
    recipe = ["--config", "data/digits", "--config", "protocol/mean"]
    with pytest.raises(ConfigurationError, match=f"{command.split()[0]} needs the package grpcio; pip install"):
        run([*command.split(), *recipe])


@pytest.mark.parametrize("command", few(COMMANDS, COMMANDS[2]))
def test_a_protocol_that_is_simulated(monkeypatch, command):
    monkeypatch.setattr("lightning_vfl.commands.federation.start", lambda *_: pytest.fail("a process was started"))
    recipe = ["--config", "data/digits", "--config", "protocol/local"]
    with pytest.raises(ConfigurationError, match="LocalVFL does not support parties on hosts"):
        run([*command.split(), *recipe])


def test_a_record_of_faults_that_the_recipe_plays():
    with pytest.raises(ConfigurationError, match="with --inject the recipe says what happens: leave out one of them"):
        run(
            [
                "federate",
                "--local",
                "--inject",
                "--events",
                "e.csv",
                "--config",
                "data/digits",
                "--config",
                "protocol/mean",
            ]
        )


@pytest.mark.parametrize(("more", "line"), [([], r"bank\.csv"), (["--data.batch_size", "-1"], "at least 1; got -1")])
def test_data_that_cannot_be_loaded_are_one_line(tmp_path, capfd, more, line):
    recipe = ["--config", "data/csv_tables", "--config", "protocol/mean", "--data.tables={bank: bank.csv}"]
    recipe += ["--data.label_party", "bank", "--data.label_column", "y", "--data.data_dir", str(tmp_path)]
    with pytest.raises(ConfigurationError, match=line):
        run(["federate", "--local", *recipe, *more, "--trainer.default_root_dir", str(tmp_path)])
    assert "error" not in capfd.readouterr().err


def test_a_path_of_predictions_is_tried_before_anybody_waits(tmp_path, monkeypatch):
    def served(*_):
        pytest.fail("the server waits for parties")

    monkeypatch.setattr("lightning_vfl.federation.session.serve", served)
    keys = tmp_path / "keys"
    for name in ("hub", "bank"):
        make_identity(name, keys)
    (tmp_path / "hub.yaml").write_text(yaml.safe_dump({"key": "keys/hub.key"}))
    server = {"name": "hub", "address": "127.0.0.1:1", "certificate": "keys/hub.crt"}
    parties = [{"name": "bank", "certificate": "keys/bank.crt"}]
    said = {"federation": "trial", "server": server, "parties": parties}
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump(said))
    command = ["serve", str(tmp_path / "federation.yaml"), "--seat", str(tmp_path / "hub.yaml"), "--do", "predict"]
    command += ["--config", "data/csv_tables", "--config", "protocol/mean", "--data.tables={bank: bank.csv}"]
    command += ["--data.label_party", "bank", "--data.label_column", "y"]
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/p\.csv cannot be written \(Not a directory\)"):
        run([*command, "--predictions.path", str(tmp_path / "file" / "p.csv")])
