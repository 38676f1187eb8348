"""Run the command line; whatever ends it is told in one line."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback

from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.commands.parse_errors import UsageError
from lightning_vfl.commands.quiet import hide_useless_warnings
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.errors import ConfigurationError


def run(args: Sequence[str] | None = None, callbacks: Sequence[Callback] = ()) -> VFLCLI:
    """Run a command.

    Args:
        args: arguments of ``lightning-vfl``; default: those of the process.
        callbacks: added to those of the recipe.

    Returns:
        The command line; of a command that builds a recipe, it has the ``trainer``, ``model`` and ``datamodule``.

    Raises:
        SystemExit: with status 2 for arguments or a recipe that cannot be read, 1 for what cannot be run, after ONE
            line on standard error that names the fix; with the status of a study whose runs have failed.
    """
    keep_freed_memory()
    hide_useless_warnings()
    try:
        cli = VFLCLI(sys.argv[1:] if args is None else args, callbacks)
        status = cli.command.run(cli)
    except UsageError as error:
        _fail(error, status=2)
    except (ConfigurationError, MisconfigurationException) as error:
        _fail(error, status=1)
    except (ValueError, RuntimeError, OSError) as error:
        cause = _configuration_error(error)
        if cause is None and os.environ.get("LIGHTNING_VFL_TRACEBACK"):
            raise
        _fail(cause or error, 1, "" if cause else f" ({type(error).__name__}; LIGHTNING_VFL_TRACEBACK=1 shows where)")
    if status:
        raise SystemExit(status)
    return cli


def check(args: Sequence[str]) -> None:
    """Parse the arguments of a command; build and run nothing.

    Raises:
        ConfigurationError: if they cannot be read.
    """
    VFLCLI(args)


def _configuration_error(error: BaseException | None) -> ConfigurationError | None:
    """The error of ours that the parser has wrapped into one of its own."""
    while error is not None and not isinstance(error, ConfigurationError):
        error = error.__cause__ or error.__context__
    return error


def _fail(error: Exception, status: int, hint: str = "") -> NoReturn:
    print(f"lightning-vfl: error: {' '.join(str(error).split())}{hint}", file=sys.stderr)
    raise SystemExit(status)
