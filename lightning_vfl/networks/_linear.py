"""One linear layer; torch has a ``Linear`` too, and jsonargparse does not offer short names of private modules."""

from math import prod

import torch
from torch import Tensor, nn

from lightning_vfl.networks.batched import Layers, batched
from lightning_vfl.types import Shape


class Linear(nn.Module):
    """One linear layer: the smallest top, or a linear bottom.

    Shapes: input (B, *S); output (B, outputs).

    Args:
        inputs: per-record shape S of the features (as a bottom) or width of the aggregate (as a top).
        outputs: as in ``MLP``.
    """

    def __init__(self, inputs: Shape | int, outputs: int | None = None) -> None:
        super().__init__()
        width = inputs if isinstance(inputs, int) else prod(inputs)
        self.layer = nn.Linear(width, stated(outputs, self))

    def forward(self, x: Tensor) -> Tensor:
        """(B, *S) to (B, outputs)."""
        out: Tensor = self.layer((x if x.is_floating_point() else as_real(x)).flatten(1))
        return out


@batched.register
def _linears(first: Linear, layers: Layers, x: Tensor) -> Tensor:
    return batched(first.layer, [network.layer for network in layers], as_real(x).flatten(2))


def as_real(x: Tensor) -> Tensor:
    """Real numbers as they are; whole numbers and truths in torch's default dtype."""
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def stated(outputs: int | None, network: nn.Module) -> int:
    """The number of outputs of a network, which must be known now.

    Raises:
        TypeError: if it was left open.
    """
    if outputs is None:
        raise TypeError(f"{type(network).__name__} needs its number of outputs; give outputs=")
    return outputs
