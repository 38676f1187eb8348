"""``lightning-vfl fit``, ``validate``, ``test`` and ``predict``."""

from typing import TYPE_CHECKING

from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


class TrainerCommand(Command):
    """A recipe, and the method of Lightning's trainer that the command is named after."""

    def add_options(self, parser: "ArgumentParser") -> None:
        """Nothing: the recipe has every setting."""

    def run(self, cli: CLI) -> int:
        self.build(cli)
        cli.run_trainer()
        return 0

    def build(self, cli: CLI) -> None:
        """Make trainer, data and model of the recipe; refuse to run without a trained model what needs one."""
        if self.name != "fit" and cli.given.ckpt_path is None:
            raise ConfigurationError(
                f"{self.name} needs a trained model; give --ckpt_path FILE, which the summary of fit names, or best or "
                "last, of the newest fit"
            )
        cli.build()
