"""``lightning-vfl report RUN``."""

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.commands.printed_paths import print_files
from lightning_vfl.commands.usage import UsageError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


class ReportCommand(Command):
    """Write one HTML page of a run."""

    def add_options(self, parser: "ArgumentParser") -> None:
        parser.add_argument("run", type=str, nargs="?", metavar="RUN", help="folder of a run of fit, best or last")
        parser.add_argument("--ckpt_path", type=str, help="in place of RUN: a .ckpt file, the folder of a run, ...")
        parser.add_argument("--out", type=str, help="file to write; default: report.html in the folder of the run")

    def run(self, cli: CLI) -> int:
        from lightning_vfl.commands.checkpoints import folder_of_run
        from lightning_vfl.commands.run_config import RUNS
        from lightning_vfl.report import write_report

        given = cli.given
        if (given.run is None) == (given.ckpt_path is None):
            raise UsageError("report needs one run: its folder, best or last; or its --ckpt_path")
        folder = folder_of_run(given.run or given.ckpt_path, [Path(RUNS)])
        print_files([write_report(folder, None if given.out is None else Path(given.out))])
        return 0
