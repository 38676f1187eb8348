"""The FLOPs of a network, counted by torch on two records."""

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lightning_vfl.types import Shape

_ROWS = 2


class Work(NamedTuple):
    """Floating-point operations for one record: of the forward pass, and of the backward pass."""

    forward: float
    backward: float


def work_of(network: nn.Module, shape: Shape, input_gradient: bool) -> Work:
    """FLOPs of a network for one record of this shape: those of its matrix products and convolutions.

    Args:
        network: any network; a copy of it runs, without hooks.
        shape: per-record shape of its input.
        input_gradient: whether to count the gradient of the input too; needed for the top, not for a bottom.

    Examples:
        >>> work_of(nn.Linear(10, 3), (10,), input_gradient=False)
        Work(forward=60.0, backward=60.0)
    """
    copied = _without_hooks(network).eval()  # running statistics, generators and gradients do not change
    parameter = next(copied.parameters(), None)
    like = torch.zeros(()) if parameter is None else parameter
    x = torch.zeros(_ROWS, *shape, device=like.device, dtype=like.dtype, requires_grad=input_gradient)
    if takes_whole_numbers(copied, x):
        x = x.detach().long()
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        out = copied(x.clone())  # a first layer that works in place must not write into a leaf
        forward = counter.get_total_flops()
        if out.requires_grad:
            out.sum().backward()
        total = counter.get_total_flops()
    return Work(forward / _ROWS, (total - forward) / _ROWS)


def takes_whole_numbers(network: nn.Module, zeros: Tensor) -> bool:
    """Whether a network takes whole numbers and no real ``zeros``, as one that begins with an embedding."""
    if not any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in network.modules()):
        return False
    with torch.no_grad():
        try:
            network(zeros.clone())
        except (RuntimeError, ValueError, IndexError, TypeError):
            return True
    return False


def _without_hooks(network: nn.Module) -> nn.Module:
    """A copy without the hooks of profilers, loggers and authors, which are for rounds, and may not be copied."""
    attributes = [item for layer in network.modules() for item in vars(layer).items()]
    hooks: dict[int, Any] = {id(hook): type(hook)() for name, hook in attributes if name.endswith("hooks") and hook}
    return copy.deepcopy(network, hooks)


def works_of(bottoms: Iterable[nn.Module], shapes: Iterable[Shape]) -> list[Work]:
    """The work of each bottom for one record; bottoms with equal printed form and input shape are counted once."""
    counted: dict[tuple[str, Shape], Work] = {}
    works = []
    for bottom, shape in zip(bottoms, shapes, strict=True):
        alike = str(bottom), shape
        if alike not in counted:
            counted[alike] = work_of(bottom, shape, input_gradient=False)
        works.append(counted[alike])
    return works
