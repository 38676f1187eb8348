"""What ends a command, in one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_vfl.commands.endings import reader_has_ended
from lightning_vfl.commands.own_code import own_mistake, place_of, said
from lightning_vfl.commands.parse_errors import cause_of, logger_failed, missing_package
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError, on_one_line


class CommandFailed(RuntimeError):
    """A command that has said itself why it failed, for example a study some of whose runs have failed.

    Args:
        status: the exit status.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the command ended with status {status}; the lines above say why")
        self.status = status


@contextmanager
def one_line() -> Iterator[None]:
    """Turn what ends the block into an error of one line.

    Raises:
        UsageError: for arguments or a recipe that cannot be read.
        ConfigurationError: for what cannot be run.
        CommandFailed: as it comes.
    """
    try:
        yield
    except UsageError as error:
        raise UsageError(on_one_line(error)) from None
    except (ConfigurationError, MisconfigurationException) as error:
        raise ConfigurationError(on_one_line(error)) from None
    except CommandFailed:
        raise
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError) and reader_has_ended():
            raise
        known = _configuration_error(error) or missing_package(error) or logger_failed(error)
        if known is not None:
            raise ConfigurationError(on_one_line(known)) from None
        if os.environ.get("LIGHTNING_VFL_TRACEBACK"):
            raise
        own = own_mistake(error)
        kind = type(own or error).__name__ + (f" in {place_of(own)}" if own else "")
        text = said(own) if own else cause_of(error)
        raise ConfigurationError(f"{text} ({kind}; LIGHTNING_VFL_TRACEBACK=1 shows where)") from error
    except Exception as error:  # W&B's errors have a base class of their own
        known = logger_failed(error)
        if known is None:
            raise
        raise ConfigurationError(known) from None


def _configuration_error(error: BaseException | None) -> ConfigurationError | None:
    """The error of ours that the parser has wrapped into one of its own."""
    while error is not None and not isinstance(error, ConfigurationError):
        error = error.__cause__ or error.__context__
    return error
