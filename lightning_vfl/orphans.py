"""End processes when the process that started them has ended, even if it was killed."""

import ctypes
import os
import signal
import sys
import threading
from time import sleep

from filelock import FileLock

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def end_with_parent(parent: int, lock: str | None = None) -> None:
    """End this process as soon as its parent has ended.

    Linux sends a signal when the thread that started the process ends. Elsewhere, a thread of this process waits for
    the lock, or for another parent.

    Args:
        parent: the parent's number.
        lock: file that the parent holds locked as long as it runs; None: on a system that names another parent then.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent had ended before the call
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent, lock), daemon=True).start()


def leave_interrupts_to_parent() -> None:
    """Let the parent alone handle Ctrl-C; in this process, the trainer would end the run."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _watch(parent: int, lock: str | None) -> None:
    if lock is not None:
        FileLock(lock).acquire(poll_interval=1.0)
    while lock is None and os.getppid() == parent:
        sleep(1.0)
    os._exit(1)
