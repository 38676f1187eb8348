"""``lightning-vfl report RUN``."""

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_vfl.commands.command import Command
from lightning_vfl.commands.printed_paths import print_files

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from lightning_vfl.commands.vfl_cli import VFLCLI


class ReportCommand(Command):
    """Write one HTML page of a run."""

    def add_options(self, parser: "ArgumentParser") -> None:
        parser.add_argument("folder", type=str, metavar="RUN", help="folder of a run of lightning-vfl fit")
        parser.add_argument("--out", type=str, help="file to write; default: report.html in the folder of the run")

    def run(self, cli: "VFLCLI") -> int:
        from lightning_vfl.report import write_report

        out = cli.given.out
        print_files([write_report(Path(cli.given.folder), None if out is None else Path(out))])
        return 0
