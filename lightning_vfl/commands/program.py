"""Run a command; whatever ends it is told in one line."""

import os
import sys
from collections.abc import Sequence
from contextvars import copy_context

from lightning.pytorch import Callback

from lightning_vfl.commands.allocator import keep_freed_memory
from lightning_vfl.commands.one_line import CommandFailed, one_line
from lightning_vfl.commands.quiet import hide_useless_warnings, one_line_each
from lightning_vfl.commands.threads import same_threads
from lightning_vfl.commands.usage import UsageError, unread_settings
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.errors import ConfigurationError


def run(args: Sequence[str] | None = None, callbacks: Sequence[Callback] = ()) -> VFLCLI:
    """Run a command from Python or a notebook.

    Args:
        args: arguments of ``lightning-vfl``; default: those of the process.
        callbacks: added to those of the recipe.

    Returns:
        The command line; of a command that builds a recipe, it has the ``trainer``, ``model`` and ``datamodule``.

    Raises:
        UsageError: for arguments or a recipe that cannot be read. The message is one line, as are the following.
        ConfigurationError: for what cannot be run.
        CommandFailed: if the command ends with a status other than 0.
    """
    keep_freed_memory()
    hide_useless_warnings()
    for line in unread_settings(os.environ):
        print(line, file=sys.stderr)
    with one_line(), same_threads():
        cli, status = copy_context().run(_run, sys.argv[1:] if args is None else args, callbacks)
    if status:
        raise CommandFailed(status)
    return cli


def _run(args: Sequence[str], callbacks: Sequence[Callback]) -> tuple[VFLCLI, int]:
    """The command line and its status, in a context of their own: jsonargparse leaves its last parser in a context.

    The parser has the trainer, the model and the data, which would be kept until the next command.
    """
    cli = VFLCLI(args, callbacks)
    return cli, cli.run_command()


def run_or_exit(args: Sequence[str] | None = None, callbacks: Sequence[Callback] = ()) -> VFLCLI:
    """As ``run``, for a process of its own: an error is one line on standard error and an exit status.

    The current folder is searched for classes of one's own, after the installed packages.

    Raises:
        SystemExit: with status 2 for arguments or a recipe that cannot be read, 1 for what cannot be run; with the
            status of the command if it is not 0.
    """
    one_line_each()
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())
    try:
        return run(args, callbacks)
    except CommandFailed as failed:
        status = failed.status
    except ConfigurationError as error:
        print(f"lightning-vfl: error: {error}", file=sys.stderr)
        status = 2 if isinstance(error, UsageError) else 1
    raise SystemExit(status)


def check(args: Sequence[str]) -> None:
    """Parse the arguments of a command; build and run nothing.

    Raises:
        ConfigurationError: if they cannot be read.
    """
    VFLCLI(args)
