"""Run several networks of one architecture in one call, with one rule for each layer type.

``batched(layers, x)`` applies the i-th of n equal layers to x[i]; the call stacks the parameters, so every network
keeps its own. ``PartyBank`` loops over networks with a layer type without a rule. Add a rule with
``@batched.register``: it must equal the loop within rounding, draw no random numbers and keep no state. Convolutions
have no rule on purpose: batched, they become grouped convolutions, which are slower than the loop on a CPU.
"""

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

Layers = Sequence[Any]
LARGE = 16_384  # numbers of one weight, from which on copying their gradient takes longer than a node in Python
ELEMENTWISE = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid)


@singledispatch
def batched(first: nn.Module, layers: Layers, x: Tensor) -> Tensor:
    """Apply layer i to x[i]. first = layers[0]; x (n, B, *S); returns (n, B, *S')."""
    raise TypeError(f"no batched rule for {type(first).__name__}")


def has_rule(network: nn.Module) -> bool:
    """Whether this network and all its submodules have a batched rule."""
    # the exact type: a subclass may have its own forward
    if not all(type(layer) in batched.registry for layer in network.modules()):
        return False
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(layer, kind) for layer in network.modules() for kind in hooks)


def stack(layers: Layers, name: str) -> Tensor:
    """The parameter ``name`` of all layers, (n, ...), differentiable."""
    return torch.stack([getattr(layer, name) for layer in layers])


@batched.register
def _sequential(first: nn.Sequential, layers: Layers, x: Tensor) -> Tensor:
    for same in zip(*layers, strict=True):
        x = batched(same[0], same, x)
    return x


@batched.register
def _linear(first: nn.Linear, layers: Layers, x: Tensor) -> Tensor:
    weight = stack(layers, "weight")
    bias: Tensor | None = first.bias  # torch's annotation ignores bias=False
    rows = x.flatten(1, -2)  # a record may have more axes before the features
    if bias is None:
        out = torch.bmm(rows, weight.mT)
    elif first.weight.numel() < LARGE or torch.is_autocast_enabled(x.device.type):
        out = torch.baddbmm(stack(layers, "bias").unsqueeze(1), rows, weight.mT)
    else:
        out = _Products.apply(rows, weight, stack(layers, "bias"))  # type: ignore[no-untyped-call]  # torch's
    return out.view(*x.shape[:-1], out.shape[-1])


class _Products(torch.autograd.Function):
    """``baddbmm`` with gradients of the weights in the layout of the weights, for which autograd would copy them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight) = ctx.saved_tensors
        (g,) = gradients
        return torch.bmm(g, weight) if ctx.needs_input_grad[0] else None, torch.bmm(g.mT, x), g.sum(1)


@batched.register
def _flatten(first: nn.Flatten, layers: Layers, x: Tensor) -> Tensor:
    end = first.end_dim + 1 if first.end_dim >= 0 else first.end_dim
    return x.flatten(first.start_dim + 1 if first.start_dim >= 0 else first.start_dim, end)


@batched.register
def _layer_norm(first: nn.LayerNorm, layers: Layers, x: Tensor) -> Tensor:
    x = nn.functional.layer_norm(x, first.normalized_shape, eps=first.eps)
    if not first.elementwise_affine:
        return x
    between = (1,) * (x.ndim - 1 - len(first.normalized_shape))  # rows, and axes that are not normalised
    x = x * stack(layers, "weight").view(len(layers), *between, *first.normalized_shape)
    bias: Tensor | None = first.bias  # torch's annotation ignores bias=False
    return x if bias is None else x + stack(layers, "bias").view(len(layers), *between, *first.normalized_shape)


def _elementwise(first: nn.Module, layers: Layers, x: Tensor) -> Tensor:
    out: Tensor = first(x)
    return out


for _layer in ELEMENTWISE:
    batched.register(_layer, _elementwise)
