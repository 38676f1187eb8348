"""What halves give for records of the run: moments in training, for drift, and calibration on those of validation."""

from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.calibration import by_class, fit
from lightning_vfl.export.halves import PartyNetwork
from lightning_vfl.export.manifest import Calibration, Kind, Missing, Moments, ServerHalf
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


@torch.no_grad()
def calibrations(
    parties: Mapping[int, Part], server: Part, batches: Iterable[VerticalBatch]
) -> tuple[Calibration, ...]:
    """The calibration with all parties, and without each one if there are predictions without it.

    A set of parties for which ``fit`` finds none has none.

    Args:
        parties: number of a party -> its half, in the order of the server's inputs.
        server: its half.
        batches: of the records of validation, scaled and with labels.

    Raises:
        ConfigurationError: for a model without classes, with noise in production, and for no records.
    """
    half = cast(ServerHalf, server.half)
    if not half.classes or half.targets:
        raise ConfigurationError("--calibration needs a model of classes, one for each record; leave it out")
    if half.protection is not None and half.protection.event is not None:
        raise ConfigurationError(
            f"{half.protection.aggregator} adds noise to every answer, which calibration does not know; leave "
            "--calibration out"
        )
    masked = half.protection is not None and half.protection.kind is Kind.MASKED
    sets: list[int | None] = [None]
    if half.missing is not Missing.SKIP and not masked:
        sets += range(len(parties))
    found: dict[int | None, list[Tensor]] = {absent: [] for absent in sets}
    labels: dict[int | None, list[Tensor]] = {absent: [] for absent in sets}
    for batch in batches:
        embeddings = [cast(PartyNetwork, part.network).embedding(batch.features[m]) for m, part in parties.items()]
        held = torch.ones(len(embeddings[0]), len(parties), dtype=torch.bool)
        if batch.present is not None:
            held = batch.present[:, list(parties)]
        for absent in sets:
            there = held.clone()
            own = list(embeddings)
            if absent is not None:
                own[absent] = torch.zeros_like(own[absent])
                there[:, absent] = half.missing is Missing.ZEROS
            others = [m for m in range(len(parties)) if m != absent]
            rows = held[:, others].all(1)
            found[absent].append(server.network(tuple(own), there)[rows])
            labels[absent].append(cast(Tensor, batch.labels)[rows])
    if not labels[None]:
        raise ConfigurationError("the run has no validation records, on which calibration is fitted; leave it out")
    fitted = []
    for absent in sets:
        right = torch.cat(labels[absent]).long().numpy()
        if (best := fit(by_class(torch.cat(found[absent]).numpy()), right)) is not None:
            names = () if absent is None else (half.parties[absent],)
            fitted.append(Calibration(names, *best, len(right)))
    return tuple(fitted)
