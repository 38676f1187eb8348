"""All commands are in one parser, and one that is not called costs nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_vfl.cli import main
from lightning_vfl.commands.command import Command, loaded
from lightning_vfl.commands.table import COMMANDS
from lightning_vfl.commands.vfl_cli import VFLCLI

ROOT = Path(__file__).parents[3]


def test_help_lists_every_command_with_its_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert end.value.code == 0
    names = "fit validate test predict contribution robustness export score endpoint gateway study plot report privacy"
    federated = "audit keys federate serve party replay identity doctor status align cut list"
    assert list(COMMANDS) == [*names.split(), *federated.split()]
    for name, entry in COMMANDS.items():
        assert f"{name} {entry.about}" in lines


def test_the_page_of_the_command_line_names_every_command():
    page = (ROOT / "docs/command_line.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_own_help(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    assert said.startswith((f"usage: lightning-vfl {name} ", f"usage: lightning-vfl [options] {name} "))
    assert "Lightning Trainer command line tool" not in said
    assert isinstance(loaded(name), Command)


def test_only_the_called_command_has_options():
    cli = VFLCLI(["fit", "--config", "data/digits", "--config", "protocol/mean"])
    options = {name: len(parser._actions) for name, parser in cli._subcommand_parsers.items()}
    assert options.pop("fit") > 20
    assert set(options.values()) == {1}  # --help


@pytest.mark.processes
@pytest.mark.slow
def test_a_fit_imports_nothing_of_a_study():
    code = "from lightning_vfl.cli import check; import sys\n"
    code += "check(['fit', '--config', 'data/digits', '--config', 'protocol/mean'])\n"
    code += "print(*{'joblib', 'pandas', 'lightning_vfl.study'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "\n"
