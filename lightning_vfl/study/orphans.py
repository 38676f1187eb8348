"""End worker processes when the process that started them has ended, even if it was killed."""

import ctypes
import os
import signal
import sys
import threading

from filelock import FileLock

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def end_with_parent(parent: int, lock: str) -> None:
    """End this process as soon as its parent has ended, and let the parent handle Ctrl-C.

    Linux sends a signal when the thread that started the process ends. Elsewhere, this process waits for the lock that
    the parent holds as long as it runs.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer would end the run
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent had ended before the call
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(lock,), daemon=True).start()


def _watch(lock: str) -> None:
    FileLock(lock).acquire(poll_interval=1.0)
    os._exit(1)
