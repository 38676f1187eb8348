"""What a sub-command of ``lightning-vfl`` is."""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from lightning_vfl.commands.table import COMMANDS

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace
    from lightning.pytorch.cli import LightningArgumentParser


class CLI(Protocol):
    """What commands use of the command line, see ``VFLCLI``."""

    model: Any
    datamodule: Any
    trainer: Any
    arguments: list[str]
    config_init: Any
    config_dump: Any
    _subcommand_parsers: Any

    @property
    def command(self) -> "Command": ...

    @property
    def given(self) -> "Namespace": ...

    def trainer_parser(self, method: str) -> "LightningArgumentParser": ...

    def data_parser(self) -> "LightningArgumentParser": ...

    def empty_parser(self) -> "LightningArgumentParser": ...

    def build(self) -> Self: ...

    def take_folder(self) -> None: ...

    def run_trainer(self) -> None: ...


class Command(ABC):
    """One sub-command: its options and its work.

    A command of one's own is a file with a final class, and a line in ``commands/table.py``.

    Args:
        name: the word on the command line.
    """

    about: ClassVar[str] = ""  # description above the options; empty: the line of the table

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def add_options(self, parser: "ArgumentParser") -> None:
        """Add the options of the command itself; those of a recipe are in the parser of ``COMMANDS[name].method``."""

    def parser(self, cli: "CLI") -> "LightningArgumentParser":
        """All options.

        Args:
            cli: makes the parser.
        """
        method = COMMANDS[self.name].method
        parser = cli.trainer_parser(method) if method else cli.empty_parser()
        parser.description = self.about
        self.add_options(parser)
        with_both_spellings(parser)
        return parser

    @abstractmethod
    def run(self, cli: "CLI") -> int:
        """Do the work and return the exit status.

        Args:
            cli: has the values of the options (``cli.given``), and builds the recipe (``cli.build()``).

        Raises:
            UsageError: for options that cannot be used together.
            ConfigurationError: if the work cannot be done as asked.
        """


def loaded(name: str) -> Command:
    """The command with this name, whose file is imported here."""
    module, _, kind = COMMANDS[name].path.partition(".")
    command: Command = getattr(import_module(f"lightning_vfl.commands.{module}"), kind)(name)
    return command


def with_both_spellings(parser: "ArgumentParser") -> None:
    """Accept ``--id-column`` for ``--id_column`` and the other way round; the help shows one of them."""
    for option, action in list(parser._option_string_actions.items()):
        if option.startswith("--") and "." not in option:
            for other in (option[2:].replace("-", "_"), option[2:].replace("_", "-")):
                parser._option_string_actions.setdefault(f"--{other}", action)
