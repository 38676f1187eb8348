"""Workers end with the process that started them, even if that was killed."""

import ctypes
import os
import signal
import sys
import threading

from filelock import FileLock

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def end_with_parent(parent: int, lock: str) -> None:
    """End this process as soon as its parent has ended; and leave Ctrl-C to the parent.

    Linux sends a signal when the thread that started the process ends; elsewhere, the lock that the parent holds as
    long as it lives can then be had.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer would take it for the run's own end
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had ended before the call
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(lock,), daemon=True).start()


def _watch(lock: str) -> None:
    FileLock(lock).acquire(poll_interval=1.0)
    os._exit(1)
