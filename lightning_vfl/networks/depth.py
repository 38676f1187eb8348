"""How deep a bottom is: linear in its weights, with one hidden layer, or anything else."""

from typing import Literal, NamedTuple

from torch import nn

from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.networks.polynomial import PolynomialNetwork

_ACTIVATIONS: dict[type[nn.Module], Literal["relu", "tanh"]] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


class HiddenLayer(NamedTuple):
    """The one hidden layer of a bottom.

    Args:
        columns: that the bottom reads.
        width: number of hidden units.
        activation: of the hidden units.
        bias: whether both layers have a bias.
    """

    columns: int
    width: int
    activation: Literal["relu", "tanh"]
    bias: bool


def linear_columns(network: nn.Module) -> int | None:
    """The number of columns that a bottom is linear in, without a constant; None: it is not linear in its weights.

    Examples:
        >>> linear_columns(Linear((2, 2), 3)), linear_columns(MLP((4,), 3))
        (4, None)
    """
    if type(network) is PolynomialNetwork:
        return len(network.weight) - 1  # its last row is the bias
    layers = _layers(network)
    return layers[0].in_features if len(layers) == 1 and type(layers[0]) is nn.Linear else None


def hidden_layer(network: nn.Module) -> HiddenLayer | None:
    """The hidden layer of an ``MLP`` with one hidden layer of ReLU or tanh; None: of any other network.

    Examples:
        >>> hidden_layer(MLP((4,), 3, hidden=(8,)))
        HiddenLayer(columns=4, width=8, activation='relu', bias=True)
        >>> hidden_layer(MLP((4,), 3, hidden=(8, 8))) is None
        True
    """
    layers = _layers(network)
    if len(layers) != 3 or type(layers[1]) not in _ACTIVATIONS:
        return None
    first, between, last = layers
    if type(first) is not nn.Linear or type(last) is not nn.Linear:
        return None
    bias = first.bias is not None
    if bias != (last.bias is not None):
        return None
    return HiddenLayer(first.in_features, first.out_features, _ACTIVATIONS[type(between)], bias)


def _layers(network: nn.Module) -> list[nn.Module]:
    """The modules that compute, in order. Exact types: a subclass may compute more."""
    around = Linear, MLP, nn.Sequential, nn.Flatten  # these compute nothing besides their layers
    return [layer for layer in network.modules() if type(layer) not in around]
