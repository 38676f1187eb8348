"""What a sub-command of ``lightning-vfl`` is."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningArgumentParser

    from lightning_vfl.commands.vfl_cli import VFLCLI


class Command(ABC):
    """One sub-command: its options and its work.

    A command of one's own is a file with a final class, and a line in ``commands/table.py``.

    Args:
        name: the word on the command line.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def parser(self, cli: "VFLCLI") -> "LightningArgumentParser":
        """The options.

        Args:
            cli: makes the parser: ``cli.empty_parser()``, or ``cli.recipe_parser()`` for a command that reads a recipe.
        """

    @abstractmethod
    def run(self, cli: "VFLCLI") -> int:
        """Do the work and return the exit status.

        Args:
            cli: has the values of the options (``cli.given``), and builds the recipe (``cli.build()``).

        Raises:
            UsageError: for options that cannot be used together.
            ConfigurationError: if the work cannot be done as asked.
        """
