"""``lightning-vfl plot RESULTS``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.commands.printed_paths import print_files

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


class PlotCommand(Command):
    """Draw the summary and figures of a study again from its table."""

    def add_options(self, parser: "ArgumentParser") -> None:
        parser.add_argument("results", type=str, metavar="RESULTS", help="folder that lightning-vfl study has written")
        parser.add_argument("--metric", type=str, help="metric to draw; default: figure.metric of its study.yaml")

    def run(self, cli: CLI) -> int:
        from lightning_vfl.study import read_study
        from lightning_vfl.study import table as tables
        from lightning_vfl.study.figures import out_of_sight
        from lightning_vfl.study.report import report

        results = Path(cli.given.results)
        study = read_study(results / "study.yaml")
        table = tables.read(results)
        print_files(report(table, study, results, cli.given.metric))
        for line in [*tables.unmeasured(table, study), *out_of_sight(table, study, cli.given.metric)]:
            print(f"lightning-vfl: {line}", file=sys.stderr)
        return 0
