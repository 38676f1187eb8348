"""Two things that the processes of the tests leave out of a training, and their garbage collection.

A small fit takes 60 ms. Without the two patches it takes 90 ms; nothing that is trained, logged or saved is different.
"""

import functools
import gc
import importlib.metadata
import inspect
import sys


def before_imports() -> None:
    """Spare lightning two searches; to be called before lightning is imported. ``after_imports`` has to follow.

    Every Trainer asks for the entry points of all installed packages, 10 to 20 ms each time: they are read once.
    ``load_from_checkpoint`` asks for the stack, 100 ms each time: it gets the stack without lines of source code.
    """
    gc.disable()
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]
    inspect.stack = functools.partial(inspect.stack, 0)


def after_imports() -> None:
    """Leave the hundreds of thousands of imported objects out of every later garbage collection."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()
    if "lightning.pytorch" in sys.modules:
        move_once()


def move_once() -> None:
    """Let lightning skip the move of a logged value to a device on which the value is already.

    Lightning walks through the metric and all its attributes before EVERY update of a logged value: a fifth of the time
    of the golden runs and of every other small fit. Its walk moves nothing on one device. The processes that
    tests start (DDP, the command line) run lightning as it is, so lightning's own code is tested as well.
    """
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric

    move = _ResultMetric.to

    def to(self, *args, **kwargs):
        value = getattr(self, "value", None)  # a metric is there from its first update on
        there = value is not None and not kwargs and args == (value.device,)
        return self if there else move(self, *args, **kwargs)

    _ResultMetric.to = to  # type: ignore[method-assign]
