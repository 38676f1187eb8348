"""Gradients that cross between processes, in the graphs of autograd."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.types import Tensors


def arrived(value: Tensor, send_back: Callable[[Tensor], None]) -> Tensor:
    """What has come from a party, in the server's graph: the backward pass gives its gradient to ``send_back``."""
    anchor = torch.zeros((), requires_grad=True)
    inside: Tensor = _Arrived.apply(anchor, value, send_back)  # type: ignore[no-untyped-call]  # torch's
    return inside


def answered(grads: Tensors, leaves: Tensors) -> Tensor:
    """A loss of zero at a party, whose gradients at its ``leaves`` are those that the server has sent."""
    loss: Tensor = _Answered.apply(grads, *leaves)  # type: ignore[no-untyped-call]  # torch's
    return loss


def differentiated(loss: Tensor, received: Tensors, parameters: Iterable[Tensor]) -> tuple[Tensors, Tensors, Tensors]:
    """The gradients of what has been received, those of the parameters behind it, and these parameters."""
    learnt = [parameter for parameter in parameters if parameter.requires_grad]
    with torch.autocast(loss.device.type, enabled=False):  # as Lightning's backward pass
        grads = torch.autograd.grad(loss, (*received, *learnt), allow_unused=True)
    back = grads[: len(received)]
    own = grads[len(received) :]
    used = [(grad, p) for grad, p in zip(own, learnt, strict=True) if grad is not None]
    return back, tuple(grad for grad, _ in used), tuple(p for _, p in used)


class _Arrived(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, send_back: Callable[[Tensor], None]) -> Tensor:
        ctx.send_back = send_back
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.send_back(grads[0])
        return torch.zeros(()), None, None


class _Answered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grads: Tensors, *leaves: Tensor) -> Tensor:
        ctx.grads = grads
        return torch.zeros((), device=leaves[0].device)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.grads
