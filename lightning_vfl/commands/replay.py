"""``lightning-vfl replay``: simulate what a federation has recorded."""

from lightning.pytorch.cli import LightningArgumentParser

from lightning_vfl.commands.command import Command
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.federation.record import Replayed
from lightning_vfl.federation.replaying import Replay


class ReplayCommand(Command):
    """A fit whose rounds are those of a record."""

    def parser(self, cli: VFLCLI) -> LightningArgumentParser:
        parser = cli.trainer_parser("fit")
        parser.description = (
            "Simulate what a federation has recorded: who was called, who was late or gone, and who came back. The "
            "weights are those of the federation, bit for bit, on the same kind of machine with one thread."
        )
        parser.add_argument("events", type=str, metavar="EVENTS", help="the file of serve --events")
        return parser

    def run(self, cli: VFLCLI) -> int:
        record = Replayed(cli.given.events)
        cli.build()
        cli.trainer.callbacks.append(Replay(record))  # type: ignore[attr-defined]  # set in Trainer.__init__
        cli.take_folder()
        cli.trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=cli.given.get("ckpt_path"))
        return 0
