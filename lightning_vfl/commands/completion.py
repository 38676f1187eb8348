"""``lightning-vfl --print_completion SHELL``: a script that completes commands, options and names of recipes."""

from argparse import ArgumentParser
from typing import Any

from lightning_vfl.commands.recipe_list import KINDS
from lightning_vfl.commands.short_help import known_options
from lightning_vfl.commands.table import COMMANDS
from lightning_vfl.configs import packaged
from lightning_vfl.errors import ConfigurationError

SHELLS = ("bash", "zsh", "tcsh")
_RECIPES = "_lightning_vfl_recipes"
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}


def script(shell: str) -> str:
    """The completion script of a shell, which ``eval`` or ``source`` reads.

    Raises:
        ConfigurationError: if shtab is not installed.
    """
    try:
        import shtab  # an optional package
    except ImportError:
        raise ConfigurationError(
            "--print_completion needs the package shtab; pip install 'lightning-vfl[completion]'"
        ) from None
    parser = ArgumentParser("lightning-vfl")
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--print_completion", choices=SHELLS, help="print the completion script of a shell")
    commands = parser.add_subparsers()
    for name, entry in COMMANDS.items():
        one = commands.add_parser(name, help=entry.about)
        for option in options(name):
            _complete(one.add_argument(option, help=""), option)
        _add_argument(one, name)
    written: str = shtab.complete(parser, shell, preamble=_preamble().get(shell, ""))
    return written


def options(command: str) -> list[str]:
    """The options of a command; settings of the model and the data are those of any protocol and data set."""
    known = known_options()
    own: list[str] = known["commands"][command]["options"]
    return list(dict.fromkeys([*own, *(known["recipe"] if COMMANDS[command].method else ())]))


def _complete(action: Any, option: str) -> None:
    """How the value of an option is completed, where more than its name is known."""
    if option == "--config":
        action.complete = {**_FILES, "bash": _RECIPES, "zsh": _RECIPES}
    elif option in ("--ckpt_path", "--predictions.path", "--out"):
        action.complete = _FILES
    elif option == "--print_config":
        action.nargs = 0


def _add_argument(parser: ArgumentParser, command: str) -> None:
    """The argument of a command that is no option."""
    if command == "list":
        parser.add_argument("kind", nargs="?", choices=KINDS)
    elif command == "study":
        _complete(parser.add_argument("study"), "--config")


def _preamble() -> dict[str, str]:
    recipes = " ".join(packaged())
    return {
        "bash": f'{_RECIPES}() {{ compgen -W "{recipes}" -- "$1"; compgen -f -- "$1"; }}',
        "zsh": f"{_RECIPES}() {{ _alternative 'recipes:recipe:({recipes})' 'files:file:_files' }}",
    }
