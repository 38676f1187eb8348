"""Training and evaluation mode, put back as they were."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Everything in evaluation mode, and each module in its own again afterwards."""
    modes = [(inner, inner.training) for inner in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for inner, mode in modes:
            inner.training = mode
