"""Decoders for autoencoders."""

from collections.abc import Callable
from copy import deepcopy
from math import prod

from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.mlp import MLP


def mirrored(encoder: nn.Module, shape: tuple[int, ...], output_activation: Callable[[], nn.Module] | None) -> MLP:
    """The mirror image of an ``MLP`` encoder: its widths in reverse order, with the same activation between layers.

    Shapes: input (B, D), the encoder's output; output (B, ∏ S).
    Guarantee: the decoder has a batched rule if its activations have one; it shares no parameter with the encoder.

    Args:
        encoder: an ``MLP`` for records of shape S. The decoder repeats its first hidden activation with its settings.
        shape: S, per-record shape of the decoded records.
        output_activation: makes the last activation, for numbers of a known range: ``torch.nn.Sigmoid`` for pixels in
            [0, 1]; None: no activation, as for standardised columns.

    Raises:
        ConfigurationError: for an encoder that is not an ``MLP``.

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
            f"only an MLP encoder has a mirrored decoder; got {type(encoder).__name__}; give the objective a decoder "
            "(a factory of (width, shape)), or use an MLP encoder"
        )
    linear = [layer for layer in encoder.layers if isinstance(layer, nn.Linear)]
    activations = [layer for layer in encoder.layers if not isinstance(layer, nn.Linear | nn.Flatten)]
    return MLP(
        linear[-1].out_features,
        prod(shape),
        hidden=[layer.in_features for layer in reversed(linear[1:])],
        activation=lambda: deepcopy(activations[0]),  # called only if the encoder has a hidden layer
        output_activation=output_activation,
    )
