"""``lightning-vfl predict``, also without some parties."""

from typing import TYPE_CHECKING

from lightning_vfl.commands.command import CLI
from lightning_vfl.commands.stand_ins import add_stand_in, stand_in_named
from lightning_vfl.commands.training import TrainerCommand

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


class PredictCommand(TrainerCommand):
    """As the other commands of the trainer; ``--absent`` leaves parties out."""

    def add_options(self, parser: "ArgumentParser") -> None:
        parser.add_argument(
            "--absent", type=str, nargs="+", metavar="PARTY", help="predict without these parties: names or numbers"
        )
        add_stand_in(parser)

    def run(self, cli: CLI) -> int:
        if cli.given.absent is None:
            return super().run(cli)
        from lightning_vfl.absence import PredictWithout  # pandas, which other predictions do not need
        from lightning_vfl.datamodules.party_number import party_number

        stand_in = stand_in_named(cli.given.stand_in)
        self.build(cli)
        data = cli.datamodule
        names = cli.given.absent

        def absent() -> tuple[int, ...]:  # the data know the names of their parties when the prediction begins
            return tuple(sorted({party_number(name, data.party_names) for name in names}))

        cli.trainer.callbacks.append(PredictWithout(absent, stand_in))
        cli.run_trainer()
        return 0
