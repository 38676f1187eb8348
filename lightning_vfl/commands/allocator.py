"""Keep freed memory in the process, so that a training step does not pay page faults for every buffer."""

import ctypes
import sys

_M_TRIM_THRESHOLD = -1  # from glibc's malloc.h
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc's own ceiling on 64-bit machines
_KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Tell glibc to reuse freed buffers up to 32 MiB instead of giving them back to the kernel.

    By default glibc maps every buffer of a few megabytes afresh, and the kernel zeroes it page by page: at 28 parties
    that was measured at half the time of a batched bottom step. The command line calls this; from Python call it once
    before training on a CPU.

    Returns:
        Whether it took effect (Linux with glibc); elsewhere it does nothing.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT))
