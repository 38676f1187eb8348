"""The owner's records: the hosts' encodings of them, which are collected once."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.networks.modes import evaluating
from lightning_vfl.types import RecordSource

if TYPE_CHECKING:
    from lightning_vfl.protocols.decoupled.protocol import DecoupledVFL

_ROWS = 1024  # encoded at a time


@torch.no_grad()
def collect(module: "DecoupledVFL", data: RecordSource) -> tuple[Tensor, Tensor]:
    """The hosts' encodings of all records that every guest holds; guests and hosts no longer change.

    Returns:
        encodings (n, H W_h), and (N,) int64 the row of each record among them, -1: it has none.
    """
    every = torch.arange(len(data))
    common = every if data.present is None else every[data.present.all(1).cpu()]
    like = next(module.bottoms.parameters())
    with evaluating(module):
        parts = [module.encode(tuple(x.to(like) for x in data.rows(ids))) for ids in torch.split(common, _ROWS)]
    place = torch.full((len(data),), -1)
    place[common] = torch.arange(len(common))
    return torch.cat(parts), place.to(module.device)


def mean_and_scale(encodings: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation (H W_h,) of encodings, in float64; 1 where encodings never vary."""
    mean = encodings.mean(0, dtype=torch.float64)
    squares = sum(((part - mean) ** 2).sum(0) for part in torch.split(encodings, _ROWS))  # float64, a part at a time
    deviation = (torch.as_tensor(squares) / len(encodings)).sqrt()
    return mean, torch.where(deviation > 1e-6, deviation, 1.0)
