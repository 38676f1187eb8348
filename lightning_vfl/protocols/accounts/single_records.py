"""Checks before a training that accounts for the privacy of single records: what else could tell of a record.

A figure for a record is right only if what the parties send about OTHER records does not depend on it. Statistics of a
batch in a bottom, and scaling or columns that were fitted to the training records, break that. The top, and a norm over
the aggregate, may use statistics of a batch: they see nothing but what has been released already.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError

_REMEDY = "use norm: group (ResNet18, VGG13), torch.nn.GroupNorm or torch.nn.LayerNorm"


def refuse_shared_statistics(
    aggregator: str, bottoms: Iterable[nn.Module], shapes: Iterable[Sequence[int]], data: Any
) -> None:
    """Refuse data and bottoms that make what is sent about a record depend on other records.

    Guarantee: every ``torch.nn`` batch norm and every instance norm with running statistics is found. Other layers are
        tried on two batches of two records that differ in the second record: what changes the first embedding, or a
        buffer, is refused.
    Not guaranteed: that a layer which looks at other records only for some inputs is noticed, or a datamodule that
        prepares records by statistics of its own and does not name them in ``private_statistics``.

    Args:
        aggregator: its name, for errors.
        bottoms: the parties' networks, in order of party numbers.
        shapes: per-record shape of each party's features.
        data: the datamodule of the training.

    Raises:
        ConfigurationError: naming what is refused, and what to use instead.
    """
    for found in getattr(data, "private_statistics", tuple)():
        raise ConfigurationError(
            f"{aggregator} accounts for the privacy of single records, but the data of one record tell of others in "
            f"{type(data).__name__}: {found}"
        )
    for party, (bottom, shape) in enumerate(zip(bottoms, shapes, strict=True)):
        if what := batch_statistics(bottom, shape):
            raise ConfigurationError(
                f"{aggregator} accounts for the privacy of single records, but {what} in the bottom of party {party} "
                f"lets the embedding of one record depend on others; {_REMEDY}"
            )


def batch_statistics(bottom: nn.Module, shape: Sequence[int]) -> str:
    """The layer of a bottom that uses statistics of several records, in words; "": there is none.

    Examples:
        >>> batch_statistics(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), (3,))
        '1 (BatchNorm1d)'
        >>> batch_statistics(nn.Sequential(nn.Linear(3, 2), nn.GroupNorm(1, 2)), (3,))
        ''
    """
    for name, layer in bottom.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and not (
            isinstance(layer, nn.modules.instancenorm._InstanceNorm) and not layer.track_running_stats
        ):
            return f"{name or 'the network'} ({type(layer).__name__})"
    return f"a layer of {type(bottom).__name__}" if _mixes_records(bottom, shape) else ""


def _mixes_records(bottom: nn.Module, shape: Sequence[int]) -> bool:
    """Whether the second record of a batch changes the embedding of the first, or a buffer, in training mode."""
    some = next(bottom.parameters(), torch.empty(0))
    batch = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(some.device, some.dtype)
    other = torch.stack([batch[0], 5 - 3 * batch[1]])
    try:
        return _differ(bottom, batch, other)
    except (RuntimeError, ValueError, IndexError):  # it takes no real numbers, such as a table of categories
        zeros, ones = torch.zeros_like(batch), torch.ones_like(batch)
        return _differ(bottom, zeros, torch.stack([zeros[0], ones[0]]))


def _differ(bottom: nn.Module, batch: Tensor, other: Tensor) -> bool:
    """Whether a copy of the bottom gives another first embedding, or keeps another buffer, for the other batch."""
    tried = deepcopy(bottom).train()
    buffers = {name: buffer.clone() for name, buffer in tried.named_buffers()}
    first = _after(tried, batch)
    with torch.no_grad():
        for name, buffer in tried.named_buffers():
            buffer.copy_(buffers[name])
    second = _after(tried, other)
    return any(
        not torch.allclose(one, other, 1e-4, 1e-6, equal_nan=True) for one, other in zip(first, second, strict=True)
    )


def _after(network: nn.Module, batch: Tensor) -> list[Tensor]:
    """The first embedding, and every buffer after it, as float64; random layers draw the same in every call."""
    cuda = [batch.device] if batch.device.type == "cuda" else []
    with torch.random.fork_rng(cuda), torch.no_grad():
        torch.manual_seed(0)
        embedding: Tensor = network(batch)
    return [embedding[0].double(), *(buffer.double() for buffer in network.buffers())]
