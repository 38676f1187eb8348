"""Give the parser of a recipe a help and a printed recipe that a person can read."""

import argparse
import sys
from typing import Any

import yaml
from lightning.pytorch.cli import LightningArgumentParser

from lightning_vfl.commands.short_help import short_help

_FIRST = ("seed_everything", "data", "model", "trainer")
_ALWAYS = ("accelerator", "devices", "precision", "max_epochs", "default_root_dir", "logger", "callbacks")


def make_readable(parser: LightningArgumentParser) -> None:
    """Make ``--help`` short, keep the whole help as ``--help.all``, and order what ``--print_config`` prints.

    This is done for one parser and not in a class of parsers, because jsonargparse makes a parser of the same class for
    every class that a recipe names.

    Args:
        parser: made with ``add_help=False``.
    """
    parser.add_argument("-h", "--help", action=_ShortHelp, help="show this help message and exit")
    parser.add_argument("--help.all", dest=argparse.SUPPRESS, action=_FullHelp, help="list every option, and exit")
    dump = parser.dump
    parser.dump = lambda *args, **flags: _in_order(dump(*args, **flags), parser)


class _ShortHelp(argparse._HelpAction):
    """Print the options that most users need."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser._print_message(short_help((parser.prog or "").rsplit(" ", 1)[-1]), sys.stdout)
        parser.exit()


class _FullHelp(argparse._HelpAction):
    """Print the help that jsonargparse makes of all options."""


def _in_order(text: str, parser: LightningArgumentParser) -> str:
    """The settings in the order of a recipe, without settings of the trainer that have Lightning's defaults."""
    settings = yaml.safe_load(text) or {}
    defaults = parser.get_defaults(skip_validation=True).trainer
    trainer = settings.get("trainer") or {}
    usual = [name for name, value in trainer.items() if name not in _ALWAYS and value == defaults.get(name)]
    ordered = {name: settings[name] for name in _FIRST if name in settings} | settings
    if usual:
        ordered["trainer"] = {name: value for name, value in trainer.items() if name not in usual}
    header = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
    more = f"# {len(usual)} further settings of the trainer have their defaults, see --help.all\n" if usual else ""
    return header + more + yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True)
