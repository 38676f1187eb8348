"""Checks before a training that accounts for the privacy of single records: does a message depend on other records?

The figure of a record is correct only if the messages about OTHER records do not depend on this record. Batch
statistics in a bottom break this condition, and so do scaling and columns that were fitted to the training records. The
top and a norm over the aggregate may use batch statistics, because their input has already been released.
"""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.flops import takes_whole_numbers
from lightning_vfl.protocols.build import party_names_of
from lightning_vfl.protocols.place import Elsewhere

_REMEDY = "use norm: group (ResNet18, VGG13), torch.nn.GroupNorm or torch.nn.LayerNorm"


def refuse_shared_statistics(
    aggregator: str, bottoms: Iterable[nn.Module], shapes: Sequence[Sequence[int]], data: Any
) -> None:
    """Refuse data and bottoms that make messages about one record depend on other records.

    Guarantee: every ``torch.nn`` batch norm and every instance norm with running statistics is found. Other layers are
        run on two batches of two records that differ in the second record. A layer is refused if the first embedding
        or a buffer differs.
    Not guaranteed: a layer that depends on other records only for some inputs may not be found. A datamodule is not
        found that prepares records with statistics of its own and does not name these in ``private_statistics``.

    Args:
        aggregator: the name of the aggregator, for errors.
        bottoms: the parties' networks, in order of party numbers.
        shapes: per-record shape of each party's features.
        data: the datamodule of the training.

    Raises:
        ConfigurationError: naming the refused layer or statistics, and what to use instead.
    """
    for found in getattr(data, "private_statistics", tuple)():
        raise ConfigurationError(
            f"{aggregator} accounts for the privacy of single records, but in {type(data).__name__} the data of one "
            f"record depend on others: {found}"
        )
    for name, bottom, shape in zip(party_names_of(data, len(shapes)), bottoms, shapes, strict=True):
        if not isinstance(bottom, Elsewhere) and (what := batch_statistics(bottom, shape)):
            raise ConfigurationError(
                f"{aggregator} accounts for the privacy of single records, but {what} in the bottom of party {name} "
                f"lets the embedding of one record depend on others; {_REMEDY}"
            )


def batch_statistics(bottom: nn.Module, shape: Sequence[int]) -> str:
    """The name of a layer in a bottom that uses statistics of several records; "" if there is none.

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
    zeros, ones = torch.zeros_like(batch), torch.ones_like(batch)
    if takes_whole_numbers(deepcopy(bottom).eval(), zeros):
        zeros, ones = zeros.long(), ones.long()
        return _differ(bottom, zeros, torch.stack([zeros[0], ones[0]]))
    try:
        return _differ(bottom, batch, other)
    except (RuntimeError, ValueError, IndexError):  # it makes whole numbers of real ones, for an embedding
        return _differ(bottom, zeros, torch.stack([zeros[0], ones[0]]))


def _differ(bottom: nn.Module, batch: Tensor, other: Tensor) -> bool:
    """Whether the first embedding or a buffer of a copy of the bottom differs between the two batches."""
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
    """The first embedding and all buffers after a forward pass, as float64; the random layers are seeded equally."""
    cuda = [batch.device] if batch.device.type == "cuda" else []
    with torch.random.fork_rng(cuda), torch.no_grad():
        torch.manual_seed(0)
        embedding: Tensor = network(batch)
    return [embedding[0].double(), *(buffer.double() for buffer in network.buffers())]
