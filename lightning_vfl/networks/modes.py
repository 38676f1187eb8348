"""A context with evaluation mode, which restores the former modes."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Set all modules to evaluation mode, and restore the mode of each module afterwards."""
    modes = [(inner, inner.training) for inner in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for inner, mode in modes:
            inner.training = mode
