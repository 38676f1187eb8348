"""``lightning-vfl test``, with what a model predicts when parties are absent."""

from functools import partial
from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser

from lightning_vfl.commands.command import Command
from lightning_vfl.commands.printed_paths import print_files
from lightning_vfl.commands.training import TrainerCommand
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.datamodules.party_number import party_number
from lightning_vfl.errors import ConfigurationError, nearest

STAND_INS = ("Exclude", "Zeros", "MeanEmbedding", "Regressed")


class TestCommand(Command):
    """As the other commands of the trainer; ``--absent`` repeats the test without some of the parties."""

    __test__ = False  # pytest would collect it

    def parser(self, cli: VFLCLI) -> LightningArgumentParser:
        parser = cli.trainer_parser(self.name)
        parser.add_argument(
            "--absent",
            type=str,
            help="test without parties: all, probabilities such as 0.1,0.5, or lists of parties such as '[[1],[1,2]]' "
            "or '[[bank]]'",
        )
        parser.add_argument(
            "--stand_in",
            type=str,
            default=STAND_INS[0],
            help=f"what replaces absent parties with --absent: {', '.join(STAND_INS)}",
        )
        return parser

    def run(self, cli: VFLCLI) -> int:
        if cli.given.absent is None:
            return TrainerCommand(self.name).run(cli)
        from lightning_vfl import absence  # pandas and the stand-ins, which other tests do not need

        absence.parse(cli.given.absent, lambda name: 0)  # mistakes are told now, names looked up in the data later
        name = cli.given.stand_in
        if name not in STAND_INS:
            raise ConfigurationError(f"--stand_in: there is no '{name}'; {nearest(name, STAND_INS)}")
        stand_in: absence.AbsentStandIn = getattr(absence, name)()
        TrainerCommand(self.name).run(cli)
        from lightning_vfl.absence.report import write_report
        from lightning_vfl.protocols.run_folder import run_folder

        data, model = cli.datamodule, cli.model
        asked = absence.parse(cli.given.absent, partial(party_number, names=data.party_names))
        training = ()
        if stand_in.learns:
            data.setup("fit")
            training = data.train_dataloader()
        measured = absence.measure(model, data.test_dataloader(), asked, stand_in, training)
        print_files(write_report(measured, Path(run_folder(cli.trainer)), data.party_names))
        return 0
