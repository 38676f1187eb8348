"""``lightning-vfl test``, with what a model predicts when parties are absent."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_vfl.commands.command import CLI
from lightning_vfl.commands.printed_paths import print_files
from lightning_vfl.commands.stand_ins import add_stand_in, stand_in_named
from lightning_vfl.commands.training import TrainerCommand

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


class TestCommand(TrainerCommand):
    """As the other commands of the trainer; ``--absent`` repeats the test without some of the parties."""

    __test__ = False  # pytest would collect it

    def add_options(self, parser: "ArgumentParser") -> None:
        parser.add_argument(
            "--absent",
            type=str,
            help="test without parties: all, probabilities such as 0.1,0.5, or lists of parties such as '[[1],[1,2]]' "
            "or '[[bank]]'",
        )
        add_stand_in(parser)

    def run(self, cli: CLI) -> int:
        if cli.given.absent is None:
            return super().run(cli)
        from lightning_vfl import absence  # pandas and the stand-ins, which other tests do not need
        from lightning_vfl.commands.before_test import BeforeTest
        from lightning_vfl.datamodules.party_number import party_number

        absence.parse(cli.given.absent, lambda name: 0)  # mistakes are told now, names looked up in the data later
        stand_in = stand_in_named(cli.given.stand_in)
        self.build(cli)
        data = cli.datamodule
        model = cli.model

        def asked() -> absence.Asked:  # the data knows the names of its parties when the test begins
            return absence.parse(cli.given.absent, partial(party_number, names=data.party_names))

        cli.trainer.callbacks.append(BeforeTest(lambda: absence.refuse(model, asked(), stand_in)))
        cli.run_trainer()
        from lightning_vfl.absence.report import write_absent
        from lightning_vfl.protocols.run_folder import run_folder

        training = ()
        if stand_in.learns:
            data.setup("fit")
            training = data.train_dataloader()
        measured = absence.measure(model, data.test_dataloader(), asked(), stand_in, training)
        print_files(write_absent(measured, Path(run_folder(cli.trainer)), data.party_names))
        return 0
