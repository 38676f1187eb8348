"""The entry point of ``lightning-vfl``; torch and Lightning are imported by the commands that need them."""

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_vfl.commands.endings import orderly_end

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from lightning_vfl.commands.vfl_cli import VFLCLI

__all__ = ["check", "main", "run"]


def main(args: Sequence[str] | None = None) -> None:
    """The program.

    Args:
        args: arguments of ``lightning-vfl``; default: those of the process.

    Raises:
        SystemExit: with status 2 for arguments or a recipe that cannot be read, 1 for what cannot be run, after ONE
            line on standard error that names the fix; with the status of a study whose runs have failed; with status 0
            after an answer that needs no run (``--version``, ``--help``, ``list``); as ``orderly_end`` says.
    """
    with orderly_end():
        from lightning_vfl.commands.light import answer
        from lightning_vfl.imports import no_collection

        arguments = sys.argv[1:] if args is None else list(args)
        status = answer(arguments)
        if status is None:
            # torchmetrics imports matplotlib, which prints two lines of its cache if the home cannot be written
            logging.getLogger("matplotlib").setLevel(logging.ERROR)
            with no_collection():
                from lightning_vfl.commands.program import run_or_exit
            run_or_exit(arguments)
        else:
            raise SystemExit(status)


def run(args: Sequence[str] | None = None, callbacks: Sequence["Callback"] = ()) -> "VFLCLI":
    """Run a command from Python or a notebook; see ``lightning_vfl.commands.program.run``."""
    from lightning_vfl.commands import program

    return program.run(args, callbacks)


def check(args: Sequence[str]) -> None:
    """Parse the arguments of a command; build and run nothing. See ``lightning_vfl.commands.program.check``."""
    from lightning_vfl.commands import program

    program.check(args)
