"""Ends of the program that come from outside: Ctrl-C, SIGTERM, and a standard output that takes no more."""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import NoReturn

_BROKEN_PIPE = 141  # as a shell says that SIGPIPE has ended a program; Python ignores that signal


class Terminated(KeyboardInterrupt):
    """SIGTERM has come. Everything that ends well after Ctrl-C, such as Lightning's trainer, ends well after it."""


@contextmanager
def orderly_end() -> Iterator[None]:
    """End the program in one line on standard error at most.

    Raises:
        SystemExit: with status 130 after Ctrl-C, 143 after SIGTERM, 141 without a line if the reader of standard output
            has ended, as that of ``| head -1``, and 1 for another error of the system, such as an output on a
            full disk.
    """
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # an ε that an encoding lacks must not end a fit that is over
    takes_signals = threading.current_thread() is threading.main_thread()
    if takes_signals and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # Python itself would do it later, and take several lines for an error
    except KeyboardInterrupt as stop:
        if takes_signals:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would break off what ends the process
        word, status = ("terminated", 143) if isinstance(stop, Terminated) else ("interrupted", 130)
        print("; ".join([f"lightning-vfl: error: {word}", *map(str, stop.args)]), file=sys.stderr)
        raise SystemExit(status) from None
    except OSError as error:
        if isinstance(error, BrokenPipeError) and reader_has_ended():
            status = _BROKEN_PIPE
        elif os.environ.get("LIGHTNING_VFL_TRACEBACK"):
            raise
        else:
            kind = type(error).__name__
            print(f"lightning-vfl: error: {error} ({kind}; LIGHTNING_VFL_TRACEBACK=1 shows where)", file=sys.stderr)
            status = 1
        _drop_unwritable()
        raise SystemExit(status) from None
    finally:
        if takes_signals and signal.getsignal(signal.SIGTERM) is _terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def reader_has_ended() -> bool:
    """Whether the program that reads standard output has ended: then a broken pipe is no error of this program."""
    if not hasattr(select, "poll"):  # on Windows, where such a pipe is an error of another kind
        return False
    output = select.poll()
    output.register(1, 0)  # the two events that are always told
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def _drop_unwritable() -> None:
    """Drop what cannot be printed: when Python ends, it tries to, and tells of it in several lines."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _terminate(*_: object) -> NoReturn:
    raise Terminated
