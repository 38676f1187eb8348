"""Decoders that undo encoders."""

from collections.abc import Callable
from copy import deepcopy
from math import prod

from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.mlp import MLP


def mirrored(encoder: nn.Module, shape: tuple[int, ...], output_activation: Callable[[], nn.Module] | None) -> MLP:
    """The decoder that undoes an ``MLP``: its widths in reverse, with the same activation between them.

    Shapes: input (B, D), the encoder's output; output (B, ∏ S).
    Guarantee: it has a batched rule if its activations have one; it shares nothing with the encoder.

    Args:
        encoder: an ``MLP`` of records of this shape. Its first hidden activation, with its settings, is repeated.
        shape: S, per-record shape of what is decoded.
        output_activation: makes the last activation, for numbers of a known range: ``torch.nn.Sigmoid`` for pixels in
            [0, 1]; None: none, as for standardised columns.

    Raises:
        ConfigurationError: for an encoder that is no ``MLP``.

    Examples:
        >>> mirrored(MLP((196,), 80, hidden=(100,), activation=nn.LeakyReLU), (196,), nn.Sigmoid)
        MLP(
          (layers): Sequential(
            (0): Linear(in_features=80, out_features=100, bias=True)
            (1): LeakyReLU(negative_slope=0.01)
            (2): Linear(in_features=100, out_features=196, bias=True)
            (3): Sigmoid()
          )
        )
    """
    if not isinstance(encoder, MLP):
        raise ConfigurationError(
            f"no decoder is known that undoes {type(encoder).__name__}; give the objective a decoder, "
            "a factory of (width, shape), or choose an MLP encoder"
        )
    linear = [layer for layer in encoder.layers if isinstance(layer, nn.Linear)]
    activations = [layer for layer in encoder.layers if not isinstance(layer, nn.Linear | nn.Flatten)]
    return MLP(
        linear[-1].out_features,
        prod(shape),
        hidden=[layer.in_features for layer in reversed(linear[1:])],
        activation=lambda: deepcopy(activations[0]),  # asked for only where the encoder has a hidden layer
        output_activation=output_activation,
    )
