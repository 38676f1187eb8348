"""What the processes of the tests save in a training. Nothing that is trained, logged or saved is different."""

import functools
import gc
import importlib.metadata
import sys
from typing import Any


def before_imports() -> None:
    """Read the entry points of the installed packages once. Every trainer asks for them, which takes 4 ms each time.

    Call this before lightning is imported, and ``after_imports`` when everything is imported.
    """
    gc.disable()
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]


def after_imports() -> None:
    """Leave the hundreds of thousands of imported objects out of every later garbage collection."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()
    if "lightning.pytorch" in sys.modules:
        move_once()
    if "lightning_vfl.networks.flops" in sys.modules:
        count_work_once()


def move_once() -> None:
    """Let lightning skip the move of a logged value to the device on which the value is already.

    Lightning walks through the metric and all its attributes before every update of a logged value. On one device the
    walk moves nothing, and takes a sixth of a small training: the golden runs take 21 s with it and 18 s without. That
    is worth a patch of a private class. The processes that tests start (DDP, studies) run lightning as it is.
    """
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric

    move = _ResultMetric.to

    def to(self: _ResultMetric, *args: Any, **kwargs: Any) -> _ResultMetric:
        value = getattr(self, "value", None)  # a metric is there from its first update on
        there = value is not None and not kwargs and args == (value.device,)
        return self if there else move(self, *args, **kwargs)

    _ResultMetric.to = to  # type: ignore[method-assign]


def count_work_once() -> None:
    """Count the FLOPs of networks of equal structure once in this process: a fifteenth of a small training."""
    from lightning_vfl.networks import flops

    count = flops.work_of
    counted: dict[Any, flops.Work] = {}

    def work_of(network: Any, shape: tuple[int, ...], input_gradient: bool) -> flops.Work:
        kinds = tuple((type(module), str(vars(module).keys())) for module in network.modules())
        weights = tuple((tuple(p.shape), p.requires_grad) for p in network.parameters())
        key = (str(network), kinds, weights, shape, input_gradient)
        if key not in counted:
            counted[key] = count(network, shape, input_gradient)
        return counted[key]

    for module in [*sys.modules.values()]:
        if getattr(module, "work_of", None) is count:
            module.work_of = work_of  # type: ignore[attr-defined]
