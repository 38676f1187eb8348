"""How deep a bottom is: linear in its weights, with one hidden layer, or anything else."""

from typing import Any, Literal, NamedTuple

from torch import nn

from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.networks.polynomial import PolynomialNetwork

_ACTIVATIONS: dict[type[nn.Module], Literal["relu", "tanh"]] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


class HiddenLayer(NamedTuple):
    """The one hidden layer of a bottom.

    Args:
        width: number of hidden units.
        activation: of the hidden units.
        bias: whether both layers have a bias.
    """

    width: int
    activation: Literal["relu", "tanh"]
    bias: bool


class Depth(NamedTuple):
    """A bottom that is linear in its weights, or has one hidden layer.

    Args:
        columns: that the bottom reads, or is linear in, without a constant.
        hidden: the layer; None: the bottom is linear.
    """

    columns: int
    hidden: HiddenLayer | None


def depth_of(network: nn.Module) -> Depth | None:
    """The depth of a linear bottom, or of an ``MLP`` with one hidden layer of ReLU or tanh; None: of any other network.

    Examples:
        >>> depth_of(MLP((4,), 3, hidden=(8,)))
        Depth(columns=4, hidden=HiddenLayer(width=8, activation='relu', bias=True))
        >>> depth_of(MLP((4,), 3, hidden=(8, 8))) is None
        True
    """
    if type(network) is PolynomialNetwork:
        return Depth(len(network.weight) - 1, None)  # its last row is the bias
    layers = _layers(network)
    kinds = [type(layer) for layer in layers]
    if kinds == [nn.Linear]:
        return Depth(layers[0].in_features, None)
    if len(kinds) == 3 and kinds[::2] == [nn.Linear, nn.Linear] and kinds[1] in _ACTIVATIONS:
        first, _, last = layers
        bias = first.bias is not None
        if bias == (last.bias is not None):
            return Depth(first.in_features, HiddenLayer(first.out_features, _ACTIVATIONS[kinds[1]], bias))
    return None


def linear_columns(network: nn.Module) -> int | None:
    """The number of columns that a bottom is linear in, without a constant; None: it is not linear in its weights.

    Examples:
        >>> linear_columns(Linear((2, 2), 3)), linear_columns(MLP((4,), 3))
        (4, None)
    """
    depth = depth_of(network)
    return depth.columns if depth is not None and depth.hidden is None else None


def _layers(network: nn.Module) -> list[Any]:
    """The modules that compute, in order. Exact types: a subclass may compute more."""
    around = Linear, MLP, nn.Sequential, nn.Flatten  # these compute nothing besides their layers
    return [layer for layer in network.modules() if type(layer) not in around]
