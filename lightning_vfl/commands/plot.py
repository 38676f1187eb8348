"""``lightning-vfl plot RESULTS``."""

import sys
from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser

from lightning_vfl.commands.command import Command
from lightning_vfl.commands.printed_paths import print_files
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.study import read_study
from lightning_vfl.study import table as tables
from lightning_vfl.study.figures import out_of_sight
from lightning_vfl.study.report import report


class PlotCommand(Command):
    """Draw the summary and figures of a study again from its table."""

    def parser(self, cli: VFLCLI) -> LightningArgumentParser:
        parser = cli.empty_parser()
        parser.add_argument("results", type=str, metavar="RESULTS", help="folder that lightning-vfl study has written")
        parser.add_argument("--metric", type=str, help="metric to draw; default: figure.metric of its study.yaml")
        return parser

    def run(self, cli: VFLCLI) -> int:
        results = Path(cli.given.results)
        study = read_study(results / "study.yaml")
        table = tables.read(results)
        print_files(report(table, study, results, cli.given.metric))
        for line in [*tables.unmeasured(table, study), *out_of_sight(table, study, cli.given.metric)]:
            print(f"lightning-vfl: {line}", file=sys.stderr)
        return 0
