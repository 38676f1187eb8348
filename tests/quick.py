"""What the processes of the tests save in a training. Nothing that is trained, logged or saved is different."""

import functools
import gc
import importlib.metadata
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary


def before_imports() -> None:
    """Read the entry points of the installed packages once. Every trainer asks for them, which takes 4 ms each time.

    Call this before lightning is imported, and ``after_imports`` when everything is imported.
    """
    gc.disable()
    importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]


def temporary_files_in_memory() -> None:
    """Let pytest make its temporary folders in memory, where there is room: a suite makes ten thousand small files."""
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_dir() and shutil.disk_usage(memory).free > 2**31:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def after_imports() -> None:
    """Leave the hundreds of thousands of imported objects out of every later garbage collection."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)
    gc.enable()
    read_signatures_once()
    if "torch" in sys.modules:
        seed_without_a_traceback()
    if "lightning.pytorch" in sys.modules:
        move_once()
        read_hooks_once()
        read_no_source_of_callers()
        build_on_the_cpu()
    if "lightning_vfl.networks.flops" in sys.modules:
        count_work_once()
    if "jsonargparse" in sys.modules:
        from tests.quick_parsing import parse_sooner

        parse_sooner(replace)


def move_once() -> None:
    """Let lightning skip the move of a logged value to the device on which the value is already.

    Lightning walks through the metric and all its attributes before every update of a logged value. On one device the
    walk moves nothing, and takes a sixth of a small training: the golden runs take 21 s with it and 18 s without. That
    is worth a patch of a private class. The processes that tests start (DDP, studies) run lightning as it is. A move
    gives a metric torch's default dtype, which is another one in a step with ``precision`` ``bf16-true``.
    """
    import torch
    from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric

    move = _ResultMetric.to

    def to(self: _ResultMetric, *args: Any, **kwargs: Any) -> _ResultMetric:
        value = getattr(self, "value", None)  # a metric is there from its first update on
        there = value is not None and not kwargs and args == (value.device,)
        return self if there and torch.get_default_dtype() == torch.float32 else move(self, *args, **kwargs)

    _ResultMetric.to = to  # type: ignore[method-assign]


def read_hooks_once() -> None:
    """Read the parameters of each hook once. Lightning reads them at every logged value: a fiftieth of a training."""
    from lightning.pytorch.utilities import signature_utils

    read = signature_utils.is_param_in_hook_signature
    known: dict[Any, bool] = {}

    def is_param_in_hook_signature(hook: Any, *args: Any, **kwargs: Any) -> bool:
        code = getattr(hook, "__code__", None)
        if code is None or hasattr(hook, "__wrapped__") or hasattr(hook, "__signature__"):
            return read(hook, *args, **kwargs)
        key = (code, args, *kwargs.items())
        if key not in known:
            known[key] = read(hook, *args, **kwargs)
        return known[key]

    replace(read, is_param_in_hook_signature)


def read_no_source_of_callers() -> None:
    """Let lightning look at the files of its callers alone, without their source: 10 to 50 ms of each loading.

    ``load_from_checkpoint`` asks whether a file of torch.jit is among its callers.
    """
    from lightning.pytorch.utilities import model_helpers

    def stack() -> Iterator[SimpleNamespace]:
        frame = inspect.currentframe()
        while frame is not None:
            yield SimpleNamespace(filename=frame.f_code.co_filename)
            frame = frame.f_back

    model_helpers.inspect = SimpleNamespace(**vars(inspect) | {"stack": stack})  # type: ignore[assignment, attr-defined]


def seed_without_a_traceback() -> None:
    """Let torch seed devices that are not there without the text of the stack: a hundredth of the suite.

    ``torch.manual_seed`` formats the whole stack three times, for a device that may be used later and fail then.
    """
    import torch.cuda
    import torch.mtia
    import torch.xpu

    for devices in (torch.cuda, torch.mtia, torch.xpu):
        devices.traceback = SimpleNamespace(format_stack=list)  # type: ignore[attr-defined]


def read_signatures_once() -> None:
    """Read the signature of each function and class once. Lightning and torchmetrics read them at every metric."""
    read = inspect.signature
    plain: WeakKeyDictionary[Any, inspect.Signature] = WeakKeyDictionary()
    bound: WeakKeyDictionary[Any, inspect.Signature] = WeakKeyDictionary()

    def signature(of: Any, **settings: Any) -> inspect.Signature:
        method = type(of) is MethodType
        key = of.__func__ if method else of
        if settings or type(key) is not FunctionType or hasattr(key, "__signature__"):
            return read(of, **settings)
        known = bound if method else plain
        if key not in known:
            known[key] = read(of)
        return known[key]

    inspect.signature = signature  # type: ignore[assignment]


def build_on_the_cpu() -> None:
    """Let lightning build networks for the CPU without calling Python at each operation: a fortieth of a training."""
    import torch
    from lightning.pytorch.strategies import Strategy

    chosen = Strategy.tensor_init_context

    def tensor_init_context(self: Strategy, empty_init: bool | None = None) -> AbstractContextManager[None]:
        cpu = self.root_device.type == "cpu" and torch.get_default_device().type == "cpu"
        return self.precision_plugin.tensor_init_context() if cpu and not empty_init else chosen(self, empty_init)

    Strategy.tensor_init_context = tensor_init_context  # type: ignore[assignment, method-assign]


def count_work_once() -> None:
    """Count the FLOPs of networks of equal structure once in this process: a fifteenth of a small training."""
    from lightning_vfl.networks import flops

    count = flops.work_of
    counted: dict[Any, flops.Work] = {}

    def work_of(network: Any, shape: tuple[int, ...], input_gradient: bool) -> flops.Work:
        attributes = [item for module in network.modules() for item in vars(module).items()]
        if any(hooks for name, hooks in attributes if name.endswith("hooks")):  # a count must not call them: test it
            return count(network, shape, input_gradient)
        kinds = tuple((type(module), str(vars(module).keys())) for module in network.modules())
        weights = tuple((tuple(p.shape), p.requires_grad) for p in network.parameters())
        key = (str(network), kinds, weights, shape, input_gradient)
        if key not in counted:
            counted[key] = count(network, shape, input_gradient)
        return counted[key]

    replace(count, work_of)


def replace(function: Callable[..., Any], by: Callable[..., Any]) -> None:
    """Put another function in the place of this one, in all modules that have imported it."""
    for module in [*sys.modules.values()]:
        if vars(module).get(function.__name__) is function:  # getattr would call what a module loads lazily
            setattr(module, function.__name__, by)


def report_less(config: Any) -> None:
    """Let a worker process of xdist report the result of a test alone, not that its fixtures have been set up as well.

    A report takes the two processes a quarter of a millisecond. All failures are reported, and all parts of all tests
    where their durations or a file of the reports are asked for.
    """
    if not hasattr(config, "workerinput") or config.option.durations is not None or config.option.xmlpath:
        return
    for call in (config.hook.pytest_runtest_logreport, config.hook.pytest_runtest_logstart):
        for told in call.get_hookimpls():
            if type(told.plugin).__name__ == "WorkerInteractor":
                told.function = functools.partial(_tell, told.function)


def _tell(tell: Callable[..., None], *what: Any) -> None:
    """Tell what is neither the start of a test nor the successful end of its fixtures."""
    report = what[0]
    if hasattr(report, "when") and (report.when == "call" or not report.passed):
        tell(*what)
