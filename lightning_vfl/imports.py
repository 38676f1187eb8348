"""Import without Python's garbage collector, which would search the new objects again and again for some to delete."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage meanwhile, and leave what is imported out of every later collection.

    PyTorch and Lightning make 600,000 objects that stay until the process ends; without collections their
    import takes a sixth less time. If they are imported already, this does nothing.
    """
    if "lightning" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
