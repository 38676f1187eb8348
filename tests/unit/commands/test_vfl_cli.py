"""The settings that a command reads are those that the parser of all commands reads."""

import pytest

from lightning_vfl.commands.program import run_or_exit
from lightning_vfl.commands.recipes import merge_arguments
from lightning_vfl.commands.vfl_cli import VFLCLI

COMMANDS = {
    "recipes, faults and options": (
        *("fit", "--config", "data/digits", "--config", "protocol/fedvs", "--config", "faults/unreliable"),
        *("--config", "trainer/demo", "--model.width", "7", "--trainer.callbacks+", "LearningCurve"),
    ),
    "no recipe": ("test", "--data", "Digits", "--model", "SplitVFL", "--model.aggregator", "MaskedSum"),
    "a command without recipes": ("keys", "somewhere", "--parties", "3"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_settings_are_those_of_the_parser_of_all_commands(name):
    cli = VFLCLI(COMMANDS[name])
    assert cli.config == cli.parser.parse_args(merge_arguments(COMMANDS[name]))


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lightning_vfl.commands.program.run", interrupted)
    with pytest.raises(SystemExit) as ended:
        run_or_exit(["fit"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "lightning-vfl: error: interrupted\n"


@pytest.mark.parametrize(("apple", "chosen"), [(True, "cpu"), (False, "auto")])
def test_a_machine_of_apple_trains_on_its_cpu(apple, chosen, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: apple)
    cli = VFLCLI(merge_arguments(["fit", "--config", "data/digits", "--config", "protocol/mean"]))
    assert cli.given.trainer.accelerator == chosen
