"""``lightning-vfl report RUN``."""

from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser

from lightning_vfl.commands.command import Command
from lightning_vfl.commands.printed_paths import print_files
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.report import write_report


class ReportCommand(Command):
    """Write one HTML page of a run."""

    def parser(self, cli: VFLCLI) -> LightningArgumentParser:
        parser = cli.empty_parser()
        parser.add_argument("folder", type=str, metavar="RUN", help="folder of a run of lightning-vfl fit")
        parser.add_argument("--out", type=str, help="file to write; default: report.html in the folder of the run")
        return parser

    def run(self, cli: VFLCLI) -> int:
        out = cli.given.out
        print_files([write_report(Path(cli.given.folder), None if out is None else Path(out))])
        return 0
