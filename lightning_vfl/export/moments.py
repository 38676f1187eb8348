"""The mean and the standard deviation of what halves give for the records of training, for drift in production."""

from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor

from lightning_vfl.export.halves import PartyNetwork
from lightning_vfl.export.manifest import Moments
from lightning_vfl.export.split_model import Part
from lightning_vfl.types import VerticalBatch


class RunningMoments:
    """Mean and standard deviation of rows that come in pieces; no piece is kept.

    Chan, Golub and LeVeque 1983, equations 2.1: the moments of two sets give those of their union.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = torch.zeros((), dtype=torch.float64)
        self._squares = torch.zeros((), dtype=torch.float64)  # sums of squared distances from the mean

    def add(self, values: Tensor) -> None:
        """Count rows: (B, ...) numbers, B from 0 on."""
        count = len(values)
        if not count:
            return
        rows = values.reshape(count, -1).double()
        mean = rows.mean(0)
        moved = mean - self._mean
        before = self.count
        self.count += count
        self._mean = self._mean + moved * (count / self.count)
        self._squares = self._squares + (rows - mean).square().sum(0) + moved.square() * (before * count / self.count)

    def moments(self) -> Moments:
        """The moments of all rows; there is one at least."""
        deviation = (self._squares / self.count).sqrt()
        return Moments(self.count, tuple(self._mean.tolist()), tuple(deviation.tolist()))


@torch.no_grad()
def training_moments(
    parties: Mapping[int, Part], server: Part | None, batches: Iterable[VerticalBatch]
) -> dict[str, Moments]:
    """By the name of a half, the moments of a party's embeddings, and of the server's predictions.

    Guarantee: the moments of a party are made of its own embeddings alone, for the records that it holds.

    Args:
        parties: number of a party -> its half; with a server, all parties whose embeddings it joins, in order.
        server: its half; None: there are no moments of predictions.
        batches: of the records of training, scaled.

    Returns:
        The moments; a half without records is not named.
    """
    halves = [*parties.values(), *([] if server is None else [server])]
    sums = {half.name: RunningMoments() for half in halves}
    for batch in batches:
        held = batch.present
        if held is None:
            held = torch.ones(len(batch.features[0]), len(batch.features), dtype=torch.bool)
        embeddings = []
        for m, half in parties.items():
            embedding = cast(PartyNetwork, half.network).embedding(batch.features[m])
            sums[half.name].add(embedding[held[:, m]])
            embeddings.append(embedding)
        if server is not None:
            there = held[:, list(parties)]
            predictions = server.network(tuple(embeddings), there)
            sums[server.name].add(predictions[there.any(1)])
    return {name: one.moments() for name, one in sums.items() if one.count}
