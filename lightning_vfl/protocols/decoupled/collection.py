"""The owner's records: their encodings by the hosts, which are collected once, and the traffic of the collection."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_vfl.protocols.decoupled.counts import DecoupledCounts
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.types import RecordSource
from lightning_vfl.wire import Leg

Features = tuple[Tensor, ...]
_ROWS = 1024  # records encoded at a time


def in_parts(data: RecordSource) -> tuple[Tensor, ...]:
    """The records that every guest holds, in parts that are encoded at a time."""
    every = torch.arange(len(data))
    common = every if data.present is None else every[data.present.all(1).cpu()]
    return torch.split(common, _ROWS)


def places_in(parts: Sequence[Tensor], records: int) -> Tensor:
    """(N,) int64, the row of each record in the encodings of parts of them; -1: the record has no row."""
    common = torch.cat(list(parts))
    place = torch.full((records,), -1)
    place[common] = torch.arange(len(common))
    return place


def mean_and_scale(encodings: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation (H W_h,) of encodings, in float64; 1 for constant columns."""
    mean = encodings.mean(0, dtype=torch.float64)
    squares = sum(((part - mean) ** 2).sum(0) for part in torch.split(encodings, _ROWS))  # float64, one part at a time
    deviation = (torch.as_tensor(squares) / len(encodings)).sqrt()
    return mean, torch.where(deviation > 1e-6, deviation, 1.0)


def enter_collection(
    module: VFLModule, counts: DecoupledCounts, rows: int, hosts: int, width: int, seconds: float | None
) -> None:
    """Count traffic and time of the final embeddings and encodings of ``rows`` records; there are no faults.

    Args:
        module: the protocol.
        counts: its counts.
        rows: how many records there are.
        hosts: how many hosts there are.
        width: of a host's encodings.
        seconds: that the collection has really taken; None: it is simulated.
    """
    clock = module.clock
    counts.collected = True
    up = embeddings_leg("final embeddings", rows, hosts, module.embedding_widths)
    on = Leg("final encodings", "server", torch.full((hosts,), rows * width), 32)
    module.books.meter.add(up)
    counts.host_meter.add(on)
    simulated = float(clock.transfer(up).max()) + float(clock.transfer(on).max())
    clock.advance(simulated if seconds is None else seconds)


def embeddings_leg(kind: str, rows: int, hosts: int, widths: Sequence[int]) -> Leg:
    """The leg of the embeddings of ``rows`` records, from every guest to every host."""
    return Leg(kind, "server", rows * hosts * torch.tensor(widths), 32)
