"""Commands that run without torch and Lightning, whose imports take seconds."""

import logging
from abc import abstractmethod
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from lightning_utilities.core.rank_zero import rank_zero_only

from lightning_vfl.commands.command import CLI, Command, with_both_spellings
from lightning_vfl.commands.quiet import one_line_each
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError


class AloneCommand(Command):
    """A command without a recipe, which needs neither torch nor Lightning; its line in the table says ``alone``."""

    def run(self, cli: CLI) -> int:
        return self.work(cli.given)

    @abstractmethod
    def work(self, given: Namespace) -> int:
        """Do the work and return the exit status.

        Args:
            given: the values of the options.

        Raises:
            UsageError, ConfigurationError: as ``Command.run``.
        """

    def run_alone(self, arguments: Sequence[str]) -> int:
        """Run the command in a process of its own.

        Args:
            arguments: behind the word.

        Raises:
            UsageError: for arguments that cannot be read.
            ConfigurationError: if the work cannot be done as asked.
        """
        return self.work(parse_alone(self.name, self.about, self.add_options, arguments))


def parse_alone(
    command: str, about: str, add_options: Callable[[ArgumentParser], None], arguments: Sequence[str]
) -> Namespace:
    """The values of a command's options; errors are those of the whole program.

    Args:
        command: the word on the command line.
        about: description above the options.
        add_options: adds the options to a parser.
        arguments: behind the word.

    Raises:
        UsageError: for arguments that cannot be read.
    """
    parser = ArgumentParser(prog=f"lightning-vfl {command}", exit_on_error=False, description=about)
    add_options(parser)
    with_both_spellings(parser)
    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as error:
        from lightning_vfl.commands.parse_errors import ParserError, one_line  # 0.02 s, which errors alone need

        message = str(error).replace("are required: ", f"are required: {command}.")  # as the program says it
        raise UsageError(one_line(ParserError(message, parser._option_string_actions))) from None


def files_by_party(words: Sequence[str]) -> dict[str, Path]:
    """Party -> file, of the words ``PARTY=FILE`` of ``--tables``.

    Raises:
        UsageError: for other words, and a party that is named twice.
    """
    found: dict[str, Path] = {}
    for word in words:
        party, equals, path = word.partition("=")
        if not (party and equals and path) or party in found:
            raise UsageError(f"--tables takes PARTY=FILE, once for each party; got {word}")
        found[party] = Path(path).expanduser()
    return found


def add_csv_form(parser: ArgumentParser) -> None:
    """Add the options that say how the CSV files of parties are written."""
    add = parser.add_argument
    kind = str | dict[str, str]
    add("--separator", type=kind, default=",", help="between fields of a CSV file, or PARTY: TEXT, ...")
    add("--encoding", type=kind, default="utf-8", help="of CSV files, or PARTY: ENCODING, ...")


def add_seat(parser: ArgumentParser) -> None:
    """Add the option for the settings of a host."""
    parser.add_argument("--seat", default="seat.yaml", help="settings of this host alone (default: seat.yaml)")


@contextmanager
def notes_on_records() -> Iterator[None]:
    """Print notes on records, such as categories that no training record has, on standard error."""
    one_line_each()
    # Lightning would set it: notes are printed by the process of rank 0
    rank_zero_only.rank = 0  # type: ignore[attr-defined]  # how the package says to set it
    notes = logging.getLogger("lightning_utilities.core.rank_zero")
    handler = logging.StreamHandler()
    level = notes.level
    notes.addHandler(handler)
    notes.setLevel(logging.INFO)
    try:
        yield
    finally:
        notes.removeHandler(handler)
        notes.setLevel(level)


@contextmanager
def needing(command: str, extra: str) -> Iterator[None]:
    """Tell what to install if a package is missing.

    Args:
        command: that needs it.
        extra: of this package, which brings it.

    Raises:
        ConfigurationError: naming the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{command} needs the package {error.name}; pip install 'lightning-vfl[{extra}]'"
        ) from None
