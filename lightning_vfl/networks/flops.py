"""How much work a network is, counted by torch on two records."""

import copy
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

_ROWS = 2


class Work(NamedTuple):
    """Floating-point operations for one record: of the forward pass, and of its gradients."""

    forward: float
    backward: float


def work_of(network: nn.Module, shape: tuple[int, ...], input_gradient: bool) -> Work:
    """FLOPs of a network for one record of this shape: those of its matrix products and convolutions.

    Args:
        network: any network; a copy of it is run.
        shape: per-record shape of its input.
        input_gradient: whether the gradient of the input is wanted too; a bottom needs none, the top does.

    Examples:
        >>> work_of(nn.Linear(10, 3), (10,), input_gradient=False)
        Work(forward=60.0, backward=60.0)
    """
    copied = copy.deepcopy(network).eval()  # no running statistics, no generator and no gradient is touched
    parameter = next(copied.parameters(), None)
    like = torch.zeros(()) if parameter is None else parameter
    x = torch.zeros(_ROWS, *shape, device=like.device, dtype=like.dtype, requires_grad=input_gradient)
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        out = copied(x)
        forward = counter.get_total_flops()
        if out.requires_grad:
            out.sum().backward()
        total = counter.get_total_flops()
    return Work(forward / _ROWS, (total - forward) / _ROWS)


def works_of(bottoms: Iterable[nn.Module], shapes: Iterable[tuple[int, ...]]) -> list[Work]:
    """The work of each bottom for one record; equal bottoms, by their printed form and input, are counted once."""
    counted: dict[tuple[str, tuple[int, ...]], Work] = {}
    works = []
    for bottom, shape in zip(bottoms, shapes, strict=True):
        alike = str(bottom), shape
        if alike not in counted:
            counted[alike] = work_of(bottom, shape, input_gradient=False)
        works.append(counted[alike])
    return works
