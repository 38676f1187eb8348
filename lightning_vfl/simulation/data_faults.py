"""Faults in the records of one party: noise, blurred pictures, lost columns, wrong units, old values, wrong ids.

A fault changes the features of the records that the party holds, after they have been scaled. It is a pure function of
these features, the split and a seed. So batches, processes and the order of the records make no difference, and a
resumed run has the same faults. Faults of different strengths use the same draws, so that a comparison is paired.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_vfl.checks import one_of, positive, within
from lightning_vfl.rebuildable import printed_without
from lightning_vfl.simulation.portable import exp, normal_quantile
from lightning_vfl.streams import permutation, seed_of, stream, uniform

SPLITS = ("train", "val", "test", "predict")
_AT_ONCE = 4096  # pictures that are blurred together


@dataclass(frozen=True)
class PartyData:
    """What a fault knows about the party whose records it changes.

    Args:
        seed: of the fault.
        split: the split of the records.
        shift: (F,), subtracted from each feature by the party's scaling.
        scale: (F,), by which the difference was divided.
    """

    seed: int
    split: str
    shift: Tensor
    scale: Tensor


class DataFault(ABC):
    """A fault in the records of one party; subclass it for your own kind.

    Class data:
        moves_records: True: the fault gives records the values of other records, and makes no new values.
        needs_pictures: True: the records of the party must be pictures.

    Args:
        party: the number of the party.
        splits: the splits whose records are changed: some of ``train``, ``val``, ``test`` and ``predict``.

    Raises:
        ConfigurationError: for another split, and for a party below 0.
    """

    moves_records: ClassVar[bool] = False
    needs_pictures: ClassVar[bool] = False

    def __init__(self, party: int, splits: Iterable[str] = SPLITS) -> None:
        self.party = within("party", party, 0, whole=True)
        self.splits = tuple(one_of("splits", split, SPLITS) for split in splits)

    @abstractmethod
    def change(self, x: Tensor, data: PartyData) -> Tensor:
        """The features of all records that the party holds, (n, *S), after the fault; ``x`` itself stays unchanged."""

    def __repr__(self) -> str:
        return printed_without(self, ("splits",) if self.splits == SPLITS else ())


class Noise(DataFault):
    """Every feature has Gaussian noise added, drawn anew for each record and column.

    A record has the same noise in every epoch.

    Does not model: noise that depends on the value or on other columns, noise that differs at every reading of the same
        record, and outliers.

    Args:
        party: the number of the party.
        deviation: standard deviation of the noise, in units of the scaled features: with ``Standardise``, 1 is the
            deviation of the column among the training records.
        splits: as in ``DataFault``.
    """

    def __init__(self, party: int, deviation: float, splits: Iterable[str] = SPLITS) -> None:
        super().__init__(party, splits)
        self.deviation = within("deviation", deviation, 0)

    def change(self, x: Tensor, data: PartyData) -> Tensor:
        words = stream(data.seed, "noise", data.split).random_raw(x.numel())
        normal = normal_quantile(uniform(words) + 2.0**-54)  # the middle of each step, so that 0 is not drawn
        return (x.double() + self.deviation * torch.from_numpy(normal).view(x.shape)).to(x.dtype)


class Blur(DataFault):
    """Every picture is smoothed by a Gaussian filter; the border is continued with its own values.

    Does not model: motion blur, an exposure that is wrong, lost resolution, and blur before a party has cut its part
        out of the picture.

    Args:
        party: the number of the party, whose records are (height, width) or (channels, height, width).
        radius: standard deviation of the filter in pixels, which ends at four deviations.
        splits: as in ``DataFault``.

    Raises:
        ConfigurationError: before training, for a party without pictures.
    """

    needs_pictures = True

    def __init__(self, party: int, radius: float, splits: Iterable[str] = SPLITS) -> None:
        super().__init__(party, splits)
        self.radius = positive("radius", radius)

    def change(self, x: Tensor, data: PartyData) -> Tensor:
        reach = int(4 * self.radius + 0.5)
        places = np.arange(-reach, reach + 1)
        weights = exp(-0.5 * (places / self.radius) ** 2)
        kernel = torch.from_numpy(weights / weights.sum())
        height, width = x.shape[-2:]
        blurred = []
        for pictures in torch.split(x.double().reshape(-1, 1, height, width), _AT_ONCE):
            taller = F.pad(pictures, (0, 0, reach, reach), mode="replicate")
            along_columns = F.conv2d(taller, kernel.view(1, 1, -1, 1))
            wider = F.pad(along_columns, (reach, reach, 0, 0), mode="replicate")
            blurred.append(F.conv2d(wider, kernel.view(1, 1, 1, -1)))
        return torch.cat(blurred).view(x.shape).to(x.dtype) if len(x) else x


class DroppedColumns(DataFault):
    """A share of the columns is 0 in all records, the same columns in every split.

    With ``Standardise``, 0 is the mean of the training records: the usual stand-in for a column that is not delivered.
    A column of a picture is a pixel of a channel.

    Does not model: values that are missing in single records, and models that are told which columns are missing.

    Args:
        party: the number of the party.
        share: of the columns, rounded to a whole number; the seed draws them.
        splits: as in ``DataFault``.
    """

    def __init__(self, party: int, share: float, splits: Iterable[str] = SPLITS) -> None:
        super().__init__(party, splits)
        self.share = within("share", share, 0, 1)

    def change(self, x: Tensor, data: PartyData) -> Tensor:
        columns = x.flatten(1).clone()
        columns[:, _some(columns.shape[1], self.share, data.seed, "columns")] = 0
        return columns.view(x.shape)


class ShiftedUnits(DataFault):
    """A share of the columns is delivered in other units: ``factor`` times the value plus ``constant``.

    The change is made in the units of the data, before scaling. The party's scaling stays the one for the right units,
    also in training.

    Does not model: a unit that changes from one record to the next, and a party that fits its scaling to the wrong
        units, which would undo most of the fault.

    Args:
        party: the number of the party.
        factor: that the values are multiplied with.
        constant: that is added to them afterwards.
        share: of the columns, rounded to a whole number; the seed draws them, the same ones for every split.
        splits: as in ``DataFault``.
    """

    def __init__(
        self, party: int, factor: float, constant: float = 0.0, share: float = 1.0, splits: Iterable[str] = SPLITS
    ) -> None:
        super().__init__(party, splits)
        self.factor = within("factor", factor, above=-np.inf, below=np.inf)
        self.constant = within("constant", constant, above=-np.inf, below=np.inf)
        self.share = within("share", share, 0, 1)

    def change(self, x: Tensor, data: PartyData) -> Tensor:
        columns = x.flatten(1).clone()
        some = _some(columns.shape[1], self.share, data.seed, "columns")
        shift = data.shift[some].double()
        scale = data.scale[some].double()
        values = columns[:, some].double() * scale + shift
        columns[:, some] = ((self.factor * values + self.constant - shift) / scale).to(x.dtype)
        return columns.view(x.shape)


class StaleTable(DataFault):
    """A share of the records has the party's values of an earlier record: the one ``lag`` places before.

    The first ``lag`` records of a split keep their values. If records are ordered by time, this is a table that is
    delivered late. If they are not, the values are those of some other record.

    Does not model: earlier versions of the same record, of which a table of one time has none.

    Args:
        party: the number of the party.
        share: of the records, rounded to a whole number; the seed draws them.
        lag: places between a record and the one whose values it has; 1 or more.
        splits: as in ``DataFault``.
    """

    moves_records = True

    def __init__(self, party: int, share: float = 1.0, lag: int = 1, splits: Iterable[str] = SPLITS) -> None:
        super().__init__(party, splits)
        self.share = within("share", share, 0, 1)
        self.lag = positive("lag", lag, whole=True)

    def change(self, x: Tensor, data: PartyData) -> Tensor:
        rows = torch.arange(len(x))
        late = torch.zeros(len(x), dtype=torch.bool)
        late[_some(len(x), self.share, data.seed, "records", data.split)] = True
        late[: self.lag] = False
        return x[torch.where(late, rows - self.lag, rows)]


class Misaligned(DataFault):
    """A share of the party's ids is permuted: each of these records has the values of another one of them.

    None of the chosen records keeps its own values, unless only one is chosen.

    Does not model: ids that find no record, ids that stand for two records, and errors that are more frequent between
        similar ids.

    Args:
        party: the number of the party.
        share: of the records that the party holds, rounded to a whole number; the seed draws them.
        splits: as in ``DataFault``.
    """

    moves_records = True

    def __init__(self, party: int, share: float, splits: Iterable[str] = SPLITS) -> None:
        super().__init__(party, splits)
        self.share = within("share", share, 0, 1)

    def change(self, x: Tensor, data: PartyData) -> Tensor:
        source = torch.arange(len(x))
        some = _some(len(x), self.share, data.seed, "records", data.split)
        source[some] = some.roll(1)  # one cycle through records in a random order: nobody keeps its own place
        return x[source]


def seeds_of(faults: Sequence[DataFault], seed: int) -> list[int]:
    """The seed of each fault: named by its class, its party and its number among those that share both."""
    names = [(type(fault).__name__, fault.party) for fault in faults]
    return [seed_of(seed, "data faults", *name, names[:place].count(name)) for place, name in enumerate(names)]


def _some(total: int, share: float, seed: int, *names: str) -> Tensor:
    """A share of ``range(total)``, in a random order; a larger share has the smaller one in it."""
    return torch.from_numpy(permutation(total, seed, *names)[: round(share * total)])
