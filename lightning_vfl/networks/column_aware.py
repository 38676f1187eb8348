"""A top that is told which columns of the aggregate have arrived."""

import inspect

import torch
from torch import Tensor, nn


class ColumnAwareTop(nn.Module):
    """Calls a top whose ``forward`` takes ``columns``, with all columns where nobody says which have arrived.

    Args:
        network: its ``forward(value, columns)`` takes the aggregate (B, D_out) and ``columns`` (D_out,) bool.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, value: Tensor, columns: Tensor | None = None) -> Tensor:
        """The network's output; ``columns`` None: all have arrived."""
        if columns is None:
            columns = torch.ones(value.shape[1], dtype=torch.bool)
        output: Tensor = self.network(value, columns=columns.to(value.device))
        return output


def column_aware(network: nn.Module) -> nn.Module:
    """The network, or one that gives it ``columns`` if its ``forward`` takes them."""
    return ColumnAwareTop(network) if "columns" in inspect.signature(network.forward).parameters else network
