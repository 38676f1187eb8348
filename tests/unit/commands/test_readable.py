"""A help and a printed recipe that a person can read, and that leave nothing out for good."""

import argparse

import pytest
import yaml

from lightning_vfl.cli import main, run
from lightning_vfl.commands.completion import options
from lightning_vfl.commands.short_help import GROUPS
from lightning_vfl.commands.vfl_cli import VFLCLI
from tests.further import further

RECIPES = ["--config", "data/digits", "--config", "protocol/mean"]


def printed(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        run(arguments)
    assert end.value.code == 0
    return capsys.readouterr().out


def test_the_help_fits_in_a_few_kilobytes_and_every_option_in_it_exists(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, "privacy", "--help")
    assert len(text) < 6000
    assert max(map(len, text.splitlines())) <= 80
    known = options("privacy")
    for told in (told for group in GROUPS.values() for told in group):
        option = told.option.split()[0]
        assert option in text
        assert option.removesuffix("+") in known
    for own in ("--delta", "--solve", "--target-epsilon", "--unit"):
        assert f"\n  {own} " in text.split("\nrecipes:")[0]


def test_the_help_tells_the_defaults_of_the_parser():
    parser = VFLCLI(["fit", *RECIPES])._subcommand_parsers["fit"]
    for told in (told for group in GROUPS.values() for told in group):
        default = getattr(parser._option_string_actions.get(told.option.split()[0]), "default", None)
        if isinstance(default, str | int | float) and default != argparse.SUPPRESS:
            assert told.about.endswith(f"(default: {default})")
        else:
            assert "(default:" not in told.about


def test_the_help_without_the_parser_of_recipes_is_the_help_with_it(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert capsys.readouterr().out == printed(capsys, "fit", "--help")


def test_all_options_are_in_the_whole_help(capsys):
    text = printed(capsys, "fit", "--help.all")
    assert all(f"{option} " in text for option in options("fit") if option.startswith("--trainer."))


@pytest.mark.slow
def test_the_printed_recipe_is_ordered_and_gives_the_same_run(capsys, tmp_path):
    asked = [*RECIPES, "--trainer.gradient_clip_val", "2", "--trainer.logger", "false"]
    text = printed(capsys, "fit", *asked, "--print_config")
    assert list(yaml.safe_load(text))[:4] == ["seed_everything", "data", "model", "trainer"]
    assert "further settings of the trainer have their defaults, see --help.all" in text
    trainer = yaml.safe_load(text)["trainer"]
    assert trainer["gradient_clip_val"] == 2
    assert len(trainer) == 8
    (tmp_path / "mine.yaml").write_text(text)
    given, again = VFLCLI(["fit", *asked]).given, VFLCLI(["fit", "--config", str(tmp_path / "mine.yaml")]).given
    given.config = again.config = None
    assert given == again


def test_a_printed_recipe_without_a_model_says_so(capsys):
    assert yaml.safe_load(printed(capsys, "fit", "--print_config"))["model"] is None


@pytest.mark.parametrize(
    "dashed", ["--ckpt-path", further("--seed-everything"), "--trainer.max-epochs", further("--data.batch-size")]
)
def test_options_are_written_with_dashes_or_underscores(dashed):
    written = [
        VFLCLI(["fit", *RECIPES, option, "7"]).given
        for option in (dashed, dashed.replace("-", "_").replace("__", "--"))
    ]
    assert written[0] == written[1]
    assert written[0][dashed[2:].replace("-", "_").replace("data.", "data.init_args.")] in (7, "7")


def test_the_options_of_a_command_too():
    both = [
        VFLCLI(["privacy", *RECIPES, option, "8"]).given.target_epsilon
        for option in ("--target-epsilon", "--target_epsilon")
    ]
    assert both == [8.0, 8.0]
    assert VFLCLI(["test", *RECIPES, "--stand-in", "Zeros"]).given.stand_in == "Zeros"
