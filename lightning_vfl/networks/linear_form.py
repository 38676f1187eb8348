"""Networks whose output is linear in their parameters, as a matrix of inputs times a matrix of weights."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.networks.polynomial import PolynomialNetwork

AROUND = Linear, MLP, nn.Sequential, nn.Flatten  # compute nothing besides their layers


class LinearForm(NamedTuple):
    """A network as ``expand(x) @ weight()``.

    Args:
        expand: (B, *S) to (B, W); computes with no parameter.
        weight: (W, D), made of the parameters in a way that autograd differentiates.
    """

    expand: Callable[[Tensor], Tensor]
    weight: Callable[[], Tensor]


def linear_form(network: nn.Module) -> LinearForm | None:
    """The linear form of a ``Linear``, an ``MLP`` without hidden layers or a ``PolynomialNetwork``; None: of no other.

    Examples:
        >>> form = linear_form(Linear((2, 2), 3))
        >>> form.expand(torch.zeros(5, 2, 2)).shape, form.weight().shape
        (torch.Size([5, 5]), torch.Size([5, 3]))
        >>> linear_form(MLP((4,), 3, hidden=(8,))) is None
        True
    """
    if type(network) is PolynomialNetwork:
        return LinearForm(network.expand, lambda: network.weight)
    layers = [layer for layer in network.modules() if type(layer) not in AROUND]  # a subclass may compute more
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    return LinearForm(partial(_columns, layers[0].bias is not None), partial(_weights, layers[0]))


def _columns(bias: bool, x: Tensor) -> Tensor:
    flat = x.flatten(1)
    return torch.cat([flat, torch.ones_like(flat[:, :1])], 1) if bias else flat


def _weights(layer: nn.Linear) -> Tensor:
    bias: Tensor | None = layer.bias  # torch says Tensor, and has None for a layer without
    return layer.weight.T if bias is None else torch.cat([layer.weight.T, bias[None]])
