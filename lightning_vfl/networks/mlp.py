"""Fully connected networks, as bottoms and as tops."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import prod

from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks._linear import as_real, stated
from lightning_vfl.networks.batched import Layers, batched
from lightning_vfl.types import Shape


class MLP(nn.Module):
    """Linear layers with an activation between them; input of any per-record shape is flattened.

    Shapes: input (B, *S); output (B, outputs).

    Args:
        inputs: per-record shape S of the features (as a bottom) or width of the aggregate (as a top).
        outputs: width of the embedding (as a bottom) or of the prediction (as a top); if a top leaves it open, the
            protocol sets the number that the task needs.
        hidden: widths of the hidden layers; empty: one linear layer.
        activation: makes the activation after every hidden layer; None: ReLU in place, which saves a buffer for each
            layer.
        output_activation: makes a last activation, e.g. ``torch.nn.Tanh``; default: none.

    Examples:
        >>> MLP((8, 8), 16, hidden=(32,))
        MLP(
          (layers): Sequential(
            (0): Flatten(start_dim=1, end_dim=-1)
            (1): Linear(in_features=64, out_features=32, bias=True)
            (2): ReLU(inplace=True)
            (3): Linear(in_features=32, out_features=16, bias=True)
          )
        )
    """

    def __init__(
        self,
        inputs: Shape | int,
        outputs: int | None = None,
        hidden: Sequence[int] = (128,),
        activation: Callable[[], nn.Module] | None = None,
        output_activation: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [] if isinstance(inputs, int) else [nn.Flatten()]
        width = inputs if isinstance(inputs, int) else prod(inputs)
        for wide in hidden:
            layers += [nn.Linear(width, wide), activation() if activation else nn.ReLU(inplace=True)]
            width = wide
        layers.append(nn.Linear(width, stated(outputs, self)))
        if output_activation is not None:
            layers.append(output_activation())
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *S) to (B, outputs)."""
        out: Tensor = self.layers(x if x.is_floating_point() else as_real(x))
        return out


@batched.register
def _mlps(first: MLP, layers: Layers, x: Tensor) -> Tensor:
    return batched(first.layers, [network.layers for network in layers], as_real(x))


def mirrored(encoder: nn.Module, shape: Shape, output_activation: Callable[[], nn.Module] | None) -> MLP:
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
