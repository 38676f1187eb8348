"""The owner's records: their encodings by the hosts, which are collected once, and the traffic of the collection."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.networks.modes import evaluating
from lightning_vfl.protocols.decoupled.listening import tell_of_collection
from lightning_vfl.types import RecordSource
from lightning_vfl.wire import Leg

if TYPE_CHECKING:
    from lightning_vfl.protocols.decoupled.protocol import DecoupledVFL

_ROWS = 1024  # records encoded at a time


@torch.no_grad()
def collect(module: "DecoupledVFL", data: RecordSource) -> tuple[Tensor, Tensor]:
    """The hosts' encodings of all records that every guest holds; guests and hosts no longer change.

    Returns:
        encodings (n, H W_h), and (N,) int64, the row of each record in the encodings (-1: the record has no row).
    """
    every = torch.arange(len(data))
    common = every if data.present is None else every[data.present.all(1).cpu()]
    like = next(module.bottoms.parameters())
    with evaluating(module):
        parts = []
        for ids in torch.split(common, _ROWS):
            features = tuple(x.to(like) for x in data.rows(ids))
            parts.append(module.encode(features))
            if not module.counts.collected:
                tell_of_collection(module, ids, features, parts[-1])
    place = torch.full((len(data),), -1)
    place[common] = torch.arange(len(common))
    return torch.cat(parts), place.to(module.device)


def mean_and_scale(encodings: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation (H W_h,) of encodings, in float64; 1 for constant columns."""
    mean = encodings.mean(0, dtype=torch.float64)
    squares = sum(((part - mean) ** 2).sum(0) for part in torch.split(encodings, _ROWS))  # float64, one part at a time
    deviation = (torch.as_tensor(squares) / len(encodings)).sqrt()
    return mean, torch.where(deviation > 1e-6, deviation, 1.0)


def enter_collection(module: "DecoupledVFL", rows: int) -> None:
    """Count traffic and time of the final embeddings and encodings of ``rows`` records; there are no faults."""
    counts, clock, hosts = module.counts, module.clock, module.host_count
    counts.collected = True
    up = embeddings_leg("final embeddings", rows, hosts, module.embedding_widths)
    nothing = torch.zeros(hosts, dtype=torch.float64)
    on = Leg("final encodings", "server", torch.full((hosts,), rows * module.host_width), 32, nothing)
    module.books.meter.add(up)
    counts.host_meter.add(on)
    clock.advance(float(clock.transfer(up).max()) + float(clock.transfer(on).max()))


def embeddings_leg(kind: str, rows: int, hosts: int, widths: Sequence[int]) -> Leg:
    """The leg of the embeddings of ``rows`` records, from every guest to every host."""
    nothing = torch.zeros(len(widths), dtype=torch.float64)
    return Leg(kind, "server", rows * hosts * torch.tensor(widths), 32, nothing)
