"""A loss with the gradients of messages, so that automatic optimisation can step on it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.types import Tensors


def surrogate(
    loss: Tensor,
    values: Sequence[Tensor],
    gradients: Sequence[Tensor],
    parameters: Sequence[nn.Parameter],
    decay: float,
    scale: Tensor,
) -> Tensor:
    """The loss, with the gradient of scale · (Σ <gradients, values> + decay / 2 · Σ |parameters|²) in place of its own.

    This gradient multiplies each message by the Jacobian of its value and adds decay · θ: the update of Algorithm 2.
    The sum itself is not computed. Only values and parameters have graphs.

    Args:
        loss: the loss that the messages belong to, a scalar, constant.
        values: the tensors to which the messages belong: embeddings (B, D_m), parameters of the top.
        gradients: the gradients in the messages, of the same shapes, constants.
        parameters: the regularised parameters.
        decay: λ.
        scale: c, a scalar, constant.

    Examples:
        >>> w = nn.Parameter(torch.tensor([3.0]))
        >>> loss = surrogate(torch.tensor(0.7), [2 * w], [torch.tensor([5.0])], [w], 0.1, torch.tensor(4.0))
        >>> loss.backward()
        >>> w.grad
        tensor([41.2000])

    References:
        CVFL, Algorithms 2 and 3.
    """
    scalar: Tensor = _Surrogate.apply(loss, decay, scale, tuple(gradients), len(values), *values, *parameters)  # type: ignore[no-untyped-call]  # torch's
    return scalar


def half_squares(parameters: Sequence[Tensor]) -> Tensor:
    """Σ r(θ) with r(θ) = ½|θ|², a scalar; 0 of no parameters."""
    if not parameters:
        return torch.zeros(())
    return 0.5 * torch.stack(torch._foreach_norm(list(parameters))).square().sum()


class _Surrogate(torch.autograd.Function):
    """The surrogate as one node of the graph: sums of products would need several nodes for every tensor."""

    @staticmethod
    def forward(
        ctx: Any, loss: Tensor, decay: float, scale: Tensor, gradients: Tensors, count: int, *of: Tensor
    ) -> Tensor:
        ctx.decay = decay
        ctx.scale = scale
        ctx.gradients = gradients
        ctx.save_for_backward(*of[count:])
        return loss.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        scale = grads[0] * ctx.scale
        carried = torch._foreach_mul(list(ctx.gradients), scale) if ctx.gradients else ()
        parameters = ctx.saved_tensors
        decayed: Sequence[Tensor | None] = [None] * len(parameters)
        if ctx.decay and parameters:
            decayed = torch._foreach_mul(parameters, scale * ctx.decay)
        return None, None, None, None, None, *carried, *decayed
