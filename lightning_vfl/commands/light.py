"""Requests that are answered without torch and Lightning, whose imports take seconds."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from lightning_vfl import __version__
from lightning_vfl.commands.short_help import short_help
from lightning_vfl.commands.table import COMMANDS, no_command, unknown_command
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError, nearest, on_one_line

if TYPE_CHECKING:
    from lightning_vfl.commands.alone import AloneCommand

ABOUT = (
    "Vertical federated learning. A run is described by recipes that overlay: --config data/digits --config "
    "protocol/mean."
)
MORE = "lightning-vfl COMMAND --help describes the options of a command."


def answer(arguments: Sequence[str]) -> int | None:
    """Answer a request for the version, the commands, the recipes or a completion script, and a mistyped command.

    Returns:
        The exit status; None if the arguments ask for something else, which is not answered here.
    """
    first, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    try:
        match first.partition("=")[0]:
            case "-V" | "--version":
                print(f"lightning-vfl {__version__}")
            case "":
                raise UsageError(no_command())
            case "-h" | "--help":
                print(_help(), end="")
            case command if command in COMMANDS and tuple(rest) in (("-h",), ("--help",)):
                print(short_help(command), end="")
            case "--print_completion":
                print(_completion(first, rest))
            case "list" if not any(word.startswith("-") for word in rest):
                print(*_recipes(rest), sep="\n")
            case command if command in COMMANDS and COMMANDS[command].alone:
                if command == "align":
                    _import_numpy()
                from lightning_vfl.commands.command import loaded  # 0.3 s, which other answers do not need

                return cast("AloneCommand", loaded(command)).run_alone(rest)
            case word if word and not word.startswith("-") and word not in COMMANDS:
                raise ConfigurationError(unknown_command(word))
            case _:
                return None
    except ConfigurationError as error:
        print(f"lightning-vfl: error: {on_one_line(error)}", file=sys.stderr)
        alone = first in COMMANDS and COMMANDS[first].alone
        return 1 if alone and not isinstance(error, UsageError) else 2
    return 0


def _import_numpy() -> None:
    """Import numpy without the threads of its linear algebra, which would take 0.08 s of CPU and are not used here."""
    threads = "OPENBLAS_NUM_THREADS"
    if "numpy" in sys.modules or threads in os.environ:
        return
    os.environ[threads] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[threads]


def _help() -> str:
    from lightning_vfl.commands.completion import SHELLS  # 0.03 s, which aligning and scoring do not need

    parser = ArgumentParser("lightning-vfl", description=ABOUT)
    add = parser.add_argument
    add("-c", "--config", metavar="RECIPE", help="a recipe with a section for each command; then the command")
    add("-V", "--version", action="store_true", help="print the version and exit")
    add("--print_completion", choices=SHELLS, help="print the completion script of a shell and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", description=MORE)
    for name, entry in COMMANDS.items():
        commands.add_parser(name, help=entry.about)
    return parser.format_help()


def _completion(option: str, rest: Sequence[str]) -> str:
    from lightning_vfl.commands.completion import SHELLS, script

    shell = option.partition("=")[2] or next(iter(rest), "")
    if shell not in SHELLS:
        raise ConfigurationError(f"--print_completion needs the name of a shell; give one of {', '.join(SHELLS)}")
    return script(shell)


def _recipes(rest: Sequence[str]) -> list[str]:
    from lightning_vfl.commands.recipe_list import KINDS, lines

    if len(rest) > 1:
        raise ConfigurationError(f"list takes one kind of recipe; got {' '.join(rest)}")
    if rest and rest[0] not in KINDS:
        raise ConfigurationError(f"list: there are no recipes of kind '{rest[0]}'; {nearest(rest[0], KINDS)}")
    return lines(next(iter(rest), None))
