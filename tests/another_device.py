"""A device that stands in for a GPU: its tensors are computed by the CPU, and mixing the two is an error as with a GPU.

Machines without a GPU cannot run the code for one. Here torch's device ``meta`` plays the GPU. A tensor on it is a
``Far``, which hides a tensor of the CPU and has its numbers. While ``another_device`` is active, every operation of
torch, of autograd and of the optimisers is run on the hidden tensors, so that results can be compared bit for bit.
Like a GPU, it refuses operations on tensors of both devices (but for 0-d tensors and indices of the CPU), random
numbers from a generator of the CPU, and ``numpy()`` without a copy.

Not covered: kernels and their rounding, streams, memory, and several devices.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
_COPIES = ("aten::_to_copy", "aten::copy_")  # they move tensors between devices
_INDEXED = ("aten::index", "aten::index_put", "aten::index_put_")  # their indices may be on the CPU
_MAKERS = (torch.tensor, torch.as_tensor, torch.scalar_tensor)  # they make tensors without an operation


class Far(Tensor):
    """A tensor of the other device."""

    hidden: Tensor

    @staticmethod
    def __new__(cls: type["Far"], hidden: Tensor) -> "Far":
        far: Far = Tensor._make_wrapper_subclass(
            cls,
            hidden.size(),
            strides=hidden.stride(),
            storage_offset=hidden.storage_offset(),
            dtype=hidden.dtype,
            layout=hidden.layout,
            device=DEVICE,
        )
        far.hidden = hidden
        return far

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Far({self.hidden!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved like a tensor of a GPU that is loaded with ``map_location="cpu"``."""
        return self.hidden.__reduce_ex__(protocol)

    def tolist(self) -> Any:
        return self.hidden.tolist()

    def data_ptr(self) -> int:
        return self.hidden.data_ptr()

    def untyped_storage(self) -> Any:
        return self.hidden.untyped_storage()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("a tensor of another device has no numpy array; copy it to the CPU first")
        return self.hidden.numpy(force=True)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on the hidden tensors; its results are on the device that a GPU would give."""
    schema, leaves = func._schema, tree_leaves((args, kwargs))
    far = [x for x in leaves if isinstance(x, Far)]
    near = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, Far)]
    if any(x.device == DEVICE for x in near):
        raise RuntimeError(f"{func} was given a tensor of {DEVICE} that was made outside of another_device")
    mixed = [x for x in near if x.dim()]
    if schema.name in _INDEXED and isinstance(args[0], Far):
        mixed = [x for x in mixed if x.dtype not in (torch.int64, torch.bool)]
    if far and mixed and schema.name not in _COPIES:
        raise RuntimeError(f"{func} was given tensors of two devices")
    there = isinstance(args[0], Far) if schema.name == "aten::copy_" else bool(far)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]) == DEVICE
        kwargs = kwargs | {"device": torch.device("cpu")}
    found = func(*tree_map(_near, args), **tree_map(_near, kwargs))
    if schema.arguments and schema.arguments[0].is_write:
        return args[0] if schema.returns else None
    known = {id(x.hidden): x for x in far}
    return tree_map(lambda x: known.get(id(x), _far(x)), found) if there else found


def _near(x: Any) -> Any:
    return x.hidden if isinstance(x, Far) else x


def _far(x: Any) -> Any:
    return Far(x) if isinstance(x, Tensor) and not isinstance(x, Far) else x


class _FarGenerator(torch.Generator):
    """A generator of random numbers on the other device."""


def _generator(device: Any = "cpu") -> torch.Generator:
    return _FarGenerator() if torch.device(device) == DEVICE else _GENERATOR(device)


_GENERATOR = torch.Generator


class _Operations(TorchDispatchMode):
    """Runs the operations whose arguments are on no device, such as ``torch.zeros``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Makers(TorchFunctionMode):
    """Makes tensors of numbers, also those of indices, on the CPU first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], Far):
            wanted = args[1] if isinstance(args[1], tuple) else (args[1],)
            indices = tuple(torch.from_numpy(np.array(one, int)) if isinstance(one, list) else one for one in wanted)
            return func(args[0], indices, *args[2:])
        device = kwargs.get("device")
        if (generator := kwargs.get("generator")) is not None:
            there = isinstance(args[0], Far) if device is None else torch.device(device) == DEVICE
            if there != isinstance(generator, _FarGenerator):
                raise RuntimeError(f"{func} was given a generator of another device than its result")
        if func in _MAKERS and device is not None and torch.device(device) == DEVICE:
            return func(*args, **kwargs | {"device": None}).to(DEVICE)
        return func(*args, **kwargs)


@contextmanager
def another_device() -> Iterator[None]:
    """Let torch compute on ``DEVICE``, also with fused optimisers and generators of its own."""
    optimizers = import_module("torch.optim.optimizer")  # torch.optim has no attribute of this name
    fused = patch.object(optimizers, "_get_fused_kernels_supported_devices", lambda: ["cpu", DEVICE.type])
    generators = patch.object(torch, "Generator", _generator)
    with fused, generators, _Operations(), _Makers():
        yield


def on_the_cpu(value: Any) -> Any:
    """The same nest of tensors and plain values, with all tensors on the CPU."""
    return tree_map(_near, value)


class _Accelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        """Accept the device."""


def strategy(device: torch.device = DEVICE) -> SingleDeviceStrategy:
    """For a trainer whose module and batches are to be on this device; give it ``inference_mode=False`` too."""
    return SingleDeviceStrategy(device=device, accelerator=_Accelerator())
