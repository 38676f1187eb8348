"""Fully connected networks, as bottoms and as tops."""

from collections.abc import Callable, Sequence
from math import prod

from torch import Tensor, nn

from lightning_vfl.networks._linear import Linear as Linear  # checkpoints of before have this path
from lightning_vfl.networks._linear import as_real, stated
from lightning_vfl.networks.batched import Layers, batched


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
        inputs: tuple[int, ...] | int,
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
